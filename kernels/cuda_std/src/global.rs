//! Views of global memory.

use crate::memory::Scalar;
use core::marker::PhantomData;

/// A typed address in global memory; offsets are counted in elements, in 64 bits.
#[repr(transparent)]
pub struct GlobalPtr<T> {
    address: u64,
    of: PhantomData<*mut T>,
}

impl<T> Clone for GlobalPtr<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GlobalPtr<T> {}

impl<T: Scalar> GlobalPtr<T> {
    /// The view of what lies at a device address.
    #[inline(always)]
    pub const fn new(address: u64) -> Self {
        GlobalPtr { address, of: PhantomData }
    }

    /// The address itself.
    #[inline(always)]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Whether the address is 0, which stands for an absent tensor.
    #[inline(always)]
    pub const fn is_null(self) -> bool {
        self.address == 0
    }

    /// The view `elements` further on.
    #[inline(always)]
    pub const fn offset(self, elements: i64) -> Self {
        Self::new(self.address.wrapping_add((elements as u64).wrapping_mul(size_of::<T>() as u64)))
    }

    /// The same address, read and written in units of `U`.
    #[inline(always)]
    pub const fn cast<U: Scalar>(self) -> GlobalPtr<U> {
        GlobalPtr { address: self.address, of: PhantomData }
    }

    /// Reads element `index` (`ld.global`).
    ///
    /// # Safety
    /// The element lies in memory that was given to the kernel, is aligned and initialised.
    #[inline(always)]
    pub unsafe fn load(self, index: i64) -> T {
        // SAFETY: as the caller promises.
        unsafe { T::load_global(self.offset(index).address) }
    }

    /// Writes element `index` (`st.global`).
    ///
    /// # Safety
    /// The element lies in memory that was given to the kernel for writing, is aligned, and no other thread touches
    /// it unordered.
    #[inline(always)]
    pub unsafe fn store(self, index: i64, value: T) {
        // SAFETY: as the caller promises.
        unsafe { T::store_global(self.offset(index).address, value) }
    }
}
