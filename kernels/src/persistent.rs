//! A persistent grid's way through the tiles of a call: in which order, and who takes which.

use crate::params::{ForwardParams, Sm90Params, WorkTile};
use crate::scheduler::positive;
use cuda_std::global::GlobalPtr;
use cuda_std::{atomic, fence, thread};

impl WorkTile {
    /// Tile number `index` of the call.
    ///
    /// Heads are taken in groups whose keys and values share the L2 cache. Inside a group a causal mask's longest
    /// tiles, the last rows of every head, come first, so that the short ones fill the gaps at the end.
    #[inline(always)]
    pub fn new(index: u32, params: &ForwardParams, heads_per_group: u32, longest_first: bool) -> Self {
        let &ForwardParams { blocks_m, heads, batch, .. } = params;
        let (blocks_m, heads) = (positive(blocks_m), positive(heads));
        let tiles_of_group = positive(heads_per_group * blocks_m.get());
        let (group, inside) = (index / tiles_of_group, index % tiles_of_group);
        let first_head = group * heads_per_group;
        let group_heads = positive((heads.get() * batch - first_head).min(heads_per_group));
        let (block_m, head_in_group) = if longest_first {
            (blocks_m.get() - 1 - inside / group_heads, inside % group_heads)
        } else {
            (inside % blocks_m, inside / blocks_m)
        };
        let head_of_call = first_head + head_in_group;
        WorkTile { block_m, head: head_of_call % heads, batch: head_of_call / heads }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_tile_comes_exactly_once() {
        for (blocks_m, heads, batch, heads_per_group) in
            [(1, 1, 1, 1), (5, 3, 2, 4), (4, 8, 3, 24), (7, 2, 5, 100)]
        {
            let params = ForwardParams { blocks_m, heads, batch, ..Default::default() };
            let tiles = blocks_m * heads * batch;
            for longest_first in [false, true] {
                let seen: HashSet<_> = (0..tiles)
                    .map(|index| WorkTile::new(index, &params, heads_per_group, longest_first))
                    .inspect(|t| assert!(t.block_m < blocks_m && t.head < heads && t.batch < batch, "{t:?}"))
                    .map(|t| (t.block_m, t.head, t.batch))
                    .collect();
                assert_eq!(seen.len(), tiles as usize);
            }
        }
    }
}
