//! Register fragments of a tensor-core product, as `wgmma` and `mma.sync` both lay them out.
//!
//! A warp owns 16 rows. Lane `4 * r + t` holds rows `r` and `r + 8`; of every 8 columns it holds `2 t` and `2 t + 1`:
//! element `4 * g + 2 * half + c` of its array is row `r + 8 * half`, column `8 * g + 2 * t + c`. Four lanes, a quad,
//! share a row.

use crate::mask::Mask;
use crate::score_mod::ScoreMod;
use cuda_std::element::Half;
use cuda_std::global::GlobalPtr;
use cuda_std::mutant;
use cuda_std::{math, warp};

/// Which rows and columns of the whole matrix this lane's fragment elements are.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Row of the first half; the second is 8 further down.
    pub row: i32,
    /// Column of element 0: `2 * (lane % 4)` in a tile's first column.
    pub column: i32,
    /// Rows are queries times two to the power of this, if [packed](crate::params::Packing).
    pub shift: u32,
}

impl Position {
    /// The position of this lane in a 16-row tile whose corner is `(row, column)`.
    #[inline(always)]
    pub fn of_lane(row: i32, column: i32) -> Self {
        Self::of(warp::lane_id(), row, column)
    }

    /// [`of_lane`](Self::of_lane) with the lane's number read anew: nothing of it is kept in registers across a loop.
    #[inline(always)]
    pub fn of_fresh_lane(row: i32, column: i32) -> Self {
        Self::of(warp::fresh_lane_id(), row, column)
    }

    #[inline(always)]
    fn of(lane: u32, row: i32, column: i32) -> Self {
        let lane = lane as i32;
        Position { row: row + lane / 4, column: column + 2 * (lane % 4), shift: 0 }
    }

    /// The query that the row of a half is of.
    #[inline(always)]
    fn query(self, half: usize) -> i32 {
        let row = self.row + 8 * half as i32;
        mutant!(MaskOfPackedRows, row, row >> self.shift)
    }
}

/// Excludes the keys that the mask or the sequence's end `seqlen_k` rules out: their scores become a real -inf.
#[inline(always)]
pub fn mask_scores<M: Mask, const S: usize>(s_frag: &mut [f32; S], mask: M, at: Position, seqlen_k: i32) {
    for half in 0..2 {
        // Counted from the lane's own first column, so that every element compares with a constant.
        let end = mask.row_end(at.query(half));
        let end = mutant!(NoKeyTail, end, end.min(seqlen_k)) - at.column;
        for g in 0..S / 4 {
            for c in 0..2 {
                let column = (8 * g + c) as i32;
                let s = &mut s_frag[4 * g + 2 * half + c];
                *s = if column < end { *s } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Passes every score, scaled, through the modifier.
#[inline(always)]
pub fn modify_scores<X: ScoreMod, const S: usize>(
    s_frag: &mut [f32; S],
    score_mod: X,
    scale: f32,
    at: Position,
) {
    for i in 0..S {
        let (g, half, c) = (i / 4, i / 2 % 2, i % 2);
        let (query, key) = (at.query(half), at.column + (8 * g + c) as i32);
        s_frag[i] = score_mod.apply(s_frag[i] * scale, query, key);
    }
}

/// Packs probabilities into the A operand of the second product: 4 registers for every 16 columns.
#[inline(always)]
pub fn pack<T: Half, const S: usize, const P: usize>(s_frag: &[f32; S]) -> [u32; P] {
    const { assert!(S == 2 * P) };
    let mut p_frag = [0; P];
    for i in 0..P {
        p_frag[i] = T::pack(s_frag[2 * i], s_frag[2 * i + 1]);
    }
    p_frag
}

/// The A operand of product `step`, 16 columns wide.
#[inline(always)]
pub fn operand<const P: usize>(packed: &[u32; P], step: usize) -> [u32; 4] {
    [packed[4 * step], packed[4 * step + 1], packed[4 * step + 2], packed[4 * step + 3]]
}

/// The sum of a value over the quad that shares a row.
#[inline(always)]
pub fn quad_sum(value: f32) -> f32 {
    let value = value + warp::shuffle_xor_f32(value, 1);
    value + warp::shuffle_xor_f32(value, 2)
}

/// The maximum of a value over the quad that shares a row; NaN does not take part.
#[inline(always)]
pub fn quad_max(value: f32) -> f32 {
    let value = math::max(value, warp::shuffle_xor_f32(value, 1));
    math::max(value, warp::shuffle_xor_f32(value, 2))
}

/// Writes one row of a fragment, times `factor`, in pieces of 8 elements (16 bytes), those that start left of `cols`.
///
/// The quad first transposes: of every four groups of 8 columns, lane `t` collects group `t` whole.
///
/// # Safety
/// `row` points at the row's first element, is aligned to 16 bytes and has `cols` elements, a multiple of 8, unless
/// `valid` is false, in which case nothing is written. All lanes of the warp take part.
#[inline(always)]
pub unsafe fn store_row<T: Half, const O: usize>(
    o_frag: &[f32; O],
    half: usize,
    factor: f32,
    row: GlobalPtr<u16>,
    cols: u32,
    valid: bool,
) {
    let t = warp::lane_id() % 4;
    let (odd, high) = (t & 1 != 0, t & 2 != 0);
    for quarter in 0..O.div_ceil(16) {
        let mut x = [0; 4];
        for (i, piece) in x.iter_mut().enumerate() {
            let at = 16 * quarter + 4 * i + 2 * half;
            if at < O {
                *piece = T::pack(o_frag[at] * factor, o_frag[at + 1] * factor);
            }
        }
        // x[g] of lane t belongs to lane g: two rounds of exchanging the half that belongs across.
        let x = exchange(x, [0, 1, 2, 3], odd, 1);
        let x = exchange(x, [0, 2, 1, 3], high, 2);
        let column = 32 * quarter as u32 + 8 * t;
        if valid && column < cols {
            // SAFETY: the piece lies inside the row and is aligned.
            unsafe { row.offset(column as i64).cast::<[u32; 4]>().store(0, x) };
        }
    }
}

/// Swaps, between lanes that differ in the bit `distance`, the off-diagonal of each 2 x 2 block of registers
/// `(order[0], order[1])` and `(order[2], order[3])`.
#[inline(always)]
fn exchange(x: [u32; 4], order: [usize; 4], upper: bool, distance: u32) -> [u32; 4] {
    let mut y = x;
    for pair in 0..2 {
        let (a, b) = (order[2 * pair], order[2 * pair + 1]);
        let received = warp::shuffle_xor(if upper { x[a] } else { x[b] }, distance);
        y[a] = if upper { received } else { x[a] };
        y[b] = if upper { x[b] } else { received };
    }
    y
}
