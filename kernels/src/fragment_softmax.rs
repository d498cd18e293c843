//! Online softmax on a fragment's two rows: the running maximum, the running sum, and the factors between blocks.
//!
//! Instructions are chosen by what they take from the tensor cores, which share the register file with them: on an
//! H200 an addition or multiplication in f32 delays a product by 0.8 cycles, a comparison or an exponential by none,
//! but comparisons take 4 cycles instead of 2 while products run. docs/sm90.md has the measurements.

use crate::softmax::FOLD_LIMIT;
use crate::tile::fragment::{quad_max, quad_sum};
use cuda_std::mutant;
use cuda_std::wgmma::Accumulator;
use cuda_std::{math, warp};

/// The softmax state of the two rows of a lane (`m` and `l` of the paper). The maximum is the quad's, the sum this
/// lane's share.
#[derive(Clone, Copy, Debug)]
pub struct OnlineSoftmax {
    max: [f32; 2],
    sum: [f32; 2],
    /// The sum over the block in work.
    block_sum: [f32; 2],
    /// What the block in work takes off its scaled scores.
    shift: [f32; 2],
    /// `scale * log2 e`: weights are powers of two of `scale_log2 * (s - max)`.
    scale_log2: f32,
    /// How far, in powers of two, a row's scores may outgrow the maximum in use before everything is rescaled.
    threshold: f32,
    /// Whether the tile had lanes with negative scores only.
    signed: bool,
}

/// How a block's scores have changed the maxima.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// What becomes of everything computed with the old maxima, as powers of two, row by row.
    log2_factors: [f32; 2],
    /// Whether any first, any second row of the warp's lanes has a factor other than 1 on a sum that is not 0.
    any: [bool; 2],
}

/// Factors that the output so far is due.
#[derive(Clone, Copy, Debug)]
pub struct Rescale {
    /// Of the two rows; only of those that `any` names.
    factors: [f32; 2],
    /// Whether any first, any second row of the warp's lanes has a factor other than 1.
    any: [bool; 2],
}

impl Rescale {
    /// No factors.
    pub const NONE: Rescale = Rescale { factors: [1.0; 2], any: [false; 2] };

    /// Applies the factors to the output. Rows of which no lane has any are left alone.
    #[inline(always)]
    pub fn apply<const O: usize>(self, o_frag: &mut [f32; O]) {
        for row in 0..2 {
            if self.any[row] {
                for i in 0..O {
                    if i / 2 % 2 == row {
                        o_frag[i] *= mutant!(OutputNotRescaled, 1.0, self.factors[row]);
                    }
                }
            }
        }
    }
}

impl OnlineSoftmax {
    /// Nothing seen yet: the maximum is a real -inf.
    ///
    /// Any maximum gives the same result, but with the true one a row's largest weight is exactly 1 and has no rounding
    /// error. Against a `threshold` of 0, one of 0.5 costs 1.5 percent of accuracy and spares half of the rescaling; one
    /// of 8 costs 3 to 5 percent, and up to 17 where few keys have most of the weight.
    #[inline(always)]
    pub fn new(scale_log2: f32, threshold: f32) -> Self {
        OnlineSoftmax {
            max: [f32::NEG_INFINITY; 2],
            sum: [0.0; 2],
            block_sum: [0.0; 2],
            shift: [0.0; 2],
            scale_log2,
            threshold,
            signed: false,
        }
    }

    /// Looks at a block of scores, before [`weigh`](Self::weigh): the maxima grow as far as they must.
    ///
    /// `SIGNED` says to expect lanes with negative scores only, as a mask makes them. Without it, the first block that
    /// has such a lane is looked at twice, and the tile's later blocks as if with it.
    #[inline(always)]
    pub fn look_at<const SIGNED: bool, const S: usize>(&mut self, s_frag: &mut [f32; S]) -> Growth {
        let (mut block_max, mut far) = ([0.0; 2], false);
        let mut by_bits = !SIGNED && !self.signed;
        if by_bits {
            let mut unusual = false;
            for row in 0..2 {
                let lane_max = lane_max_by_bits(s_frag, row);
                block_max[row] = quad_max(lane_max);
                // By its bits a negative maximum may be wrong, which matters if the row might grow.
                unusual |= lane_max.is_sign_negative() && self.max[row] < 0.0;
                unusual |= self.is_far(row, lane_max);
            }
            by_bits = !warp::any(unusual);
            self.signed = !by_bits;
        }
        if !by_bits {
            let mut any_far = false;
            for row in 0..2 {
                let lane_max = lane_max(s_frag, row);
                block_max[row] = quad_max(lane_max);
                any_far |= self.is_far(row, lane_max);
            }
            far = warp::any(any_far);
        }

        let old = *self;
        let (mut log2_factors, mut grown) = ([0.0; 2], [false; 2]);
        for row in 0..2 {
            // False for a row that has seen no key: -inf - -inf is NaN. A NaN score is not seen here, but in the sum.
            grown[row] = (block_max[row] - old.max[row]) * self.scale_log2 > self.threshold;
            if grown[row] {
                self.max[row] = block_max[row];
            }
            self.shift[row] = self.folded_max(row);
            log2_factors[row] = old.folded_max(row) - self.shift[row];
        }
        if far {
            for i in 0..S {
                s_frag[i] -= self.finite_max(i / 2 % 2);
            }
            for row in 0..2 {
                log2_factors[row] = (old.max[row] - self.finite_max(row)) * self.scale_log2;
            }
            self.shift = [0.0; 2];
        }
        Growth { log2_factors, any: [warp::any(grown[0]), warp::any(grown[1])] }
    }

    /// The scores number `from .. to`, counted through the first row and then the second, become weights,
    /// `exp(scale * (s - max))`, and the block's sums grow by them.
    #[inline(always)]
    pub fn weigh<const S: usize>(&mut self, s_frag: &mut [f32; S], from: usize, to: usize) {
        // Row by row, so that the row's shift is read from the register file once for many weights.
        for n in from..to {
            let (row, n) = (n / (S / 2), n % (S / 2));
            let i = 4 * (n / 2) + 2 * row + n % 2;
            s_frag[i] = math::exp2(math::fma(s_frag[i], self.scale_log2, -self.shift[row]));
            self.block_sum[row] += s_frag[i];
        }
    }

    /// Waits for the output's products, brings the sums so far to the new maxima, and returns what the output is due.
    /// `at_once`, it gets that here.
    ///
    /// Where among the exponentials before and after it the wait really stands, is the assembler's choice: about 10 of
    /// 64 come before it, and the record of hot loops that build-ptx checks says so.
    ///
    /// # Safety
    /// As [`Accumulator::wait`].
    #[inline(always)]
    pub unsafe fn wait_and_rescale<const O: usize>(
        &mut self,
        growth: Growth,
        o_frag: &mut [f32; O],
        at_once: bool,
    ) -> Rescale
    where
        [f32; O]: Accumulator,
    {
        // The factors count only where `any` says so.
        let mut rescale = Rescale { factors: growth.log2_factors, any: growth.any };
        if growth.any[0] || growth.any[1] {
            for row in 0..2 {
                rescale.factors[row] = math::exp2(growth.log2_factors[row]);
                self.sum[row] *= mutant!(SumNotRescaled, 1.0, rescale.factors[row]);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { o_frag.wait::<0>() };
        if at_once {
            rescale.apply(o_frag);
        }
        rescale
    }

    /// Ends a block: its sums join those of the blocks before.
    #[inline(always)]
    pub fn add_block(&mut self) {
        for row in 0..2 {
            self.sum[row] += self.block_sum[row];
            self.block_sum[row] = 0.0;
        }
    }

    /// Whether the folded product of a row's maximum, as far as this lane knows it, is too inexact.
    #[inline(always)]
    fn is_far(&self, row: usize, lane_max: f32) -> bool {
        let reach = math::max(self.max[row], lane_max) * self.scale_log2;
        reach.abs() > FOLD_LIMIT && reach != f32::NEG_INFINITY
    }

    /// `max * scale_log2`; before the first key the lowest number, so that a weight there is `exp2(-inf) = 0`.
    #[inline(always)]
    fn folded_max(&self, row: usize) -> f32 {
        math::max(self.max[row] * self.scale_log2, f32::MIN)
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

/// The largest score of this lane in a row. Two chains, since each comparison waits for the one before.
#[inline(always)]
fn lane_max<const S: usize>(s_frag: &[f32; S], row: usize) -> f32 {
    let mut max = [s_frag[2 * row], s_frag[2 * row + 1]];
    for i in 4..S {
        if i / 2 % 2 == row {
            max[i % 2] = math::max(max[i % 2], s_frag[i]);
        }
    }
    math::max(max[0], max[1])
}

/// As [`lane_max`], if any of the scores is at least 0; otherwise one of them.
///
/// Floats that are not negative order as their bits do, and of integers one instruction compares three.
#[inline(always)]
fn lane_max_by_bits<const S: usize>(s_frag: &[f32; S], row: usize) -> f32 {
    let bits = |i: usize| s_frag[i].to_bits() as i32;
    let mut max = [bits(2 * row), bits(2 * row + 1)];
    for i in 4..S {
        if i / 2 % 2 == row {
            // Neighbours go to the same chain, so that they meet in one instruction.
            let chain = i / 4 % 2;
            max[chain] = max[chain].max(bits(i));
        }
    }
    f32::from_bits(max[0].max(max[1]) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ways_to_the_maximum_agree_where_they_should() {
        let mut state = 1u32;
        for round in 0..2000 {
            let s_frag: [f32; 32] = std::array::from_fn(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let x = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
                match (round % 4, state & 15) {
                    (1, 0..12) => f32::NEG_INFINITY,
                    (2, _) => -x.abs(),
                    (3, 0) => -0.0,
                    _ => x,
                }
            });
            for row in 0..2 {
                let of_row: Vec<f32> = (0..32).filter(|i| i / 2 % 2 == row).map(|i| s_frag[i]).collect();
                let largest = of_row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(lane_max(&s_frag, row), largest);
                let by_bits = lane_max_by_bits(&s_frag, row);
                if largest > 0.0 {
                    assert_eq!(by_bits, largest);
                } else {
                    assert!(
                        of_row.iter().any(|s| s.to_bits() == by_bits.to_bits()),
                        "{by_bits} is none of them"
                    );
                }
            }
        }
    }
}
