//! Contexts, streams and memory of the crate `cust`, for programs that use it beside this library (feature `cust`).
//!
//! cust links against `libcuda`; with this feature its symbols are defined as jumps into a driver that is found at run
//! time, so the program builds without a CUDA toolkit and starts without a driver: `cust::quick_init` is then an
//! error. Its build script wants the variable `CUDA_LIBRARY_PATH` to name a folder that has a folder `lib64`; in this
//! repository `.cargo/config.toml` sets it.

// Names the crate, so that the linker sees its symbols.
use flash_attention_driver as _;

use crate::element::Element;
use crate::error::{Error, Result};
use crate::launch::RawStream;
use crate::tensor::{Memory, MemoryMut, Shape, TensorView, TensorViewMut};
pub use cust;
use cust::error::CudaError;
use cust::memory::{DeviceCopy, DeviceSlice};
use cust::stream::Stream;

/// The stream, for [`Attention::run_on`](crate::Attention::run_on) and [`launch::forward`](crate::launch::forward).
pub fn raw_stream(stream: &Stream) -> RawStream {
    stream.as_inner().cast()
}

/// A contiguous tensor that begins where `memory` does. half's types cannot lie in cust's buffers, so `B` may be any
/// type of the same size, such as `u16`.
///
/// ```no_run
/// use flash_attention::cuda::{self, cust};
/// use flash_attention::{Attention, Strides};
/// use half::bf16;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let _context = cust::quick_init()?;
/// let stream = cust::stream::Stream::new(cust::stream::StreamFlags::NON_BLOCKING, None)?;
/// let shape = [2, 1024, 16, 128];
/// let elements = shape.iter().product();
/// let q = cust::memory::DeviceBuffer::<u16>::zeroed(elements)?;
/// let mut o = cust::memory::DeviceBuffer::<u16>::zeroed(elements)?;
/// // SAFETY: both buffers live until the stream has been waited for, and nobody else uses them.
/// unsafe {
///     let (q, o) = (cuda::view::<bf16, _>(&q, shape)?, cuda::view_mut(&mut o, shape)?);
///     Attention::forward(q, q, q).run_on(cuda::raw_stream(&stream), o, None)?;
/// }
/// stream.synchronize()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] where the memory is too small for the shape.
///
/// # Safety
/// Calls return before the work is done: the memory stays alive, and nobody writes it, until then.
pub unsafe fn view<'a, T: Element, B: DeviceCopy>(
    memory: &'a DeviceSlice<B>,
    shape: Shape,
) -> Result<TensorView<'a, T>> {
    let (address, len) = (memory.as_device_ptr().as_raw(), memory.len() * size_of::<B>() / size_of::<T>());
    TensorView::new(Memory::Gpu { address, len: Some(len), device: None }, shape)
}

/// As [`view`], to be written.
///
/// # Errors
/// As there.
///
/// # Safety
/// As there, and nobody reads the memory before the work is done either.
pub unsafe fn view_mut<'a, T: Element, B: DeviceCopy>(
    memory: &'a mut DeviceSlice<B>,
    shape: Shape,
) -> Result<TensorViewMut<'a, T>> {
    let (address, len) = (memory.as_device_ptr().as_raw(), memory.len() * size_of::<B>() / size_of::<T>());
    TensorViewMut::new(MemoryMut::Gpu { address, len: Some(len), device: None }, shape)
}

/// cust's error as this library's.
pub fn error(call: &'static str, why: CudaError) -> Error {
    match why {
        CudaError::NoDevice | CudaError::NotInitialized => Error::unavailable_on_gpu(
            format!("no NVIDIA driver found: {call} gives {why:?}"),
            "install the NVIDIA driver",
        ),
        _ => Error::Driver {
            call,
            code: why as i32,
            name: format!("{why:?}"),
            text: why.to_string(),
            hint: "the driver's documentation of the call lists its causes".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cust_starts_or_says_why_not() {
        match cust::quick_init() {
            Ok(_context) => assert!(Stream::new(cust::stream::StreamFlags::NON_BLOCKING, None).is_ok()),
            Err(why) => {
                assert_eq!(why, CudaError::NoDevice);
                let message = error("cuInit", why).to_string();
                insta::assert_snapshot!(message, @"no NVIDIA driver found: cuInit gives NoDevice; install the NVIDIA driver, or use the CPU device");
            }
        }
    }
}
