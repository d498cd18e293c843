//! Flash attention kernels in Rust.
//!
//! Compiled for `nvptx64-nvidia-cuda` this crate is the list of `#[kernel]` entries; compiled for the host it gives
//! the host library what the two share: the launch parameters ([`params`]), the table of entries ([`config`]) and
//! the pure functions that bound the work ([`block_range`], [`mask`]).
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, stdarch_nvptx, asm_experimental_arch))]
// Fragments are indexed by row and column, as the algorithm is written, not iterated over.
#![allow(clippy::needless_range_loop)]

pub mod block_range;
pub mod config;
pub mod mask;
pub mod params;
pub mod score_mod;

#[cfg(any(target_arch = "nvptx64", feature = "sim"))]
pub mod forward;
#[cfg(any(target_arch = "nvptx64", feature = "sim"))]
pub mod fragment_softmax;
#[cfg(any(target_arch = "nvptx64", feature = "sim"))]
pub mod persistent;
#[cfg(any(target_arch = "nvptx64", feature = "sim"))]
pub mod pipeline;
#[cfg(any(target_arch = "nvptx64", feature = "sim"))]
pub mod scheduler;
#[cfg(all(not(target_arch = "nvptx64"), feature = "sim"))]
pub mod simulate;
#[cfg(any(target_arch = "nvptx64", feature = "sim"))]
pub mod softmax;
#[cfg(any(target_arch = "nvptx64", feature = "sim"))]
pub mod streamed_softmax;
#[cfg(any(target_arch = "nvptx64", feature = "sim"))]
pub mod tile;

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the grid with an error; there is nothing to unwind on the device.
    unsafe { core::arch::nvptx::trap() }
}
