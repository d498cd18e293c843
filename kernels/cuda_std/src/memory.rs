//! What one load or store instruction can move.

/// A value that global and shared memory hold, moved by one instruction.
///
/// # Safety
/// Implemented here only, for plain data without padding.
pub unsafe trait Scalar: Copy + 'static {
    /// `ld.global`.
    ///
    /// # Safety
    /// `address` is a valid, aligned device address of an initialised value.
    unsafe fn load_global(address: u64) -> Self;
    /// `st.global`.
    ///
    /// # Safety
    /// `address` is a valid, aligned device address that no other thread touches unordered.
    unsafe fn store_global(address: u64, value: Self);
    /// `ld.shared`.
    ///
    /// # Safety
    /// `address` is a valid, aligned shared address of an initialised value.
    unsafe fn load_shared(address: u32) -> Self;
    /// `st.shared`.
    ///
    /// # Safety
    /// `address` is a valid, aligned shared address that no other thread touches unordered.
    unsafe fn store_shared(address: u32, value: Self);
}

macro_rules! scalar {
    ($type:ty, $class:ident, [$($i:tt),*], $load:literal, $store:literal, $parts:ident => $build:expr) => {
        // SAFETY: plain data, moved by one instruction of its own size.
        unsafe impl Scalar for $type {
            #[inline(always)]
            unsafe fn load_global(address: u64) -> Self {
                device!({ scalar!(@load "ld.global", $load, reg64, address, $class, [$($i),*], $parts => $build) }
                    else { host!("global::GlobalPtr::load", (address) => crate::sim::load_global(address)) })
            }
            #[inline(always)]
            unsafe fn store_global(address: u64, value: Self) {
                device!({ scalar!(@store "st.global", $store, reg64, address, value, $class, [$($i),*]) }
                    else { host!("global::GlobalPtr::store", (address, value) => crate::sim::store_global(address, value)) })
            }
            #[inline(always)]
            unsafe fn load_shared(address: u32) -> Self {
                device!({ scalar!(@load "ld.shared", $load, reg32, address, $class, [$($i),*], $parts => $build) }
                    else { host!("shared::SharedPtr::load", (address) => crate::sim::load_shared(address)) })
            }
            #[inline(always)]
            unsafe fn store_shared(address: u32, value: Self) {
                device!({ scalar!(@store "st.shared", $store, reg32, address, value, $class, [$($i),*]) }
                    else { host!("shared::SharedPtr::store", (address, value) => crate::sim::store_shared(address, value)) })
            }
        }
    };
    (@load $space:literal, $text:literal, $areg:ident, $address:ident, $class:ident, [0], $parts:ident => $build:expr) => {{
        let $parts;
        unsafe { core::arch::asm!(concat!($space, $text), out($class) $parts, in($areg) $address, options(nostack, preserves_flags)) };
        $build
    }};
    (@load $space:literal, $text:literal, $areg:ident, $address:ident, $class:ident, [0, 1], $parts:ident => $build:expr) => {{
        let ($parts, b);
        unsafe { core::arch::asm!(concat!($space, $text), out($class) $parts, out($class) b, in($areg) $address, options(nostack, preserves_flags)) };
        [$parts, b]
    }};
    (@load $space:literal, $text:literal, $areg:ident, $address:ident, $class:ident, [0, 1, 2, 3], $parts:ident => $build:expr) => {{
        let ($parts, b, c, d);
        unsafe { core::arch::asm!(concat!($space, $text), out($class) $parts, out($class) b, out($class) c, out($class) d,
            in($areg) $address, options(nostack, preserves_flags)) };
        [$parts, b, c, d]
    }};
    (@store $space:literal, $text:literal, $areg:ident, $address:ident, $value:ident, $class:ident, [0]) => {
        unsafe { core::arch::asm!(concat!($space, $text), in($areg) $address, in($class) $value, options(nostack, preserves_flags)) }
    };
    (@store $space:literal, $text:literal, $areg:ident, $address:ident, $value:ident, $class:ident, [$($i:tt),*]) => {
        unsafe { core::arch::asm!(concat!($space, $text), in($areg) $address, $(in($class) $value[$i],)* options(nostack, preserves_flags)) }
    };
}

scalar!(u16, reg16, [0], ".b16 {}, [{}];", ".b16 [{}], {};", a => a);
scalar!(u32, reg32, [0], ".b32 {}, [{}];", ".b32 [{}], {};", a => a);
scalar!(i32, reg32, [0], ".b32 {}, [{}];", ".b32 [{}], {};", a => a);
scalar!(f32, reg32, [0], ".b32 {}, [{}];", ".b32 [{}], {};", a => a);
scalar!(u64, reg64, [0], ".b64 {}, [{}];", ".b64 [{}], {};", a => a);
scalar!([u32; 2], reg32, [0, 1], ".v2.b32 {{{}, {}}}, [{}];", ".v2.b32 [{}], {{{}, {}}};", a => a);
scalar!([f32; 2], reg32, [0, 1], ".v2.b32 {{{}, {}}}, [{}];", ".v2.b32 [{}], {{{}, {}}};", a => a);
scalar!([u32; 4], reg32, [0, 1, 2, 3], ".v4.b32 {{{}, {}, {}, {}}}, [{}];", ".v4.b32 [{}], {{{}, {}, {}, {}}};", a => a);
scalar!([f32; 4], reg32, [0, 1, 2, 3], ".v4.b32 {{{}, {}, {}, {}}}, [{}];", ".v4.b32 [{}], {{{}, {}, {}, {}}};", a => a);
