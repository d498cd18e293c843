//! What decides how registers are used.

/// The same value, of which the compiler knows nothing: what is computed from it is computed after this point, not
/// moved in front of a loop and held in registers all the way (an empty `mov`).
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    device!({
        let same: u32;
        unsafe { core::arch::asm!("mov.b32 {}, {};", out(reg32) same, in(reg32) value, options(nostack, preserves_flags)) };
        same
    } else { value })
}

/// [`opaque`] of an address.
#[inline(always)]
pub fn opaque_address(address: u64) -> u64 {
    device!({
        let same: u64;
        unsafe { core::arch::asm!("mov.b64 {}, {};", out(reg64) same, in(reg64) address, options(nostack, preserves_flags)) };
        same
    } else { address })
}
