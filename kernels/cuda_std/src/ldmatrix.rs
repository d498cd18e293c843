//! Loads of 8 x 8 matrices of 16-bit elements from shared memory, straight into the fragments of [`crate::mma`].
//!
//! Four matrices a load: lane `8 * m + r` passes the address of row `r` of matrix `m` (16 bytes), and register `m` of
//! every lane receives its share of matrix `m`: elements `(g, 2t)` and `(g, 2t + 1)` with `g = lane / 4` and
//! `t = lane % 4`, or with `.trans` elements `(2t, g)` and `(2t + 1, g)`.

use crate::shared::SharedPtr;

#[cfg(target_arch = "nvptx64")]
macro_rules! ldmatrix {
    ($ptx:literal, $row:ident) => {{
        let (a, b, c, d);
        unsafe {
            core::arch::asm!(concat!($ptx, " {{{}, {}, {}, {}}}, [{}];"),
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) $row.address(),
            options(nostack, preserves_flags))
        };
        [a, b, c, d]
    }};
}

/// Four matrices as they lie (`ldmatrix.x4`).
///
/// # Safety
/// All lanes of the warp; every lane's 16 bytes are aligned, initialised and not written unordered.
#[inline(always)]
pub unsafe fn x4(row: SharedPtr<[u32; 4]>) -> [u32; 4] {
    device!({ ldmatrix!("ldmatrix.sync.aligned.m8n8.x4.shared.b16", row) }
        else { host!("ldmatrix::x4", (row) => crate::sim::ldmatrix(row.address(), false)) })
}

/// Four matrices, each transposed (`ldmatrix.x4.trans`).
///
/// # Safety
/// As for [`x4`].
#[inline(always)]
pub unsafe fn x4_trans(row: SharedPtr<[u32; 4]>) -> [u32; 4] {
    device!({ ldmatrix!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", row) }
        else { host!("ldmatrix::x4_trans", (row) => crate::sim::ldmatrix(row.address(), true)) })
}
