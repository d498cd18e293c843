//! Named barriers: 16 a block, each for a chosen number of threads.

/// One of the block's hardware barriers. Barrier 0 is [`crate::thread::sync_threads`]'s.
#[derive(Clone, Copy)]
pub struct NamedBarrier {
    /// 1 to 15.
    pub id: u32,
    /// Threads that take part in one phase, waiting and arriving ones together; a multiple of 32.
    pub threads: u32,
}

impl NamedBarrier {
    /// Arrives and waits until all threads of the phase have arrived (`bar.sync`).
    #[inline(always)]
    pub fn sync(self) {
        device!({ unsafe { core::arch::asm!("bar.sync {}, {};", in(reg32) self.id, in(reg32) self.threads, options(nostack)) } }
            else { host!("barrier::NamedBarrier::sync", () => crate::sim::barrier(self.id, self.threads, true)) })
    }

    /// Arrives without waiting (`bar.arrive`).
    #[inline(always)]
    pub fn arrive(self) {
        device!({ unsafe { core::arch::asm!("bar.arrive {}, {};", in(reg32) self.id, in(reg32) self.threads, options(nostack)) } }
            else { host!("barrier::NamedBarrier::arrive", () => crate::sim::barrier(self.id, self.threads, false)) })
    }
}
