//! Arithmetic that core does not have on the device.

/// 2 to the power of `x`, within 2 ulp; subnormal results become 0 (`ex2.approx.ftz.f32`). `-inf` gives 0.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    device!({
        let y: f32;
        unsafe { core::arch::asm!("ex2.approx.ftz.f32 {}, {};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) };
        y
    } else {
        crate::arithmetic();
        crate::used(x).exp2()
    })
}

/// Base-2 logarithm (`lg2.approx.ftz.f32`): absolute error 2^-22 in 0.5..2, 2 ulp elsewhere. 0 gives `-inf`.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    device!({
        let y: f32;
        unsafe { core::arch::asm!("lg2.approx.ftz.f32 {}, {};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) };
        y
    } else {
        crate::arithmetic();
        crate::used(x).log2()
    })
}

/// `a * b + c`, rounded once (`fma.rn.f32`).
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    device!({
        let y: f32;
        unsafe { core::arch::asm!("fma.rn.f32 {}, {}, {}, {};", out(reg32) y, in(reg32) a, in(reg32) b, in(reg32) c, options(pure, nomem, nostack)) };
        y
    } else {
        crate::arithmetic();
        crate::used(a).mul_add(crate::used(b), crate::used(c))
    })
}

/// `1 / x`, within 1 ulp (`rcp.approx.ftz.f32`).
#[inline(always)]
pub fn reciprocal(x: f32) -> f32 {
    device!({
        let y: f32;
        unsafe { core::arch::asm!("rcp.approx.ftz.f32 {}, {};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack)) };
        y
    } else {
        crate::arithmetic();
        1.0 / crate::used(x)
    })
}

/// The larger; of a number and a NaN, the number (`max.f32`).
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    device!({
        let y: f32;
        unsafe { core::arch::asm!("max.f32 {}, {}, {};", out(reg32) y, in(reg32) a, in(reg32) b, options(pure, nomem, nostack)) };
        y
    } else {
        crate::arithmetic();
        crate::used(a).max(crate::used(b))
    })
}
