//! Exchanges inside a warp of 32 threads; every thread of the warp takes part.

/// Threads of a warp.
pub const WARP_SIZE: u32 = 32;

/// Index of the thread in its warp.
#[inline(always)]
pub fn lane_id() -> u32 {
    crate::thread::thread_idx_x() % WARP_SIZE
}

/// [`lane_id`], read anew at every call: what is computed from it is not kept in registers across a loop.
#[inline(always)]
pub fn fresh_lane_id() -> u32 {
    device!({
        let lane: u32;
        unsafe { core::arch::asm!("mov.u32 {}, %laneid;", out(reg32) lane, options(nostack)) };
        lane
    } else { lane_id() })
}

/// The value of lane `lane ^ mask` (`shfl.sync.bfly`).
#[inline(always)]
pub fn shuffle_xor(value: u32, mask: u32) -> u32 {
    device!({
        let out: u32;
        unsafe { core::arch::asm!("shfl.sync.bfly.b32 {}, {}, {}, 31, -1;", out(reg32) out, in(reg32) value, in(reg32) mask, options(nostack)) };
        out
    } else { host!("warp::shuffle_xor", (value, mask) => crate::sim::shuffle_xor(value, mask)) })
}

/// [`shuffle_xor`] of a float.
#[inline(always)]
pub fn shuffle_xor_f32(value: f32, mask: u32) -> f32 {
    device!({ f32::from_bits(shuffle_xor(value.to_bits(), mask)) }
        else { f32::from_bits(shuffle_xor(crate::used(value).to_bits(), mask)) })
}

/// The value of lane `lane` (`shfl.sync.idx`).
#[inline(always)]
pub fn shuffle_idx(value: u32, lane: u32) -> u32 {
    device!({
        let out: u32;
        unsafe { core::arch::asm!("shfl.sync.idx.b32 {}, {}, {}, 31, -1;", out(reg32) out, in(reg32) value, in(reg32) lane, options(nostack)) };
        out
    } else { host!("warp::shuffle_idx", (value, lane) => crate::sim::shuffle_idx(value, lane)) })
}

/// The same value in every lane, made uniform for the compiler: lane 0's.
#[inline(always)]
pub fn uniform(value: u32) -> u32 {
    shuffle_idx(value, 0)
}

/// Whether `predicate` holds in any lane (`vote.sync.any`).
#[inline(always)]
pub fn any(predicate: bool) -> bool {
    device!({
        let out: u32;
        unsafe { core::arch::asm!(
            "{{ .reg .pred p, q; setp.ne.u32 p, {1}, 0; vote.sync.any.pred q, p, -1; selp.u32 {0}, 1, 0, q; }}",
            out(reg32) out, in(reg32) predicate as u32, options(nostack)) };
        out != 0
    } else { host!("warp::any", (predicate) => crate::sim::ballot(predicate) != 0) })
}

/// Waits for the other lanes of the warp and orders their memory accesses (`bar.warp.sync`).
#[inline(always)]
pub fn sync_warp() {
    device!({ unsafe { core::arch::asm!("bar.warp.sync -1;", options(nostack)) } }
        else { host!("warp::sync_warp", () => crate::sim::sync_warp()) })
}

/// Raises the warpgroup's register budget to `N` a thread (`setmaxnreg.inc`); waits until the registers are free.
#[inline(always)]
pub fn increase_registers<const N: u32>() {
    device!({ unsafe { core::arch::asm!("setmaxnreg.inc.sync.aligned.u32 {};", const N, options(nostack)) } }
        else { host!("warp::increase_registers", () => crate::sim::set_registers(N, true)) })
}

/// Lowers the warpgroup's register budget to `N` a thread (`setmaxnreg.dec`).
#[inline(always)]
pub fn decrease_registers<const N: u32>() {
    device!({ unsafe { core::arch::asm!("setmaxnreg.dec.sync.aligned.u32 {};", const N, options(nostack)) } }
        else { host!("warp::decrease_registers", () => crate::sim::set_registers(N, false)) })
}
