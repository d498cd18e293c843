//! Online softmax on a fragment's two rows: the running maximum, the running sum, and the factors between blocks.

use crate::softmax::FOLD_LIMIT;
use crate::tile::fragment::{quad_max, quad_sum};
use cuda_std::mutant;
use cuda_std::wgmma::Accumulator;
use cuda_std::{math, warp};

/// How far, in powers of two, the scores of a row may outgrow the maximum in use before everything is rescaled.
/// Any stored maximum gives the same result; a stale one only makes the weights larger than 1, and 2^8 times the
/// largest sum is far from f32's and f16's limits.
const RESCALE_THRESHOLD: f32 = 8.0;

/// The softmax state of the two rows of a lane (`m` and `l` of the paper). The maximum is the quad's, the sum this
/// lane's share.
#[derive(Clone, Copy, Debug)]
pub struct OnlineSoftmax {
    max: [f32; 2],
    sum: [f32; 2],
    /// What the block in work takes off its scaled scores.
    shift: [f32; 2],
    /// `scale * log2 e`: weights are powers of two of `scale_log2 * (s - max)`.
    scale_log2: f32,
}

/// What a block's scores ask of the output accumulated so far.
#[derive(Clone, Copy, Debug)]
pub struct Rescale {
    /// Factors for the two rows.
    factors: [f32; 2],
    /// Whether any row of the warp has a factor other than 1.
    any: bool,
}

impl Rescale {
    /// Waits for the output's products and applies the factors to it.
    ///
    /// The wait stands in both branches: within a straight stretch of code the assembler moves it up, in front of most
    /// of the exponentials, which then no longer overlap with the product.
    ///
    /// # Safety
    /// As [`Accumulator::wait`].
    #[inline(always)]
    pub unsafe fn wait_and_apply<const O: usize>(self, o_frag: &mut [f32; O])
    where
        [f32; O]: Accumulator,
    {
        // SAFETY: as the caller promises.
        unsafe {
            if self.any {
                o_frag.wait::<0, 1>();
                for i in 0..O {
                    o_frag[i] *= mutant!(OutputNotRescaled, 1.0, self.factors[i / 2 % 2]);
                }
            } else {
                o_frag.wait::<0, 0>();
            }
        }
    }
}

impl OnlineSoftmax {
    /// Nothing seen yet: the maximum is a real -inf.
    #[inline(always)]
    pub fn new(scale_log2: f32) -> Self {
        OnlineSoftmax { max: [f32::NEG_INFINITY; 2], sum: [0.0; 2], shift: [0.0; 2], scale_log2 }
    }

    /// Looks at a block of scores, before [`weigh`](Self::weigh): the maxima grow as far as they must.
    #[inline(always)]
    pub fn look_at<const S: usize>(&mut self, s_frag: &mut [f32; S]) -> Rescale {
        let mut block_max = [s_frag[0], s_frag[2]];
        for i in 0..S {
            block_max[i / 2 % 2] = math::max(block_max[i / 2 % 2], s_frag[i]);
        }
        let (mut factors, mut grown, mut subtract_first) = ([1.0; 2], false, false);
        for row in 0..2 {
            let block_max = quad_max(block_max[row]);
            // False for a row that has seen no key: -inf - -inf is NaN. A NaN score is not seen here, but in the sum.
            if (block_max - self.max[row]) * self.scale_log2 > RESCALE_THRESHOLD {
                factors[row] = math::exp2((self.max[row] - block_max) * self.scale_log2);
                self.max[row] = block_max;
                self.sum[row] *= mutant!(SumNotRescaled, 1.0, factors[row]);
                grown = true;
            }
            self.shift[row] = self.finite_max(row) * self.scale_log2;
            subtract_first |= self.shift[row].abs() > FOLD_LIMIT;
        }
        if warp::any(subtract_first) {
            for i in 0..S {
                s_frag[i] -= self.finite_max(i / 2 % 2);
            }
            self.shift = [0.0; 2];
        }
        Rescale { factors, any: warp::any(grown) }
    }

    /// The scores `from .. to` become weights, `exp(scale * (s - max))`, and the sums grow by them.
    #[inline(always)]
    pub fn weigh<const S: usize>(&mut self, s_frag: &mut [f32; S], from: usize, to: usize) {
        for i in from..to {
            let row = i / 2 % 2;
            s_frag[i] = math::exp2(math::fma(s_frag[i], self.scale_log2, -self.shift[row]));
            self.sum[row] += s_frag[i];
        }
    }

    /// The rows' final factor on the output, `1 / sum`, and their log-sum-exp. A row without keys gets 0 and -inf.
    #[inline(always)]
    pub fn finish(self) -> ([f32; 2], [f32; 2]) {
        const LN_2: f32 = core::f32::consts::LN_2;
        let (mut factors, mut lse) = ([0.0; 2], [0.0; 2]);
        for row in 0..2 {
            let sum = quad_sum(self.sum[row]);
            factors[row] = if sum == 0.0 { 0.0 } else { math::reciprocal(sum) };
            lse[row] = (self.finite_max(row) * self.scale_log2 + math::log2(sum)) * LN_2;
        }
        (factors, lse)
    }

    /// The maximum, or 0 before the first key, so that a weight there is `exp2(-inf) = 0`.
    #[inline(always)]
    fn finite_max(&self, row: usize) -> f32 {
        if self.max[row] == f32::NEG_INFINITY { 0.0 } else { self.max[row] }
    }
}
