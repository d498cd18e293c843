//! Warp matrix products on tensor cores: 32 lanes multiply a 16 x 16 A by a 16 x 8 B, since sm_80.
//!
//! Fragments, with `g = lane / 4` and `t = lane % 4` (each register of A and B holds two elements, the one with the
//! lower index in the low half):
//!
//! | register | A, 16 x 16 (row, column) | B, 16 x 8 (row, column) | accumulator, 16 x 8 (row, column) |
//! | --- | --- | --- | --- |
//! | 0 | `(g, 2t .. 2t + 1)` | `(2t .. 2t + 1, g)` | `(g, 2t)` |
//! | 1 | `(g + 8, 2t .. 2t + 1)` | `(2t + 8 .. 2t + 9, g)` | `(g, 2t + 1)` |
//! | 2 | `(g, 2t + 8 .. 2t + 9)` | | `(g + 8, 2t)` |
//! | 3 | `(g + 8, 2t + 8 .. 2t + 9)` | | `(g + 8, 2t + 1)` |
//!
//! So two accumulators side by side, rounded and packed in pairs, are the A of a following product: no exchange.

use crate::element::Half;

#[cfg(target_arch = "nvptx64")]
macro_rules! mma {
    ($type:literal, $acc:ident, $a:ident, $b:ident) => {
        unsafe { core::arch::asm!(
            concat!("mma.sync.aligned.m16n8k16.row.col.f32.", $type, ".", $type,
                ".f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};"),
            inout(reg32) $acc[0], inout(reg32) $acc[1], inout(reg32) $acc[2], inout(reg32) $acc[3],
            in(reg32) $a[0], in(reg32) $a[1], in(reg32) $a[2], in(reg32) $a[3], in(reg32) $b[0], in(reg32) $b[1],
            options(pure, nomem, nostack, preserves_flags)) }
    };
}

/// `acc += A B` with f32 sums (`mma.sync.m16n8k16`). All lanes of the warp.
#[inline(always)]
pub fn m16n8k16<T: Half>(acc: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
    device!({
        if T::BF16 { mma!("bf16", acc, a, b) } else { mma!("f16", acc, a, b) }
    } else { host!("mma::m16n8k16", (acc, a, b) => crate::sim::m16n8k16(acc, a, b, T::BF16)) })
}
