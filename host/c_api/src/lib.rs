//! C ABI of flash-attention: what the header include/flash_attention.h declares.
//!
//! Three functions over raw device pointers and a stream. Nothing here allocates device memory, copies a tensor or
//! waits; no panic leaves a function, and every failure is a code and a text.

mod args;
mod status;

use std::ffi::{c_char, c_void};

pub use args::ForwardArgs;
pub use status::Status;

/// Puts one attention forward into `stream`: `o = softmax(scale * q k^T + mask) v`, and `lse`, the natural logarithm
/// of each row's sum of exponentials.
///
/// `stream` is a `CUstream` (`cudaStream_t`), NULL for the default stream. The caller's context has to be current
/// on this thread (PyTorch and the CUDA runtime see to that). The call returns before the work is done and
/// synchronises nothing; the tensors have to stay alive until the stream has passed it. After the first call of a
/// kind, which loads the kernel, a call can be captured in a graph.
///
/// Returns 0 (`FLASH_ATTENTION_STATUS_OK`) or another value of `flash_attention_status`; on failure nothing was launched
/// and `flash_attention_last_error` tells why.
///
/// # Safety
/// `args` is NULL or points to `args->struct_size` readable bytes; the tensors that it describes are memory of the
/// current context, inputs readable and outputs writable, until `stream` has run the work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flash_attention_forward(args: *const ForwardArgs, stream: *mut c_void) -> i32 {
    status::guarded(|| {
        // SAFETY: the caller's promise about `args`.
        let args = unsafe { args::read(args)? };
        // SAFETY: the caller's promise about the tensors and the stream.
        unsafe { args.launch(stream) }
    }) as i32
}

/// Why this thread's last call failed: one line of text, empty after a success and never NULL. Valid until this
/// thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn flash_attention_last_error() -> *const c_char {
    status::last_error()
}

/// The library's version, such as "0.1.0". Lives as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn flash_attention_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
