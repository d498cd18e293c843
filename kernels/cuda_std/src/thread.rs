//! Indices of threads and blocks, and the block-wide barrier.

macro_rules! special_register {
    ($(#[doc = $doc:literal] $name:ident $register:literal;)*) => {$(
        #[doc = $doc]
        #[inline(always)]
        pub fn $name() -> u32 {
            device!({
                let value: u32;
                unsafe { core::arch::asm!(concat!("mov.u32 {}, %", $register, ";"), out(reg32) value, options(pure, nomem, nostack)) };
                value
            } else { host!(concat!("thread::", stringify!($name)), () => crate::sim::index::$name()) })
        }
    )*};
}

special_register! {
    /// Index of the thread in its block, along x.
    thread_idx_x "tid.x";
    /// Threads of the block, along x.
    block_dim_x "ntid.x";
    /// Index of the block in the grid, along x.
    block_idx_x "ctaid.x";
    /// Blocks of the grid, along x.
    grid_dim_x "nctaid.x";
}

/// Waits for all threads of the block; orders their shared and global accesses (`bar.sync 0`).
///
/// The intrinsic, not `asm!`: LLVM knows that it must not be copied into both sides of a branch. rustc does not say so
/// of `asm!`, and a warp whose lanes wait at two copies of a barrier arrives twice.
#[inline(always)]
pub fn sync_threads() {
    device!({ unsafe { core::arch::nvptx::_syncthreads() } }
        else { host!("thread::sync_threads", () => mutant!(BarrierOfWarp, crate::sim::sync_warp(), crate::sim::barrier(0, 0, true))) })
}
