//! Online softmax whose exponentials are taken a few at a time, between the products that consume them.
//!
//! Every block of keys rescales what was computed before it, by a factor that mostly is 1. Leaving that out while a
//! row's maximum stands still would take a vote and a branch, and on an H200 these cost 4 to 16 percent of the kernel's
//! speed: whatever stands between two branches, the compiler cannot move in between the products.

use crate::softmax::FOLD_LIMIT;
use crate::tile::fragment::{quad_max, quad_sum};
use cuda_std::mutant;
use cuda_std::{math, warp};

/// The softmax state of a lane's rows, two in each of `TILES` tiles of 16 rows (`m` and `l` of the paper). The maximum
/// is the quad's, the sum this lane's share.
#[derive(Clone, Copy, Debug)]
pub struct StreamedSoftmax<const TILES: usize> {
    max: [[f32; 2]; TILES],
    sum: [[f32; 2]; TILES],
    /// `scale * log2 e`: weights are powers of two of `scale_log2 * (s - max)`.
    scale_log2: f32,
    /// Whether the maxima are already off the scores of the block in work.
    subtracted: bool,
}

/// What becomes of the output so far, row by row.
#[derive(Clone, Copy, Debug)]
pub struct Rescale<const TILES: usize> {
    factors: [[f32; 2]; TILES],
}

/// What turns a block's admitted scores into weights: `2^(s * factor - shift)`.
#[derive(Clone, Copy, Debug)]
pub struct Exponents<const TILES: usize> {
    factor: f32,
    shift: [[f32; 2]; TILES],
}

impl<const TILES: usize> StreamedSoftmax<TILES> {
    /// Nothing seen yet: the maximum is a real -inf.
    #[inline(always)]
    pub fn new(scale_log2: f32) -> Self {
        StreamedSoftmax {
            max: [[f32::NEG_INFINITY; 2]; TILES],
            sum: [[0.0; 2]; TILES],
            scale_log2,
            subtracted: false,
        }
    }

    /// Looks at a block's scores before their weights are asked for: the maxima grow, and the output is due the result.
    #[inline(always)]
    pub fn admit<const S: usize>(&mut self, s_frag: &mut [[f32; S]; TILES]) -> Rescale<TILES> {
        let old = *self;
        let mut rescale = Rescale { factors: [[1.0; 2]; TILES] };
        let mut far = false;
        for m in 0..TILES {
            for row in 0..2 {
                let max = math::max(old.max[m][row], quad_max(row_max(&s_frag[m], row)));
                self.max[m][row] = max;
                far |= (max * self.scale_log2).abs() > FOLD_LIMIT && max != f32::NEG_INFINITY;
                rescale.factors[m][row] = math::exp2(old.folded_max(m, row) - self.folded_max(m, row));
            }
        }
        self.subtracted = warp::any(far);
        if self.subtracted {
            for m in 0..TILES {
                for i in 0..S {
                    s_frag[m][i] -= self.finite_max(m, i / 2 % 2);
                }
                for row in 0..2 {
                    let change = (old.max[m][row] - self.finite_max(m, row)) * self.scale_log2;
                    rescale.factors[m][row] = math::exp2(change);
                }
            }
        }
        for m in 0..TILES {
            for row in 0..2 {
                self.sum[m][row] *= mutant!(SumNotRescaled, 1.0, rescale.factors[m][row]);
            }
        }
        rescale
    }

    /// How the weights of the block just admitted are made. Not part of the state: registers are scarcest where the
    /// scores are computed, and these few are cheap to make again.
    #[inline(always)]
    pub fn exponents(&self) -> Exponents<TILES> {
        let mut exponents = Exponents { factor: self.scale_log2, shift: [[0.0; 2]; TILES] };
        for m in 0..TILES {
            for row in 0..2 {
                exponents.shift[m][row] = if self.subtracted { 0.0 } else { self.folded_max(m, row) };
            }
        }
        exponents
    }

    /// Counts weights of one row.
    #[inline(always)]
    pub fn count(&mut self, weights: f32, m: usize, row: usize) {
        self.sum[m][row] += weights;
    }

    /// A row's final factor on the output, `1 / sum`, and its log-sum-exp: 0 and -inf for a row without keys.
    #[inline(always)]
    pub fn finish(&self, m: usize, row: usize) -> (f32, f32) {
        let sum = quad_sum(self.sum[m][row]);
        let lse = (self.finite_max(m, row) * self.scale_log2 + math::log2(sum)) * core::f32::consts::LN_2;
        (if sum == 0.0 { 0.0 } else { math::reciprocal(sum) }, lse)
    }

    /// `max * scale_log2`; before the first key the lowest number, so that a weight there is `exp2(-inf) = 0`.
    #[inline(always)]
    fn folded_max(&self, m: usize, row: usize) -> f32 {
        math::max(self.max[m][row] * self.scale_log2, f32::MIN)
    }

    /// The maximum, or 0 before the first key, so that a weight there is `exp2(-inf) = 0`.
    #[inline(always)]
    fn finite_max(&self, m: usize, row: usize) -> f32 {
        if self.max[m][row] == f32::NEG_INFINITY { 0.0 } else { self.max[m][row] }
    }
}

impl<const TILES: usize> Rescale<TILES> {
    /// Applies the factors to columns `8 * group .. 8 * group + 8` of tile `m` of the output.
    #[inline(always)]
    pub fn apply<const O: usize>(&self, o_frag: &mut [f32; O], m: usize, group: usize) {
        for i in 4 * group..4 * group + 4 {
            o_frag[i] *= mutant!(OutputNotRescaled, 1.0, self.factors[m][i / 2 % 2]);
        }
    }
}

impl<const TILES: usize> Exponents<TILES> {
    /// The weight of a score of row `row` (0 or 1) of tile `m`.
    #[inline(always)]
    pub fn weight(&self, s: f32, m: usize, row: usize) -> f32 {
        math::exp2(math::fma(s, self.factor, -self.shift[m][row]))
    }
}

/// The maximum of a lane's scores of one row; NaN does not take part.
#[inline(always)]
fn row_max<const S: usize>(s_frag: &[f32; S], row: usize) -> f32 {
    // Two chains, so that no comparison waits for the one before.
    let mut max = [s_frag[2 * row], s_frag[2 * row + 1]];
    for g in 1..S / 4 {
        max = [math::max(max[0], s_frag[4 * g + 2 * row]), math::max(max[1], s_frag[4 * g + 2 * row + 1])];
    }
    math::max(max[0], max[1])
}
