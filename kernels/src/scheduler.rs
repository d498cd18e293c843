//! From the index of a block in the grid to its piece of the call.
//!
//! The whole call is one row of work items in grid x, so that neither the batch size nor the number of heads meets a
//! limit of the grid's other dimensions.

use crate::params::ForwardParams;
use core::num::NonZeroU32;

/// A block of query rows of one head of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryTile {
    /// Sequence.
    pub batch: u32,
    /// Query head.
    pub head: u32,
    /// Block of query rows.
    pub block: u32,
}

impl QueryTile {
    /// The tile number `index` of the call, below `blocks_m * heads * batch`.
    ///
    /// Without a mask the tiles of one head follow each other and find its keys and values in the L2 cache. Under a
    /// causal mask the cost of a tile grows with its row, so the last rows of all heads come first and the short
    /// tiles fill the gaps at the end.
    #[inline(always)]
    pub fn new(index: u32, params: &ForwardParams, longest_first: bool) -> Self {
        let (blocks, heads) = (positive(params.blocks_m), positive(params.heads));
        let (block, head_of_call) = if longest_first {
            // At least one tile a head, and their number fits 32 bits.
            let heads_of_call = positive(params.heads * params.batch);
            (blocks.get() - 1 - index / heads_of_call, index % heads_of_call)
        } else {
            (index % blocks, index / blocks)
        };
        QueryTile { batch: head_of_call / heads, head: head_of_call % heads, block }
    }

    /// The key head that this tile's query head reads.
    #[inline(always)]
    pub fn kv_head(&self, params: &ForwardParams) -> u32 {
        self.head / positive(params.heads / positive(params.kv_heads))
    }
}

/// Zero cannot come here (the host checks every count); the type spares the device the panic path of a division.
#[inline(always)]
fn positive(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_comes_once() {
        for (blocks_m, heads, batch) in [(1, 1, 1), (5, 3, 2), (1, 8, 3), (9, 1, 4)] {
            let params = ForwardParams { blocks_m, heads, batch, ..Default::default() };
            for longest_first in [false, true] {
                let mut tiles: Vec<_> = (0..blocks_m * heads * batch)
                    .map(|index| QueryTile::new(index, &params, longest_first))
                    .map(|tile| (tile.batch, tile.head, tile.block))
                    .collect();
                tiles.sort();
                let all = (0..batch)
                    .flat_map(|b| (0..heads).flat_map(move |h| (0..blocks_m).map(move |m| (b, h, m))));
                assert_eq!(tiles, all.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn causal_tiles_come_longest_first() {
        let params = ForwardParams { blocks_m: 7, heads: 3, batch: 2, ..Default::default() };
        let blocks: Vec<_> = (0..42).map(|index| QueryTile::new(index, &params, true).block).collect();
        assert!(blocks.is_sorted_by(|a, b| a >= b), "{blocks:?}");
        assert_eq!((blocks[0], blocks[41]), (6, 0));
    }

    #[test]
    fn query_heads_share_key_heads_in_groups() {
        let params = ForwardParams { heads: 6, kv_heads: 2, ..Default::default() };
        let kv_heads: Vec<_> =
            (0..6).map(|head| QueryTile { batch: 0, head, block: 0 }.kv_head(&params)).collect();
        assert_eq!(kv_heads, [0, 0, 0, 1, 1, 1]);
    }
}
