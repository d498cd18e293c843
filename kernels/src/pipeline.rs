//! Hand-over of shared-memory buffers between the warps that fill them and the warps that read them.

use crate::tile::swizzled::Tiles;
use cuda_std::barrier::NamedBarrier;
use cuda_std::mbarrier::Mbarrier;
use cuda_std::memory::Scalar;
use cuda_std::mutant;
use cuda_std::shared::SharedPtr;
use cuda_std::{fence, thread, warp};

/// Where one side of a ring of `STAGES` buffers stands: which buffer comes next, and in which round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineState<const STAGES: u32> {
    /// Buffer in the ring.
    pub stage: u32,
    /// Parity of the round.
    pub phase: u32,
}

impl<const STAGES: u32> PipelineState<STAGES> {
    /// The start: buffer 0, round 0.
    #[inline(always)]
    pub const fn new() -> Self {
        PipelineState { stage: 0, phase: 0 }
    }

    /// Goes on to the next buffer.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.stage += 1;
        if self.stage == STAGES {
            self.stage = 0;
            self.phase ^= mutant!(PhaseNeverFlips, 0, 1);
        }
    }
}

/// Hands out a block's shared memory piece by piece; the pieces' types know their sizes.
pub struct Carver {
    next: SharedPtr<u16>,
}

impl Carver {
    /// Starts at the beginning of the dynamic shared memory.
    #[inline(always)]
    pub fn new() -> Self {
        Carver { next: cuda_std::shared::dynamic_shared_mem() }
    }

    /// The next `count` tiles.
    #[inline(always)]
    pub fn tiles<const ROWS: u32, const COLS: u32>(&mut self, count: u32) -> Tiles<ROWS, COLS> {
        let tiles = Tiles::new(self.next);
        self.next = self.next.offset(count * Tiles::<ROWS, COLS>::ELEMENTS);
        tiles
    }

    /// The next `count` values of 8 bytes or less, each in a place of 8.
    #[inline(always)]
    pub fn words<T: Scalar>(&mut self, count: u32) -> SharedPtr<T> {
        let words = self.next.cast();
        self.next = self.next.cast::<u64>().offset(count).cast();
        words
    }

    /// A ring's full and empty barriers.
    #[inline(always)]
    pub fn gates<const STAGES: u32>(&mut self) -> Gates<STAGES> {
        Gates { full: self.words(STAGES), empty: self.words(STAGES) }
    }
}

impl Default for Carver {
    fn default() -> Self {
        Self::new()
    }
}

/// The barriers of a ring of `STAGES` buffers: for each, one that says "full" and one that says "empty".
#[derive(Clone, Copy)]
pub struct Gates<const STAGES: u32> {
    full: SharedPtr<u64>,
    empty: SharedPtr<u64>,
}

impl<const STAGES: u32> Gates<STAGES> {
    /// Shared memory that the barriers of a ring take.
    pub const BYTES: u32 = 2 * STAGES * 8;

    /// Prepares the barriers: one producing thread, `readers` releasing warps.
    ///
    /// # Safety
    /// One thread of the block, before any use; [`fence::mbarrier_init`] and a block barrier follow.
    #[inline(always)]
    pub unsafe fn init(self, readers: u32) {
        for stage in 0..STAGES {
            // SAFETY: inside the memory that was carved for them.
            unsafe {
                Mbarrier(self.full.offset(stage)).init(1);
                Mbarrier(self.empty.offset(stage)).init(readers);
            }
        }
    }

    /// Producer: waits until every reader has left the buffer, and opens it for `bytes` of copies.
    ///
    /// # Safety
    /// The one producing thread; copies of exactly `bytes` to the returned barrier follow.
    #[inline(always)]
    pub unsafe fn acquire(self, at: PipelineState<STAGES>, bytes: u32) -> Mbarrier {
        // SAFETY: as the caller promises.
        unsafe {
            self.wait_empty(at);
            self.open(at, bytes)
        }
    }

    /// Producer: waits until every reader has left the buffer.
    ///
    /// # Safety
    /// The one producing thread.
    #[inline(always)]
    pub unsafe fn wait_empty(self, at: PipelineState<STAGES>) {
        // SAFETY: the ring is initialised. In the first round the "previous" phase counts as complete.
        unsafe {
            Mbarrier(self.empty.offset(at.stage)).wait(mutant!(PhaseOfTheReader, at.phase, at.phase ^ 1))
        }
    }

    /// Producer: lets the buffer count as full once `bytes` of copies have arrived; what this thread wrote before is
    /// visible to the readers then.
    ///
    /// # Safety
    /// The one producing thread, after [`wait_empty`](Self::wait_empty); copies of exactly `bytes` to the returned
    /// barrier follow.
    #[inline(always)]
    pub unsafe fn open(self, at: PipelineState<STAGES>, bytes: u32) -> Mbarrier {
        let full = Mbarrier(self.full.offset(at.stage));
        // SAFETY: the ring is initialised.
        unsafe { full.arrive_expect(bytes) };
        full
    }

    /// Reader: waits until the buffer is full.
    ///
    /// # Safety
    /// The ring is initialised, and `at` is this reader's own next buffer.
    #[inline(always)]
    pub unsafe fn wait_full(self, at: PipelineState<STAGES>) {
        // SAFETY: as the caller promises.
        unsafe { mutant!(NoWaitForFull, (), Mbarrier(self.full.offset(at.stage)).wait(at.phase)) }
    }

    /// Reader: leaves a buffer that the lanes themselves have read, not a matrix product: lane 0, which says so, has to
    /// know that all are done.
    ///
    /// # Safety
    /// All lanes of the warp.
    #[inline(always)]
    pub unsafe fn release_loaded(self, at: PipelineState<STAGES>) {
        warp::sync_warp();
        // SAFETY: as the caller promises.
        unsafe { self.release(at) }
    }

    /// Reader: leaves the buffer. Every warp says so once, by its first lane.
    ///
    /// # Safety
    /// This warp has finished reading the buffer.
    #[inline(always)]
    pub unsafe fn release(self, at: PipelineState<STAGES>) {
        if warp::lane_id() == 0 {
            // SAFETY: as the caller promises.
            unsafe { Mbarrier(self.empty.offset(at.stage)).arrive() }
        }
    }
}

/// Makes freshly initialised barriers known to the whole block and to TMA.
#[inline(always)]
pub fn publish_barriers() {
    fence::mbarrier_init();
    mutant!(NoBarrierAfterInit, (), thread::sync_threads());
}

/// Whose turn it is to issue matrix products: while one warpgroup multiplies, the others compute softmax.
///
/// Each warpgroup has one named barrier; its predecessor's arrival opens it.
#[derive(Clone, Copy)]
pub struct Turns<const WARPGROUPS: u32> {
    warpgroup: u32,
}

impl<const WARPGROUPS: u32> Turns<WARPGROUPS> {
    /// Joins the round; the last warpgroup lets the first one start.
    #[inline(always)]
    pub fn join(warpgroup: u32) -> Self {
        let turns = Turns { warpgroup };
        if WARPGROUPS > 1 && warpgroup == WARPGROUPS - 1 {
            turns.pass();
        }
        turns
    }

    /// Waits for this warpgroup's turn.
    #[inline(always)]
    pub fn wait(self) {
        if WARPGROUPS > 1 {
            Self::barrier(self.warpgroup).sync();
        }
    }

    /// Hands the turn to the next warpgroup.
    #[inline(always)]
    pub fn pass(self) {
        if WARPGROUPS > 1 {
            let next = self.warpgroup + 1;
            Self::barrier(if next == WARPGROUPS { 0 } else { next }).arrive();
        }
    }

    #[inline(always)]
    fn barrier(warpgroup: u32) -> NamedBarrier {
        NamedBarrier { id: 1 + warpgroup, threads: 256 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_flips_once_a_round() {
        let mut state = PipelineState::<3>::new();
        let seen: Vec<_> = (0..7)
            .map(|_| {
                let now = (state.stage, state.phase);
                state.advance();
                now
            })
            .collect();
        assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 0)]);
    }
}
