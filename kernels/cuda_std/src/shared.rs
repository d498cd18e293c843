//! Views of shared memory.

use crate::memory::Scalar;
use core::marker::PhantomData;

/// A typed address in the block's shared memory; offsets are counted in elements.
#[repr(transparent)]
pub struct SharedPtr<T> {
    address: u32,
    of: PhantomData<*mut T>,
}

impl<T> Clone for SharedPtr<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedPtr<T> {}

impl<T: Scalar> SharedPtr<T> {
    /// The view of what lies at a shared-memory address (`.shared` window, not generic).
    #[inline(always)]
    pub const fn new(address: u32) -> Self {
        SharedPtr { address, of: PhantomData }
    }

    /// The address itself.
    #[inline(always)]
    pub const fn address(self) -> u32 {
        self.address
    }

    /// The view `elements` further on.
    #[inline(always)]
    pub const fn offset(self, elements: u32) -> Self {
        Self::new(self.address + elements * size_of::<T>() as u32)
    }

    /// The same address, read and written in units of `U`.
    #[inline(always)]
    pub const fn cast<U: Scalar>(self) -> SharedPtr<U> {
        SharedPtr { address: self.address, of: PhantomData }
    }

    /// Reads element `index` (`ld.shared`).
    ///
    /// # Safety
    /// The element lies in the block's shared memory, is aligned and initialised, and no thread writes it unordered.
    #[inline(always)]
    pub unsafe fn load(self, index: u32) -> T {
        // SAFETY: as the caller promises.
        unsafe { T::load_shared(self.offset(index).address) }
    }

    /// Writes element `index` (`st.shared`).
    ///
    /// # Safety
    /// The element lies in the block's shared memory, is aligned, and no other thread touches it unordered.
    #[inline(always)]
    pub unsafe fn store(self, index: u32, value: T) {
        // SAFETY: as the caller promises.
        unsafe { T::store_shared(self.offset(index).address, value) }
    }
}

#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 1024 .b8 dynamic_shared[];");

/// The block's dynamic shared memory, aligned to 1024 bytes; its size is the launch's.
#[inline(always)]
pub fn dynamic_shared_mem<T: Scalar>() -> SharedPtr<T> {
    device!({
        let address: u32;
        unsafe { core::arch::asm!("mov.u32 {}, dynamic_shared;", out(reg32) address, options(pure, nomem, nostack)) };
        SharedPtr::new(address)
    } else { host!("shared::dynamic_shared_mem", () => SharedPtr::new(crate::sim::dynamic_shared_mem())) })
}
