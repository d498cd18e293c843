//! Flash attention: kernels in Rust, compiled to PTX by rustc, launched through the CUDA driver.
//!
//! [`Attention`] is the builder that most programs need. It takes strided tensors `(batch, sequence, head, dim)` on the
//! CPU or on a GPU and puts one call into a [`Stream`]:
//!
//! ```
//! use flash_attention::{Attention, Device, Stream, Tensor};
//!
//! // The first GPU, or else the CPU; FLASH_ATTENTION_DEVICE overrides it.
//! let device = Device::auto()?;
//! # let device = Device::Cpu;
//! let (batch, seqlen, heads, dim) = (1, 16, 2, 8);
//! let values = vec![0.5f32; batch * seqlen * heads * dim];
//! let q = Tensor::from_slice(device, &values, [batch, seqlen, heads, dim])?;
//!
//! let stream = Stream::new(device)?;
//! let output = Attention::forward(&q, &q, &q).causal(true).run(&stream)?;
//! assert_eq!(output.o.to_vec()?, values);
//! # Ok::<(), flash_attention::Error>(())
//! ```
//!
//! Underneath, the way of the data has no step back: a checked [`Problem`] says what is wanted, [`Plan`] chooses the
//! kernel and says why, [`launch::forward`] puts it into anybody's stream by raw handles. A GPU needs its driver and
//! nothing else: it is found at run time, so programs build without CUDA and start without a driver.
//!
//! # Which functions are unsafe
//!
//! A launch returns before the work is done. With tensors that this library owns all is safe: dropping one waits for
//! the device. What lets memory or streams of others in is unsafe, because nobody here can keep them alive until the
//! work is done: [`TensorView::from_raw`], [`TensorViewMut::from_raw`], [`dlpack::Imported`], the views of
//! cust's buffers (module `cuda`, feature `cust`), [`Attention::run_on`] and [`launch::forward`].
//! So is capturing a [`Stream`] in a graph, by the driver's own functions: the graph holds addresses only, and a tensor
//! that is dropped waits for the work in streams, not for launches of a graph that are still to come. What else a
//! captured call asks for is said at [`launch::forward`].
//!
//! # Environment
//!
//! | variable | values | meaning |
//! | --- | --- | --- |
//! | `FLASH_ATTENTION_DEVICE` | `auto`, `cpu`, `cuda`, `cuda:N` | what [`Device::auto`] gives |
//! | `FLASH_ATTENTION_KERNEL` | `auto`, `standard`, `tiled`, `sm80`, `sm90` | the kernel family of GPU calls that name none |
//!
//! There is no cache folder to name: the family `sm90` is in the library as machine code, and what the driver compiles
//! from the PTX of the others it keeps in a cache of its own, which its variables `CUDA_CACHE_PATH`,
//! `CUDA_CACHE_MAXSIZE` and `CUDA_CACHE_DISABLE` rule. A variable that names nothing known is an error of the call that
//! reads it; `FLASH_ATTENTION_KERNEL` is read once in a process.
//!
//! # Events
//!
//! What happens is told through `tracing`: opening a GPU and loading a kernel at level info, plan and launch of every
//! call at level debug, a refused cubin as a warning.

pub mod attention;
pub mod check;
mod counters;
#[cfg(test)]
mod counting_allocator;
pub mod cpu;
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
#[cfg(test)]
mod listener;
mod module;
pub mod plain;
pub mod plan;
pub mod problem;
pub mod reference;
#[cfg(feature = "sim")]
pub mod sim;
pub mod tensor;
mod workspace;

pub use attention::{Attention, Output};
pub use device::{Device, Stream};
pub use element::Element;
pub use error::{Error, Result};
pub use extras::{Bias, Extras};
pub use plan::{Family, GpuProperties, Plan, PlanOptions};
pub use problem::{Causal, DType, Problem, Strides, Window};
pub use tensor::{Tensor, TensorView, TensorViewMut};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
