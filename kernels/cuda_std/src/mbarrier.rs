//! Barriers in shared memory that count arrivals and the bytes of copies.

use crate::shared::SharedPtr;

/// One `mbarrier` object in shared memory (8 bytes, aligned to 8).
#[derive(Clone, Copy)]
pub struct Mbarrier(pub SharedPtr<u64>);

impl Mbarrier {
    /// Makes the barrier complete a phase at every `count` arrivals (`mbarrier.init`).
    ///
    /// # Safety
    /// One thread, before any other use; a fence and a block barrier follow.
    #[inline(always)]
    pub unsafe fn init(self, count: u32) {
        device!({ unsafe { core::arch::asm!("mbarrier.init.shared::cta.b64 [{}], {};", in(reg32) self.0.address(), in(reg32) count, options(nostack)) } }
            else { host!("mbarrier::Mbarrier::init", (count) => crate::sim::init(self.0.address(), count)) })
    }

    /// Arrives once (`mbarrier.arrive`).
    ///
    /// # Safety
    /// The barrier is initialised.
    #[inline(always)]
    pub unsafe fn arrive(self) {
        device!({ unsafe { core::arch::asm!("mbarrier.arrive.shared::cta.b64 _, [{}];", in(reg32) self.0.address(), options(nostack)) } }
            else { host!("mbarrier::Mbarrier::arrive", () => crate::sim::arrive(self.0.address(), 0, None)) })
    }

    /// Arrives once and makes the phase wait for `bytes` more of copies (`mbarrier.arrive.expect_tx`).
    ///
    /// # Safety
    /// The barrier is initialised; copies of exactly this many bytes complete on it.
    #[inline(always)]
    pub unsafe fn arrive_expect(self, bytes: u32) {
        device!({ unsafe { core::arch::asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};", in(reg32) self.0.address(), in(reg32) bytes, options(nostack)) } }
            else { host!("mbarrier::Mbarrier::arrive_expect", (bytes) => crate::sim::arrive(self.0.address(), bytes, None)) })
    }

    /// Arrives once at the barrier at the same place in block `rank` of the cluster (`mapa`, `mbarrier.arrive.shared::cluster`).
    ///
    /// # Safety
    /// The other block has initialised its barrier and has not ended.
    #[inline(always)]
    pub unsafe fn arrive_at(self, rank: u32) {
        device!({ unsafe { core::arch::asm!(
            "{{ .reg .b32 remote; mapa.shared::cluster.u32 remote, {}, {}; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }}",
            in(reg32) self.0.address(), in(reg32) rank, options(nostack)) } }
            else { host!("mbarrier::Mbarrier::arrive_at", (rank) => crate::sim::arrive(self.0.address(), 0, Some(rank))) })
    }

    /// Waits until the phase of this parity (0, 1, 0, …) is complete (`mbarrier.try_wait.parity` in a loop).
    ///
    /// # Safety
    /// The barrier is initialised and at most one phase ahead.
    #[inline(always)]
    // PTX labels are local to their braces.
    #[allow(named_asm_labels)]
    pub unsafe fn wait(self, parity: u32) {
        device!({ unsafe { core::arch::asm!(
            "{{ .reg .pred done;",
            "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [{}], {};",
            "@!done bra WAIT; }}",
            in(reg32) self.0.address(), in(reg32) parity, options(nostack)) } }
            else { host!("mbarrier::Mbarrier::wait", (parity) => crate::sim::wait(self.0.address(), parity)) })
    }
}
