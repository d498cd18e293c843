//! Vector clocks: who has seen whose accesses.
//!
//! Every thread of a cluster has a slot, and so has every asynchronous unit (an mbarrier's copies, a warpgroup's
//! products). An access is stamped with an [`Epoch`], its actor's slot and that slot's clock; it is ordered before a
//! thread's next access when the thread's clock has reached it.

/// A slot and its clock in one word; 0 stands for nobody.
pub(crate) type Epoch = u32;

const CLOCK_BITS: u32 = 21;
const CLOCK_MASK: u32 = (1 << CLOCK_BITS) - 1;

/// Most slots of a cluster: threads and asynchronous units.
pub(crate) const MAX_SLOTS: usize = 1 << (32 - CLOCK_BITS);

#[inline(always)]
pub(crate) fn epoch(slot: usize, clock: u32) -> Epoch {
    (slot as u32) << CLOCK_BITS | (clock & CLOCK_MASK)
}

#[inline(always)]
pub(crate) fn slot(epoch: Epoch) -> usize {
    (epoch >> CLOCK_BITS) as usize
}

/// What one thread has seen: of everybody's accesses, and of the writes made visible to the asynchronous proxy.
#[derive(Clone, Default)]
pub(crate) struct Clock {
    pub seen: Box<[u32]>,
    pub proxied: Box<[u32]>,
}

impl Clock {
    pub(crate) fn new(slots: usize) -> Self {
        Clock { seen: vec![0; slots].into(), proxied: vec![0; slots].into() }
    }

    /// Whether the access is ordered before this clock's owner.
    #[inline(always)]
    pub(crate) fn has_seen(&self, epoch: Epoch) -> bool {
        epoch & CLOCK_MASK <= self.seen[slot(epoch)]
    }

    /// Whether the write was made visible to the asynchronous proxy on the way here.
    #[inline(always)]
    pub(crate) fn is_proxied(&self, epoch: Epoch) -> bool {
        epoch & CLOCK_MASK <= self.proxied[slot(epoch)]
    }

    pub(crate) fn join(&mut self, other: &Clock) {
        join(&mut self.seen, &other.seen);
        join(&mut self.proxied, &other.proxied);
    }

    pub(crate) fn copy_from(&mut self, other: &Clock) {
        self.seen.copy_from_slice(&other.seen);
        self.proxied.copy_from_slice(&other.proxied);
    }

    pub(crate) fn clear(&mut self) {
        self.seen.fill(0);
        self.proxied.fill(0);
    }
}

fn join(to: &mut [u32], from: &[u32]) {
    for (a, b) in to.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}
