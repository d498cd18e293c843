//! Copies from global to shared memory that run beside the thread that asked for them, since sm_80.
//!
//! A thread's copies are gathered in groups; it waits for groups in the order in which it closed them. What other
//! threads copied is visible after their wait and a barrier.

use crate::global::GlobalPtr;
use crate::shared::SharedPtr;

/// Starts a copy of 16 bytes past the L1 cache; without `valid` it writes zeros and reads nothing
/// (`cp.async.cg`, by its source size).
///
/// # Safety
/// `to` is the block's and no thread touches it before the wait; where `valid`, `from` lies in memory that was given
/// to the kernel. Both are aligned to 16 bytes.
#[inline(always)]
pub unsafe fn copy_16(to: SharedPtr<[u32; 4]>, from: GlobalPtr<[u32; 4]>, valid: bool) {
    device!({ unsafe { core::arch::asm!("cp.async.cg.shared.global [{}], [{}], 16, {};",
        in(reg32) to.address(), in(reg64) from.address(), in(reg32) valid as u32 * 16, options(nostack, preserves_flags)) } }
        else { host!("cp_async::copy_16", (to, from, valid) => crate::sim::cp_async::copy(to.address(), from.address(), 16, u32::from(valid) * 16)) })
}

/// Closes the group of the copies started since the last one, which may be none (`cp.async.commit_group`).
#[inline(always)]
pub fn commit_group() {
    device!({ unsafe { core::arch::asm!("cp.async.commit_group;", options(nostack, preserves_flags)) } }
        else { host!("cp_async::commit_group", () => crate::sim::cp_async::commit_group()) })
}

/// Waits until at most `PENDING` of this thread's groups are unfinished (`cp.async.wait_group`).
#[inline(always)]
pub fn wait_group<const PENDING: usize>() {
    device!({ unsafe { core::arch::asm!("cp.async.wait_group {};", const PENDING, options(nostack, preserves_flags)) } }
        else { host!("cp_async::wait_group", () => crate::sim::cp_async::wait_group(PENDING as u32)) })
}
