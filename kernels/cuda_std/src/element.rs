//! Element types of tensors.

use crate::memory::Scalar;

/// What Q, K, V and O are made of; arithmetic is in f32.
pub trait Element: Copy + 'static {
    /// The integer (or float) of the same size that loads and stores move.
    type Bits: Scalar;
    /// The value of these bits.
    fn to_f32(bits: Self::Bits) -> f32;
    /// The nearest value's bits, ties to even.
    fn from_f32(value: f32) -> Self::Bits;
    /// Four neighbours, as one instruction moves them.
    type Four: Scalar;
    /// The values of four neighbours.
    fn four_to_f32(bits: Self::Four) -> [f32; 4];
    /// The bits of four neighbours, each as [`from_f32`](Self::from_f32) makes them.
    fn four_from_f32(values: [f32; 4]) -> Self::Four;
}

/// A 16-bit element that tensor cores multiply; two of them travel in a `u32`, the first in the low half.
pub trait Half: Element<Bits = u16> {
    /// Whether this is bfloat16 (else binary16).
    const BF16: bool;
    /// Rounds two values to the type and packs them.
    fn pack(low: f32, high: f32) -> u32;
}

impl Element for f32 {
    type Bits = f32;
    #[inline(always)]
    fn to_f32(bits: f32) -> f32 {
        bits
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
    type Four = [f32; 4];
    #[inline(always)]
    fn four_to_f32(bits: [f32; 4]) -> [f32; 4] {
        bits
    }
    #[inline(always)]
    fn four_from_f32(values: [f32; 4]) -> [f32; 4] {
        values
    }
}

/// IEEE 754 binary16.
#[derive(Clone, Copy, Debug)]
pub struct F16;

/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

impl Element for F16 {
    type Bits = u16;
    #[inline(always)]
    fn to_f32(bits: u16) -> f32 {
        device!({
            let y: f32;
            unsafe { core::arch::asm!("cvt.f32.f16 {}, {};", out(reg32) y, in(reg16) bits, options(pure, nomem, nostack)) };
            y
        } else { host::f16_to_f32(bits) })
    }
    #[inline(always)]
    fn from_f32(value: f32) -> u16 {
        device!({
            let y: u16;
            unsafe { core::arch::asm!("cvt.rn.f16.f32 {}, {};", out(reg16) y, in(reg32) value, options(pure, nomem, nostack)) };
            y
        } else { host::f32_to_f16(value) })
    }
    type Four = [u32; 2];
    #[inline(always)]
    fn four_to_f32([low, high]: [u32; 2]) -> [f32; 4] {
        [low as u16, (low >> 16) as u16, high as u16, (high >> 16) as u16].map(Self::to_f32)
    }
    #[inline(always)]
    fn four_from_f32(values: [f32; 4]) -> [u32; 2] {
        [Self::pack(values[0], values[1]), Self::pack(values[2], values[3])]
    }
}

impl Element for Bf16 {
    type Bits = u16;
    #[inline(always)]
    fn to_f32(bits: u16) -> f32 {
        f32::from_bits((bits as u32) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> u16 {
        device!({
            let y: u16;
            unsafe { core::arch::asm!("cvt.rn.bf16.f32 {}, {};", out(reg16) y, in(reg32) value, options(pure, nomem, nostack)) };
            y
        } else { host::f32_to_bf16(value) })
    }
    type Four = [u32; 2];
    #[inline(always)]
    fn four_to_f32([low, high]: [u32; 2]) -> [f32; 4] {
        [low as u16, (low >> 16) as u16, high as u16, (high >> 16) as u16].map(Self::to_f32)
    }
    #[inline(always)]
    fn four_from_f32(values: [f32; 4]) -> [u32; 2] {
        [Self::pack(values[0], values[1]), Self::pack(values[2], values[3])]
    }
}

impl Half for F16 {
    const BF16: bool = false;
    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        device!({
            let y: u32;
            unsafe { core::arch::asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) y, in(reg32) high, in(reg32) low, options(pure, nomem, nostack)) };
            y
        } else { u32::from(host::f32_to_f16(low)) | u32::from(host::f32_to_f16(high)) << 16 })
    }
}

impl Half for Bf16 {
    const BF16: bool = true;
    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        device!({
            let y: u32;
            unsafe { core::arch::asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(reg32) y, in(reg32) high, in(reg32) low, options(pure, nomem, nostack)) };
            y
        } else { u32::from(host::f32_to_bf16(low)) | u32::from(host::f32_to_bf16(high)) << 16 })
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod host {
    //! The conversions by the `half` crate.
    pub fn f16_to_f32(bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }
    pub fn f32_to_f16(value: f32) -> u16 {
        crate::arithmetic();
        half::f16::from_f32(crate::used(value)).to_bits()
    }
    pub fn f32_to_bf16(value: f32) -> u16 {
        crate::arithmetic();
        half::bf16::from_f32(crate::used(value)).to_bits()
    }
}
