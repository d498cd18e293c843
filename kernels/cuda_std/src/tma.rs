//! The tensor memory accelerator: tiles of up to 5 dimensions between global and shared memory.

use crate::mbarrier::Mbarrier;
use crate::shared::SharedPtr;

/// The address of a kernel's first parameter, in generic space.
///
/// A `#[kernel]` function that declares it as its second argument gets it from the attribute; it is no parameter of
/// the compiled kernel. Tensor maps are read by the hardware from where they lie in the parameter.
#[derive(Clone, Copy)]
pub struct ParamAddress(pub u64);

/// A tensor map as the hardware reads it: 128 bytes, encoded by the driver, at an address aligned to 64.
#[derive(Clone, Copy)]
pub struct TensorMapPtr(u64);

impl ParamAddress {
    /// The tensor map that lies `offset` bytes into the parameter (`core::mem::offset_of!`).
    #[inline(always)]
    pub const fn tensor_map(self, offset: usize) -> TensorMapPtr {
        TensorMapPtr(self.0 + offset as u64)
    }
}

impl TensorMapPtr {
    /// Fetches the map into the cache of maps (`prefetch.tensormap`).
    #[inline(always)]
    pub fn prefetch(self) {
        device!({ unsafe { core::arch::asm!("prefetch.tensormap [{}];", in(reg64) self.0, options(nostack)) } }
            else { host!("tma::TensorMapPtr::prefetch", (self.0) => crate::sim::prefetch_map(self.0)) })
    }

    /// Starts the copy of one box at `coordinates` (innermost first) to `to`; its bytes count at `barrier`. What lies
    /// outside the tensor arrives as zeros (`cp.async.bulk.tensor.4d`).
    ///
    /// # Safety
    /// The map has 4 dimensions; `to` is aligned as its swizzle asks and holds a box that nothing else touches until
    /// the barrier's phase completes.
    #[inline(always)]
    pub unsafe fn load_4d(self, to: SharedPtr<u16>, coordinates: [i32; 4], barrier: Mbarrier) {
        device!({ unsafe { core::arch::asm!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}, {{{}, {}, {}, {}}}], [{}];",
            in(reg32) to.address(), in(reg64) self.0,
            in(reg32) coordinates[0], in(reg32) coordinates[1], in(reg32) coordinates[2], in(reg32) coordinates[3],
            in(reg32) barrier.0.address(), options(nostack)) } }
            else { host!("tma::TensorMapPtr::load_4d", (self.0, to, coordinates, barrier) => crate::sim::tma_load(self.0, to.address(), &coordinates, barrier.0.address(), None)) })
    }

    /// [`load_4d`](Self::load_4d) through a map of 5 dimensions (`cp.async.bulk.tensor.5d`).
    ///
    /// # Safety
    /// As for [`load_4d`](Self::load_4d), with 5 dimensions.
    #[inline(always)]
    pub unsafe fn load_5d(self, to: SharedPtr<u16>, coordinates: [i32; 5], barrier: Mbarrier) {
        device!({ unsafe { core::arch::asm!(
            "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}, {{{}, {}, {}, {}, {}}}], [{}];",
            in(reg32) to.address(), in(reg64) self.0,
            in(reg32) coordinates[0], in(reg32) coordinates[1], in(reg32) coordinates[2], in(reg32) coordinates[3],
            in(reg32) coordinates[4], in(reg32) barrier.0.address(), options(nostack)) } }
            else { host!("tma::TensorMapPtr::load_5d", (self.0, to, coordinates, barrier) => crate::sim::tma_load(self.0, to.address(), &coordinates, barrier.0.address(), None)) })
    }

    /// [`load_4d`](Self::load_4d) to the same place in every block of the cluster whose bit is set in `blocks`; each
    /// block's own barrier at the same place counts the bytes (`….multicast::cluster`).
    ///
    /// # Safety
    /// As for [`load_4d`](Self::load_4d), in every block named.
    #[inline(always)]
    pub unsafe fn load_4d_multicast(
        self,
        to: SharedPtr<u16>,
        coordinates: [i32; 4],
        barrier: Mbarrier,
        blocks: u16,
    ) {
        device!({ unsafe { core::arch::asm!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [{}], [{}, {{{}, {}, {}, {}}}], [{}], {};",
            in(reg32) to.address(), in(reg64) self.0,
            in(reg32) coordinates[0], in(reg32) coordinates[1], in(reg32) coordinates[2], in(reg32) coordinates[3],
            in(reg32) barrier.0.address(), in(reg16) blocks, options(nostack)) } }
            else { host!("tma::TensorMapPtr::load_4d_multicast", (self.0, to, coordinates, barrier, blocks) => crate::sim::tma_load(self.0, to.address(), &coordinates, barrier.0.address(), Some(blocks))) })
    }
}
