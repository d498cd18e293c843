//! A persistent grid's way through the tiles of a call: who takes which.

use crate::params::Sm90Params;
use cuda_std::global::GlobalPtr;
use cuda_std::{atomic, fence, thread};

/// Hands out tile numbers to one block of a persistent grid.
///
/// With a counter the next free tile goes to whoever asks first. Without one (address 0) every block takes its own
/// arithmetic sequence. The counter is a pair of u32: tiles handed out beyond the first one of each block, and
/// blocks that have finished; the last block sets both back to 0 for the next launch.
#[derive(Clone, Copy)]
pub struct Scheduler {
    counter: GlobalPtr<u32>,
    tiles: u32,
    next: u32,
}

impl Scheduler {
    /// This block's scheduler; its first tile is the block's own number.
    #[inline(always)]
    pub fn new(params: &Sm90Params) -> Self {
        Scheduler {
            counter: GlobalPtr::new(params.work_counter),
            tiles: params.order.tiles,
            next: thread::block_idx_x(),
        }
    }

    /// The next tile's number, or `None` at the end.
    ///
    /// # Safety
    /// One thread of the block; the counter is this launch's own.
    #[inline(always)]
    pub unsafe fn take(&mut self) -> Option<u32> {
        let now = self.next;
        if now >= self.tiles {
            return None;
        }
        self.next = if self.counter.is_null() {
            now + thread::grid_dim_x()
        } else {
            // SAFETY: the counter is valid as the caller promises.
            thread::grid_dim_x() + unsafe { atomic::add_u32(self.counter, 1) }
        };
        Some(now)
    }

    /// Says that this block takes no more tiles.
    ///
    /// # Safety
    /// Once, by the thread that called [`take`](Self::take), after it returned `None`.
    #[inline(always)]
    pub unsafe fn finish(self) {
        if !self.counter.is_null() {
            // SAFETY: the counter is valid; the fences order every block's takes before the last block's reset.
            unsafe {
                fence::thread_fence();
                if atomic::add_u32(self.counter.offset(1), 1) == thread::grid_dim_x() - 1 {
                    fence::thread_fence();
                    self.counter.store(0, 0);
                    self.counter.store(1, 0);
                }
            }
        }
    }
}
