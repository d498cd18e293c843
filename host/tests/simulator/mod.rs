//! The shipped kernels on the simulated device, without a GPU: edge shapes, many schedules, planted bugs.

mod case;
mod mutations;
mod sweep;
