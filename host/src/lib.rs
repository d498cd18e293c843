//! Flash attention: kernels in Rust, compiled to PTX by rustc, launched through the CUDA driver.

pub mod attention;
pub mod check;
mod counters;
#[cfg(feature = "cust")]
pub mod cuda;
pub mod device;
pub mod dlpack;
pub mod element;
pub mod embedded;
pub mod error;
pub mod extras;
#[cfg(test)]
mod fake_driver;
pub mod heuristics;
pub mod launch;
mod layout;
mod module;
pub mod plain;
pub mod plan;
pub mod problem;
pub mod reference;
#[cfg(feature = "sim")]
pub mod sim;
pub mod tensor;

pub use attention::{Attention, Output};
pub use device::{Device, Stream};
pub use element::Element;
pub use error::{Error, Result};
pub use extras::{Bias, Extras};
pub use plan::{Family, GpuProperties, Plan, PlanOptions};
pub use problem::{Causal, DType, Problem, Strides, Window};
pub use tensor::{Tensor, TensorView, TensorViewMut};
