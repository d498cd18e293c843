//! Vectors of f32 behind one trait: what the tile needs of an instruction set, and the portable version of it.
//!
//! A value of a [`Simd`] type proves that the CPU has its instructions, so its methods are safe.

/// An instruction set.
pub(super) trait Simd: Copy {
    /// A vector of `LANES` f32.
    type Vector: Copy + Send;
    /// Lanes of a vector.
    const LANES: usize;
    /// Whether there are registers for 8 rows of 3 vectors of sums, not 4.
    const MANY_REGISTERS: bool = false;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::Vector;
    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b`.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / b`.
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once where the CPU can.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The larger of the two; `b` where either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `yes` where `a < b`, else `no`: `no` where either is NaN.
    fn select_less(
        self,
        a: Self::Vector,
        b: Self::Vector,
        yes: Self::Vector,
        no: Self::Vector,
    ) -> Self::Vector;
    /// The float whose exponent field is the low 8 bits of `a`'s pattern and whose fraction is 0.
    fn exponent_from_low_bits(self, a: Self::Vector) -> Self::Vector;

    /// The lanes of some vectors, in order.
    fn lanes<const C: usize>(vectors: &[[Self::Vector; C]]) -> &[f32] {
        // SAFETY: every implementation's vector is `LANES` f32 without padding, and aligned to at least 4.
        unsafe { std::slice::from_raw_parts(vectors.as_ptr().cast(), vectors.len() * C * Self::LANES) }
    }

    /// The lanes of some vectors, in order, to write.
    fn lanes_mut<const C: usize>(vectors: &mut [[Self::Vector; C]]) -> &mut [f32] {
        let len = vectors.len() * C * Self::LANES;
        // SAFETY: as in `lanes`; any f32 is a valid lane.
        unsafe { std::slice::from_raw_parts_mut(vectors.as_mut_ptr().cast(), len) }
    }
}

/// Plain arrays, for the compiler to make vectors of whatever the target has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Whether the target has a fused multiply-add without asking at run time; elsewhere it would be a library call.
const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

impl Simd for Portable {
    type Vector = [f32; 4];
    const LANES: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 4] {
        [x; 4]
    }

    #[inline(always)]
    fn add(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| a[n] + b[n])
    }

    #[inline(always)]
    fn sub(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| a[n] - b[n])
    }

    #[inline(always)]
    fn mul(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| a[n] * b[n])
    }

    #[inline(always)]
    fn div(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| a[n] / b[n])
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| if FUSED { a[n].mul_add(b[n], c[n]) } else { a[n] * b[n] + c[n] })
    }

    #[inline(always)]
    fn max(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| if a[n] > b[n] { a[n] } else { b[n] })
    }

    #[inline(always)]
    fn select_less(self, a: [f32; 4], b: [f32; 4], yes: [f32; 4], no: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|n| if a[n] < b[n] { yes[n] } else { no[n] })
    }

    #[inline(always)]
    fn exponent_from_low_bits(self, a: [f32; 4]) -> [f32; 4] {
        a.map(|x| f32::from_bits(x.to_bits() << 23))
    }
}
