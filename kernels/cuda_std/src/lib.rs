//! rust-cuda's device names on rustc's own NVPTX backend, with Hopper's instructions: the only crate of the project
//! with `asm!`, one instruction family a file.
//!
//! Every function has two bodies: the PTX instruction on `nvptx64`, and on the host the simulated device (feature
//! `sim`) or, without it, a panic that says so. Kernels reach global and shared memory only through the views in
//! [`global`] and [`shared`], so the same kernel source runs on both.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(asm_experimental_arch, stdarch_nvptx))]
// On the device every function is one instruction whose precondition is its own `# Safety` section.
#![cfg_attr(target_arch = "nvptx64", allow(clippy::undocumented_unsafe_blocks))]

pub use flash_attention_cuda_std_macros::kernel;

/// Picks the body: `device!({ PTX } else { host })`.
macro_rules! device {
    ({ $($ptx:tt)* } else { $($host:tt)* }) => {{
        #[cfg(target_arch = "nvptx64")]
        { $($ptx)* }
        #[cfg(not(target_arch = "nvptx64"))]
        { $($host)* }
    }};
}

/// The host body of a device function: `host!("name", (arguments) => what the simulated device does)`.
#[cfg(all(not(target_arch = "nvptx64"), feature = "sim"))]
macro_rules! host {
    ($name:expr, ($($argument:expr),*) => $body:expr) => {
        $body
    };
}

/// The host body of a device function where there is no simulated device: a panic.
#[cfg(all(not(target_arch = "nvptx64"), not(feature = "sim")))]
macro_rules! host {
    ($name:expr, ($($argument:expr),*) => $body:expr) => {{
        $(let _ = $argument;)*
        crate::no_host_body($name)
    }};
}

#[cfg(all(not(target_arch = "nvptx64"), not(feature = "sim")))]
#[cold]
#[track_caller]
pub(crate) fn no_host_body(name: &str) -> ! {
    panic!(
        "cuda_std::{name} runs on a GPU only; on the host it needs the feature `sim` and a simulated launch"
    )
}

/// An expression with a bug beside it: `mutant!(Mutation, wrong, right)`. The mutation check plants the bug on the
/// simulated device; without that, on the GPU above all, only the right expression is compiled.
#[cfg(all(not(target_arch = "nvptx64"), feature = "sim"))]
#[macro_export]
macro_rules! mutant {
    ($mutation:ident, $wrong:expr, $right:expr) => {
        if $crate::sim::planted($crate::sim::Mutation::$mutation) { $wrong } else { $right }
    };
}

/// An expression with a bug beside it, of which only the right one is compiled here: the simulated device is not.
#[cfg(not(all(not(target_arch = "nvptx64"), feature = "sim")))]
#[macro_export]
macro_rules! mutant {
    ($mutation:ident, $wrong:expr, $right:expr) => {
        $right
    };
}

/// A value that a device function computes with: the simulated device looks whether it may be used yet.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub(crate) fn used(value: f32) -> f32 {
    #[cfg(feature = "sim")]
    sim::wgmma::check_value(value);
    value
}

/// Counts an arithmetic instruction where the simulated device is compiled in.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub(crate) fn arithmetic() {
    #[cfg(feature = "sim")]
    sim::count_arithmetic();
}

pub mod atomic;
pub mod barrier;
pub mod cluster;
pub mod cp_async;
pub mod element;
pub mod fence;
pub mod global;
pub mod ldmatrix;
pub mod math;
pub mod mbarrier;
pub mod memory;
pub mod mma;
pub mod register;
pub mod shared;
#[cfg(all(not(target_arch = "nvptx64"), feature = "sim"))]
pub mod sim;
pub mod thread;
pub mod tma;
pub mod warp;
pub mod wgmma;
