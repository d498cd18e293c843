//! The two transcendental functions of the softmax, on vectors. Coefficients interpolate at Chebyshev nodes.

use super::simd::Simd;

/// `exp(x)` for `x <= 0` within about one unit in the last place; 0 where the result would be subnormal, so exactly 0
/// for `-inf`. NaN stays NaN.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    /// `ln(2^-126)`, rounded up.
    const SMALLEST: f32 = -87.336_54;
    /// A sum with it is rounded to an integer, which then stands in the low bits, biased as an exponent is.
    const ROUND: f32 = 12_582_912.0 + 127.0;
    /// ln 2 in two parts; the first has so few bits that its product with any exponent is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let c = |x: f32| simd.splat(x);
    let shifted = simd.mul_add(x, c(std::f32::consts::LOG2_E), c(ROUND));
    let n = simd.sub(shifted, c(ROUND));
    let r = simd.mul_add(n, c(-LN_2_HIGH), x);
    let r = simd.mul_add(n, c(-LN_2_LOW), r);
    let mut p = c(1.392_620_3e-3);
    for coefficient in [8.363_195e-3, 4.166_655_4e-2, 1.666_657_7e-1, 0.5, 1.0, 1.0] {
        p = simd.mul_add(p, r, c(coefficient));
    }
    // A product, not an addition of exponents: NaN must stay NaN whatever its payload.
    let y = simd.mul(p, simd.exponent_from_low_bits(shifted));
    simd.select_less(x, c(SMALLEST), c(0.0), y)
}

/// `tanh(x)` within a few units in the last place. NaN stays NaN.
#[inline(always)]
pub(super) fn tanh<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    /// Up to here the polynomial; beyond, `1 - 2/(exp(2|x|) + 1)` loses nothing by cancellation.
    const POLYNOMIAL_TO: f32 = 0.625;

    let c = |x: f32| simd.splat(x);
    let size = simd.max(x, simd.sub(c(0.0), x));
    let e = exp(simd, simd.mul(size, c(-2.0)));
    let far = simd.div(simd.sub(c(1.0), e), simd.add(c(1.0), e));
    let far = simd.select_less(x, c(0.0), simd.sub(c(0.0), far), far);

    let z = simd.mul(x, x);
    let mut p = c(-6.096_714e-3);
    for coefficient in [2.099_718e-2, -5.385_091e-2, 1.333_277e-1, -3.333_333e-1] {
        p = simd.mul_add(p, z, c(coefficient));
    }
    let near = simd.mul_add(simd.mul(p, z), x, x);
    simd.select_less(size, c(POLYNOMIAL_TO), near, far)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::dispatch::{Task, each_instruction_set};

    struct Worst {
        of: fn(f32) -> (f32, f64),
        by_tanh: bool,
    }

    impl Task for Worst {
        type Output = f64;

        fn run<S: Simd>(self, simd: S) -> f64 {
            let mut worst = 0.0f64;
            for n in 0..200_000 {
                let (x, expected) = (self.of)(n as f32 / 200_000.0);
                let vector = [[simd.splat(x)]];
                let y = if self.by_tanh { tanh(simd, vector[0][0]) } else { exp(simd, vector[0][0]) };
                let found = f64::from(S::lanes(&[[y]])[0]);
                let unit = expected.abs().max(f64::from(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON);
                worst = worst.max((found - expected).abs() / unit);
            }
            worst
        }
    }

    #[test]
    fn exp_is_within_a_unit_in_the_last_place() {
        for worst in each_instruction_set(|| Worst {
            of: |t| (-87.0 * t * t, f64::from(-87.0 * t * t).exp()),
            by_tanh: false,
        }) {
            assert!(worst < 1.0, "{worst}");
        }
    }

    #[test]
    fn tanh_is_within_a_few_units_in_the_last_place() {
        for worst in each_instruction_set(|| Worst {
            of: |t| (20.0 * t * t - 10.0 * t, f64::from(20.0 * t * t - 10.0 * t).tanh()),
            by_tanh: true,
        }) {
            assert!(worst < 3.0, "{worst}");
        }
    }

    struct Special(f32, bool);

    impl Task for Special {
        type Output = f32;

        fn run<S: Simd>(self, simd: S) -> f32 {
            let x = simd.splat(self.0);
            S::lanes(&[[if self.1 { tanh(simd, x) } else { exp(simd, x) }]])[0]
        }
    }

    #[test]
    fn special_values_keep_their_meaning() {
        let at = |x: f32, by_tanh: bool| each_instruction_set(|| Special(x, by_tanh));
        for payload in [0, 1, 0x1234, 0x3f_ffff] {
            for sign in [0, 1 << 31] {
                let nan = f32::from_bits(0x7fc0_0000 | payload | sign);
                assert!(at(nan, false).iter().chain(&at(nan, true)).all(|y| y.is_nan()), "{payload:x}");
            }
        }
        for (x, y) in [(0.0, 1.0), (-0.0, 1.0), (-87.4, 0.0), (-1e30, 0.0), (f32::MIN, 0.0)] {
            assert!(at(x, false).iter().all(|&found| found == y), "exp({x})");
        }
        assert!(at(f32::NEG_INFINITY, false).iter().all(|&y| y == 0.0));
        for (x, y) in
            [(0.0, 0.0), (1e30, 1.0), (-1e30, -1.0), (f32::INFINITY, 1.0), (f32::NEG_INFINITY, -1.0)]
        {
            assert!(at(x, true).iter().all(|&found| found == y), "tanh({x})");
        }
    }
}
