//! Bugs that the mutation check plants: compiled in beside the right code, one of them picked for a launch.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

macro_rules! mutations {
    ($(#[doc = $doc:literal] $name:ident,)*) => {
        /// A one-line bug in the device library or in a kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutation {
            $(#[doc = $doc] $name,)*
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Mutation] = &[$(Mutation::$name),*];
        }
    };
}

mutations! {
    /// Wait: the reader of a ring does not wait until its buffer is full.
    NoWaitForFull,
    /// Wait: one group of `cp.async` more than asked for stays unfinished.
    OneCopyGroupMore,
    /// Wait: one group of products more than asked for stays unfinished.
    OneProductGroupMore,
    /// Phase: a ring's phase never flips.
    PhaseNeverFlips,
    /// Phase: the producer waits for the reader's phase.
    PhaseOfTheReader,
    /// Fence: none after `mbarrier.init`.
    NoFenceOfInit,
    /// Fence: none before products.
    NoFenceOfProducts,
    /// Barrier: the block's is a warp's.
    BarrierOfWarp,
    /// Barrier: none after the initialisation of mbarriers.
    NoBarrierAfterInit,
    /// Swizzle: rows of 8 copies land unpermuted.
    UnswizzledWrites,
    /// Swizzle: `ldmatrix` finds the neighbour of its piece.
    NeighbourReads,
    /// Descriptor: the leading offset is that of an atom.
    LeadingOfAtom,
    /// Descriptor: a step of 16 columns goes on by 64 bytes.
    WideStep,
    /// Bound: a partial block of keys at the end is left out.
    PartialBlockLost,
    /// Bound: one block too many counts as wholly visible.
    FullOneMore,
    /// Tail mask: keys past the end of the sequence keep their scores.
    NoKeyTail,
    /// Tail mask: one row past the end of the queries is stored.
    OneRowMore,
    /// Packed rows: the head is read from the query's lowest bits.
    HeadOfQueryBits,
    /// Packed rows: those that stand for no head are stored.
    PaddingStored,
    /// Packed rows: the mask takes them for queries.
    MaskOfPackedRows,
    /// Rescale: the output keeps its old scale.
    OutputNotRescaled,
    /// Rescale: the sum keeps its old scale.
    SumNotRescaled,
    /// Index width: loads cut byte offsets to 32 bits.
    NarrowLoads,
    /// Index width: stores cut byte offsets to 32 bits.
    NarrowStores,
}

thread_local! {
    static PLANTED: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// One bit for each bug that was ever met where it is planted.
static REACHED: AtomicU32 = AtomicU32::new(0);

/// Whether the launch in progress has this bug, here.
#[inline(always)]
pub fn planted(mutation: Mutation) -> bool {
    let planted = PLANTED.get() == Some(mutation);
    if planted {
        REACHED.fetch_or(1 << mutation as u32, Ordering::Relaxed);
    }
    planted
}

impl Mutation {
    /// Whether any launch of this process with this bug came to where it is.
    pub fn was_reached(self) -> bool {
        REACHED.load(Ordering::Relaxed) >> self as u32 & 1 == 1
    }
}

pub(crate) fn plant(mutation: Option<Mutation>) {
    PLANTED.set(mutation);
}

/// An address whose offset in its region is cut to 32 bits where the bug is planted.
#[inline(always)]
pub(crate) fn narrowed(address: u64, mutation: Mutation) -> u64 {
    if planted(mutation) { address & !0xff_0000_0000 } else { address }
}
