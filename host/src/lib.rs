//! Flash attention: kernels in Rust, compiled to PTX by rustc, launched through the CUDA driver.

pub mod error;
pub mod problem;

pub use error::{Error, Result};
pub use problem::{Causal, DType, Problem, Strides, Window};
