//! Online softmax whose exponentials are taken a few at a time, between the products that consume them.
//!
//! Weights are powers of two, `2^(s c - R)` with `c = scale log2 e` and a row's reference `R`, near `c` times a
//! maximum that the row once had. `R` is raised only when a score outgrows it by `RESCALE_THRESHOLD`, so almost
//! every block of keys is spared the exchange of maxima between lanes and the rescaling of the output. Whatever `R` is,
//! the result is the same, as long as every weight and factor uses the same one.

use crate::softmax::FOLD_LIMIT;
use crate::tile::fragment::{quad_max, quad_sum};
use cuda_std::mutant;
use cuda_std::{math, warp};

/// How far, in powers of two, a row's scores may outgrow its reference: weights up to 2^8 are far from f16's limit.
const RESCALE_THRESHOLD: f32 = 8.0;

/// `R` as `high + low`: rounded, and what the rounding lost where that would matter.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reference {
    high: f32,
    low: f32,
}

impl Reference {
    /// The reference of a row with this maximum; 0 before the first key, so that a weight there is `2^-inf = 0`.
    #[inline(always)]
    fn new(max: f32, scale_log2: f32) -> Self {
        let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let high = max * scale_log2;
        let low = if high.abs() > FOLD_LIMIT { math::fma(max, scale_log2, -high) } else { 0.0 };
        Reference { high, low }
    }
}

/// The state of a lane's rows: two in each of `TILES` tiles of 16 rows.
#[derive(Clone, Copy, Debug)]
pub struct StreamedSoftmax<const TILES: usize> {
    scale_log2: f32,
    /// The maxima that the references stand for; a real -inf before the first key.
    max: [[f32; 2]; TILES],
    /// This lane's share of the sums of weights.
    sum: [[f32; 2]; TILES],
    /// Whether the exponents of this warp are too large to be made in one step.
    large: bool,
}

impl<const TILES: usize> StreamedSoftmax<TILES> {
    /// Nothing seen yet; weights will be `2^(scale_log2 * s)`, relative to the maximum.
    #[inline(always)]
    pub fn new(scale_log2: f32) -> Self {
        StreamedSoftmax {
            scale_log2,
            max: [[f32::NEG_INFINITY; 2]; TILES],
            sum: [[0.0; 2]; TILES],
            large: false,
        }
    }

    /// Looks at a block's scores before their weights are asked for; `o_frag` is rescaled where a score outgrows its
    /// row's reference.
    #[inline(always)]
    pub fn admit<const S: usize, const O: usize>(
        &mut self,
        s_frag: &mut [[f32; S]; TILES],
        o_frag: &mut [[f32; O]; TILES],
    ) {
        let mut block_max = [[f32::NEG_INFINITY; 2]; TILES];
        let mut outgrown = false;
        for m in 0..TILES {
            for row in 0..2 {
                block_max[m][row] = row_max(&s_frag[m], row);
                outgrown |= self.outgrows(block_max[m][row], m, row);
            }
        }
        if warp::any(outgrown) {
            self.rescale(&block_max, o_frag);
        }
        if self.large {
            for m in 0..TILES {
                let reference = [self.reference(m, 0), self.reference(m, 1)];
                for i in 0..S {
                    let Reference { high, low } = reference[i / 2 % 2];
                    s_frag[m][i] = math::fma(s_frag[m][i], self.scale_log2, -high) - low;
                }
            }
        }
    }

    /// How the weights of the block just admitted are made. Not part of the state: registers are scarcest where the
    /// scores are computed, and these few are cheap to make again.
    #[inline(always)]
    pub fn exponents(&self) -> Exponents<TILES> {
        let mut exponents =
            Exponents { factor: if self.large { 1.0 } else { self.scale_log2 }, shift: [[0.0; 2]; TILES] };
        for m in 0..TILES {
            for row in 0..2 {
                exponents.shift[m][row] = if self.large { 0.0 } else { self.reference(m, row).high };
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
        let Reference { high, low } = self.reference(m, row);
        let lse = (high + (low + math::log2(sum))) * core::f32::consts::LN_2;
        (if sum == 0.0 { 0.0 } else { math::reciprocal(sum) }, lse)
    }

    #[inline(always)]
    fn reference(&self, m: usize, row: usize) -> Reference {
        Reference::new(self.max[m][row], self.scale_log2)
    }

    /// False for a row that has still seen no key (-inf - -inf is NaN), and for NaN.
    #[inline(always)]
    fn outgrows(&self, max: f32, m: usize, row: usize) -> bool {
        (max - self.max[m][row]) * self.scale_log2 > RESCALE_THRESHOLD
    }

    /// Raises the references of the rows that need it, and of no other row: what a row's result is made of does not
    /// depend on the rows beside it.
    #[inline(always)]
    fn rescale<const O: usize>(&mut self, block_max: &[[f32; 2]; TILES], o_frag: &mut [[f32; O]; TILES]) {
        let mut large = false;
        for m in 0..TILES {
            let mut factors = [1.0; 2];
            for row in 0..2 {
                let max = quad_max(block_max[m][row]);
                let before = self.reference(m, row);
                if self.outgrows(max, m, row) {
                    let after = Reference::new(max, self.scale_log2);
                    let fresh = self.max[m][row] == f32::NEG_INFINITY;
                    let change = (before.high - after.high) + (before.low - after.low);
                    factors[row] = if fresh { 0.0 } else { math::exp2(change) };
                    self.max[m][row] = max;
                    self.sum[m][row] *= mutant!(SumNotRescaled, 1.0, factors[row]);
                }
                large |= self.reference(m, row).high.abs() > FOLD_LIMIT;
            }
            for i in 0..O {
                o_frag[m][i] *= mutant!(OutputNotRescaled, 1.0, factors[i / 2 % 2]);
            }
        }
        self.large = warp::any(large);
    }
}

/// What turns a block's admitted scores into weights: `2^(s * factor - shift)`.
#[derive(Clone, Copy, Debug)]
pub struct Exponents<const TILES: usize> {
    factor: f32,
    shift: [[f32; 2]; TILES],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_exact_where_rounding_would_show() {
        const SCALE: f32 = 0.127_517_44;
        for max in (0..400).map(|n| 1.1f32.powi(n - 100)).flat_map(|max| [0.0, max, -max]) {
            let Reference { high, low } = Reference::new(max, SCALE);
            let exact = f64::from(max) * f64::from(SCALE);
            let error = (f64::from(high) + f64::from(low) - exact).abs();
            let limit = if exact.abs() > f64::from(FOLD_LIMIT) { 0.0 } else { f64::exp2(-13.0) };
            assert!(error <= limit, "{max}: {error}");
        }
        assert_eq!(Reference::new(f32::NEG_INFINITY, 0.1), Reference { high: 0.0, low: 0.0 });
    }
}
