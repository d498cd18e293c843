//! Atomic operations on global memory. Relaxed: where order matters, put a fence of [`crate::fence`] beside them.

use crate::global::GlobalPtr;

/// Adds and returns the value before (`atom.global.add.u32`).
///
/// # Safety
/// `at` is valid and aligned.
#[inline(always)]
pub unsafe fn add_u32(at: GlobalPtr<u32>, value: u32) -> u32 {
    device!({
        let before: u32;
        unsafe { core::arch::asm!("atom.global.add.u32 {}, [{}], {};", out(reg32) before, in(reg64) at.address(), in(reg32) value, options(nostack)) };
        before
    } else { host!("atomic::add_u32", (at, value) => crate::sim::atomic_global(at.address(), |before| before.wrapping_add(value))) })
}
