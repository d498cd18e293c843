//! Tests of the whole library. Those that need a GPU say loudly that they skip where there is none; everything that
//! they read is in the binary, so it runs on a machine without sources.

mod gpu;
mod simulator;
