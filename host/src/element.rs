//! The element types of Q, K, V and O on the host.

use crate::problem::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// An element type of Q, K, V and O. Arithmetic happens in f32 or f64, never in the type itself.
///
/// ```
/// use flash_attention::{DType, Element};
/// use half::bf16;
/// assert_eq!(bf16::DTYPE, DType::Bf16);
/// // The nearest bf16 of 1.01; every bf16 is an f32.
/// assert_eq!(bf16::from_f32(1.01).to_f32(), 1.0078125);
/// ```
pub trait Element: Copy + Default + Send + Sync + PartialEq + std::fmt::Debug + 'static {
    /// The type's name in a [`Problem`](crate::Problem).
    const DTYPE: DType;

    /// The value, exactly.
    fn to_f32(self) -> f32;

    /// The nearest value of the type, ties to even; beyond its range infinity, NaN stays NaN.
    fn from_f32(x: f32) -> Self;

    /// [`Self::to_f32`] of each element.
    ///
    /// # Panics
    /// Where the lengths differ.
    fn widen(from: &[Self], to: &mut [f32]) {
        assert_eq!(from.len(), to.len());
        to.iter_mut().zip(from).for_each(|(to, &x)| *to = x.to_f32());
    }

    /// [`Self::from_f32`] of each value.
    ///
    /// # Panics
    /// Where the lengths differ.
    fn narrow(from: &[f32], to: &mut [Self]) {
        assert_eq!(from.len(), to.len());
        to.iter_mut().zip(from).for_each(|(to, &x)| *to = Self::from_f32(x));
    }
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(x: f32) -> Self {
        x
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;

    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    fn from_f32(x: f32) -> Self {
        f16::from_f32(x)
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;

    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
}
