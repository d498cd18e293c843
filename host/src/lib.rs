//! Flash attention: kernels in Rust, compiled to PTX by rustc, launched through the CUDA driver.

pub mod check;
pub mod element;
pub mod embedded;
pub mod error;
pub mod extras;
pub mod plain;
pub mod problem;
pub mod reference;

pub use element::Element;
pub use error::{Error, Result};
pub use extras::{Bias, Extras};
pub use problem::{Causal, DType, Problem, Strides, Window};
