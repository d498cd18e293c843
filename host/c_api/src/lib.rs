//! C ABI of flash-attention: what the header include/flash_attention.h declares.
//!
//! Three functions over raw device pointers and a stream. No tensor is copied; no panic leaves a function, and every
//! failure is a code and a text.

mod args;
mod status;

use std::ffi::{c_char, c_void};

pub use args::ForwardArgs;
pub use status::Status;

/// Puts one attention forward into `stream`: `o = softmax(scale * q k^T + mask) v`, and `lse`, the natural logarithm
/// of each row's sum of exponentials.
///
/// `stream` is a `CUstream` (`cudaStream_t`), NULL for the default stream. The caller's context has to be current
/// on this thread (PyTorch and the CUDA runtime see to that), and is so afterwards. Any thread may call, several at
/// once too.
///
/// Returns 0 (`FLASH_ATTENTION_STATUS_OK`) or another value of `flash_attention_status`; on failure nothing was launched
/// and `flash_attention_last_error` tells why.
///
/// Lifetimes: the call returns before the work is done. `*args` and the text `kernel` are not needed after it; the
/// tensors have to stay alive until the stream has run the work, and until then nobody writes q, k and v or touches o
/// and lse. What the library keeps for a context (kernels, 8.5 MB of counters, the workspace of "standard") lives as
/// long as the context, also if the library is unloaded.
///
/// Cost: the first call of a kind in a context loads its kernel, and may allocate what is kept. Later ones load,
/// allocate and wait for nothing; but "standard" waits for its last call where it needs a larger workspace.
///
/// Graphs: a call may be captured, also the first of its kind. The graph holds the addresses and everything else of
/// `*args`: the tensors have to stay where they are for as long as it may be launched, and each launch reads and
/// writes them anew. Of all instances of one graph, and of its copies, at most one may run at a time, because they share
/// the counter that hands out tiles; capture the call again for a second one. "standard" has to be called once,
/// uncaptured, with at least as many scores before it is captured (`FLASH_ATTENTION_STATUS_INVALID` otherwise), and
/// while such a graph runs, no other call of "standard" may run in the context, because they share the workspace.
///
/// # Safety
/// `args` is NULL or points to `args->struct_size` readable bytes, `args->kernel` is NULL or a NUL-terminated text; the
/// tensors that the structure describes are memory of the current context, inputs readable and outputs writable, for as
/// long as is said above; `stream` is NULL or a stream of that context; graphs are used as is said above.
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
