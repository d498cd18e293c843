//! Online softmax: the weights of one block of keys after the other, relative to the largest score so far.
//!
//! With `s` the unscaled score and `c = scale * log2 e`, a weight is `2^((s - max) * c)`. Subtracting before scaling
//! keeps the exponent of the largest score exactly 0 however large the scores are.

use crate::tile::register_tile::{RegisterTile, RowVector};
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::{math, warp};

/// How large `|max * scale * log2 e|` may be for the half types' kernels to take it off inside one fma.
///
/// Rounded to f32 it is off by 2^-13 at most, and each weight of the row by 2^-13.5 of itself. The sum has the same
/// factor, but the weights are rounded to the element type before they meet the values: a largest weight that ought to
/// be 1 must still round to 1, for which it may be off by 2^-12 in f16 and by 2^-9 in bf16.
pub(crate) const FOLD_LIMIT: f32 = 4096.0;

/// Running maximum `m` and sum `l` of a thread's rows. The threads that share a row all know its maximum; each has
/// summed its own columns only, until [`finish`](OnlineSoftmax::finish).
#[derive(Clone, Copy, Debug)]
pub struct OnlineSoftmax<const ROWS: usize> {
    max: RowVector<ROWS>,
    sum: RowVector<ROWS>,
    scale_log2: f32,
    threads_of_row: u32,
}

impl<const ROWS: usize> OnlineSoftmax<ROWS> {
    /// The state before the first key. `threads_of_row` neighbouring threads, a power of two up to 32, share each row.
    #[inline(always)]
    pub fn new(scale: f32, threads_of_row: u32) -> Self {
        OnlineSoftmax {
            max: [f32::NEG_INFINITY; ROWS],
            sum: [0.0; ROWS],
            scale_log2: scale * LOG2_E,
            threads_of_row,
        }
    }

    /// Turns the scores of a block into weights and admits them to `m` and `l`. What was summed up with the old
    /// maximum, the output included, has to be multiplied by the result.
    #[inline(always)]
    pub fn update<const COLUMNS: usize>(
        &mut self,
        s_frag: &mut RegisterTile<ROWS, COLUMNS>,
    ) -> RowVector<ROWS> {
        let mut correction = [0.0; ROWS];
        for (i, scores) in s_frag.0.iter_mut().enumerate() {
            let block_max = scores.iter().fold(f32::NEG_INFINITY, |max, &s| math::max(max, s));
            let max = math::max(self.max[i], reduce(block_max, self.threads_of_row, math::max));
            let reference = reference(max);
            correction[i] = self.weight(self.max[i], reference);
            self.max[i] = max;
            self.sum[i] *= correction[i];
            for s in scores {
                *s = self.weight(*s, reference);
                self.sum[i] += *s;
            }
        }
        correction
    }

    /// A row's final factor `1 / l` on the output, and its log-sum-exp; 0 and -inf for a row without keys.
    #[inline(always)]
    pub fn finish(&self, row: usize) -> (f32, f32) {
        let sum = reduce(self.sum[row], self.threads_of_row, |a, b| a + b);
        // No stand-in is needed here: without keys both terms are -inf.
        let lse = (self.max[row] * self.scale_log2 + math::log2(sum)) * LN_2;
        (if sum == 0.0 { 0.0 } else { math::reciprocal(sum) }, lse)
    }

    /// The weight of a score of `row`, which was admitted, before the factor of [`finish`](Self::finish).
    #[inline(always)]
    pub fn weight_in_row(&self, row: usize, s: f32) -> f32 {
        self.weight(s, reference(self.max[row]))
    }

    #[inline(always)]
    fn weight(&self, s: f32, reference: f32) -> f32 {
        math::exp2((s - reference) * self.scale_log2)
    }
}

/// What scores are compared with: the maximum, or 0 where no key was seen yet, so that -inf - -inf never arises and
/// masked scores weigh `2^-inf = 0`. A NaN score is no maximum, but makes its own weight NaN.
#[inline(always)]
pub(crate) fn reference(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Combines `value` over `threads` neighbouring threads, a power of two; all of them get the same bits.
#[inline(always)]
pub(crate) fn reduce(value: f32, threads: u32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut combined = value;
    let mut distance = 1;
    while distance < threads {
        combined = combine(combined, warp::shuffle_xor_f32(combined, distance));
        distance *= 2;
    }
    combined
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One thread, one row, blocks of two keys with values; the row's output and log-sum-exp.
    fn attend(scale: f32, blocks: &[[(f32, f64); 2]]) -> (f64, f32) {
        let mut softmax = OnlineSoftmax::<1>::new(scale, 1);
        let mut o = 0.0;
        for block in blocks {
            let mut s_frag = RegisterTile([block.map(|(s, _)| s)]);
            let [correction] = softmax.update(&mut s_frag);
            o *= f64::from(correction);
            for (p, (_, v)) in s_frag.0[0].iter().zip(block) {
                o += f64::from(*p) * v;
            }
        }
        let (factor, lse) = softmax.finish(0);
        (o * f64::from(factor), lse)
    }

    const MASKED: (f32, f64) = (f32::NEG_INFINITY, 7.0);

    #[test]
    fn agrees_with_softmax_in_one_go() {
        let keys = [(0.3, 1.0), (-2.5, 2.0), (4.0, -1.0), (3.9, 0.5), (-9.0, 8.0), (4.2, 3.0)];
        let blocks: Vec<[_; 2]> = keys.chunks(2).map(|pair| [pair[0], pair[1]]).collect();
        let (o, lse) = attend(0.7, &blocks);
        let weights: Vec<f64> = keys.iter().map(|&(s, _)| (0.7 * f64::from(s)).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let expected = keys.iter().zip(&weights).map(|((_, v), w)| v * w).sum::<f64>() / sum;
        assert!((o - expected).abs() < 1e-6, "{o} {expected}");
        assert!((f64::from(lse) - sum.ln()).abs() < 1e-6, "{lse} {}", sum.ln());
    }

    #[test]
    fn rows_without_keys_are_empty_and_late_first_keys_count() {
        assert_eq!(attend(0.5, &[]), (0.0, f32::NEG_INFINITY));
        assert_eq!(attend(0.5, &[[MASKED; 2]; 3]), (0.0, f32::NEG_INFINITY));
        let (o, lse) = attend(0.5, &[[MASKED; 2], [MASKED, (-6.0, 2.0)], [MASKED; 2]]);
        assert_eq!((o, lse), (2.0, -3.0));
    }

    #[test]
    fn enormous_scores_stay_finite() {
        let (o, lse) = attend(0.125, &[[(-1e30, 1.0), (-2e30, 9.0)], [(8e30, 3.0), (8e30, 5.0)]]);
        assert_eq!(o, 4.0);
        assert!((lse / 1e30 - 1.0).abs() < 1e-6, "{lse}");
        assert_eq!(attend(0.125, &[[(-8e30, 5.0), MASKED]]).0, 5.0);
    }

    #[test]
    fn a_nan_score_makes_its_row_nan() {
        let nan = (f32::NAN, 1.0);
        for blocks in [
            vec![[nan, MASKED]],
            vec![[nan, (1.0, 1.0)], [(2.0, 1.0), MASKED]],
            vec![[(1.0, 1.0), MASKED], [nan, nan]],
        ] {
            let (o, lse) = attend(1.0, &blocks);
            assert!(o.is_nan() && lse.is_nan(), "{o} {lse} for {blocks:?}");
        }
    }
}
