//! What a launch hands to a kernel: `repr(C)` structs of plain integers, the same on both sides.

use cuda_std::mutant;

/// Element strides of one tensor, as `(batch, sequence, head)`; the last dimension is contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// Elements from one batch entry to the next.
    pub batch: i64,
    /// Elements from one row of the sequence to the next.
    pub seq: i64,
    /// Elements from one head to the next.
    pub head: i64,
}

/// One call of attention forward.
///
/// Shapes: Q `(batch, seqlen_q, heads, head_dim)`, K `(batch, seqlen_k, kv_heads, head_dim)`,
/// V `(batch, seqlen_k, kv_heads, head_dim_v)`, O `(batch, seqlen_q, heads, head_dim_v)`,
/// LSE `(batch, heads, seqlen_q)`, contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardParams {
    /// Device address of Q.
    pub q: u64,
    /// Device address of K.
    pub k: u64,
    /// Device address of V.
    pub v: u64,
    /// Device address of O.
    pub o: u64,
    /// Device address of LSE, or 0 where the caller does not want it.
    pub lse: u64,
    /// Strides of Q.
    pub q_strides: Strides,
    /// Strides of K.
    pub k_strides: Strides,
    /// Strides of V.
    pub v_strides: Strides,
    /// Strides of O.
    pub o_strides: Strides,
    /// Sequences.
    pub batch: u32,
    /// Query rows of a sequence.
    pub seqlen_q: u32,
    /// Key rows of a sequence.
    pub seqlen_k: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Columns of Q and K.
    pub head_dim: u32,
    /// Columns of V and O.
    pub head_dim_v: u32,
    /// Factor on `q . k`, finite and positive.
    pub scale: f32,
    /// The offset δ of a causal mask: key `j` is allowed for query `i` where `j <= i + causal_offset`.
    pub causal_offset: i32,
    /// Blocks of query rows of a sequence: `ceil(seqlen_q / block_m)`, or of [packed](Packing) ones.
    pub blocks_m: u32,
}

/// A call of standard attention, the same for its three kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StandardParams {
    /// The call itself. Its causal offset is `seqlen_k` where there is no mask.
    pub forward: ForwardParams,
    /// Device address of the scores and then the weights: f32 `(batch, heads, seqlen_q, seqlen_k)`, contiguous but for
    /// its rows, which end with a whole block of keys.
    pub scores: u64,
    /// Strides of the scores.
    pub scores_strides: Strides,
}

/// A call of the `mma.sync` kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sm80Params {
    /// The call itself.
    pub forward: ForwardParams,
    /// The order of the tiles.
    pub order: TileOrder,
}

/// A TMA tensor map as the driver encodes it (`CUtensorMap`): 128 opaque bytes, aligned to 64 in parameter memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// A call of the Hopper kernel: the tensor maps first, where their alignment is that of the whole parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sm90Params {
    /// Map of Q: of `(head dim, heads of a tile, sequence, groups of heads, batch)`, innermost first.
    pub q_map: TensorMap,
    /// Map of K.
    pub k_map: TensorMap,
    /// Map of V.
    pub v_map: TensorMap,
    /// The call itself.
    pub forward: ForwardParams,
    /// Device address of this launch's work counter (u32 pairs, zero between launches), or 0 for the static order.
    pub work_counter: u64,
    /// The order of the tiles. Its heads are groups of `packing.heads()` query heads.
    pub order: TileOrder,
    /// How query heads share the rows of a tile.
    pub packing: Packing,
}

/// How the query heads that read one key head share the rows of a tile.
///
/// *Packed row* `p` is query `p >> shift` of head `p mod 2^shift` of the group: a tile of 128 rows holds 128 queries of
/// one head, or 32 queries of 4. Where the heads are no power of two, some packed rows stand for none of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    shift: u32,
    heads: u32,
}

impl Packing {
    /// Every tile has one head: packed rows are queries.
    pub const NONE: Packing = Packing::of(1);
    /// Most heads of a tile: 64 rows are copied at once, and they hold whole queries.
    pub const MAX_HEADS: u32 = 64;

    /// `heads` query heads a tile, 1 to [`MAX_HEADS`](Self::MAX_HEADS).
    pub const fn of(heads: u32) -> Self {
        Packing { shift: heads.next_power_of_two().trailing_zeros(), heads }
    }

    /// Query heads of a tile.
    #[inline(always)]
    pub const fn heads(self) -> u32 {
        self.heads
    }

    /// Packed rows are queries times two to the power of this.
    #[inline(always)]
    pub const fn shift(self) -> u32 {
        self.shift
    }

    /// The query that a packed row is of; for the first row of whole queries also their first, and for their number
    /// of rows also theirs.
    #[inline(always)]
    pub const fn query(self, row: u32) -> u32 {
        row >> self.shift
    }

    /// The head of the group that a packed row is of; `None` if of none.
    #[inline(always)]
    pub fn head(self, row: u32) -> Option<u32> {
        let bits = mutant!(HeadOfQueryBits, self.query(row), row);
        let head = bits & ((1 << self.shift) - 1);
        (head < mutant!(PaddingStored, 1 << self.shift, self.heads)).then_some(head)
    }
}

/// A divisor prepared on the host, so that the device divides by one multiplication.
///
/// Source: division by invariant integers, Granlund and Montgomery 1994, for dividends below 2^31.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    divisor: u32,
    multiplier: u32,
    shift: u32,
}

impl Divisor {
    /// Prepares division by `divisor`; 0 is taken for 1.
    pub const fn new(divisor: u32) -> Self {
        let divisor = if divisor == 0 { 1 } else { divisor };
        let shift = 31 + divisor.next_power_of_two().trailing_zeros();
        Divisor { divisor, multiplier: (1u64 << shift).div_ceil(divisor as u64) as u32, shift }
    }

    /// The divisor itself.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.divisor
    }

    /// Quotient and remainder of `n`, which is below 2^31.
    #[inline(always)]
    pub const fn div_rem(self, n: u32) -> (u32, u32) {
        let quotient = ((n as u64 * self.multiplier as u64) >> self.shift) as u32;
        (quotient, n - quotient * self.divisor)
    }
}

/// In which order the tiles of a call are taken.
///
/// Heads are taken in groups whose keys and values share the L2 cache. Inside a group a causal mask's longest tiles,
/// the last rows of every head, come first, so that the short ones fill the gaps at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileOrder {
    /// Tiles of the whole call: `blocks_m * heads * batch`.
    pub tiles: u32,
    /// Tiles of a group of heads.
    group_tiles: Divisor,
    /// Heads of a group, all batch entries counted through.
    group_heads: Divisor,
    /// Heads of the last group, which may be smaller.
    last_group_heads: Divisor,
    /// First tile of the last group.
    last_group_first: u32,
    /// Query blocks of a head.
    blocks_m: Divisor,
    /// Query heads.
    heads: Divisor,
    /// Query heads for each key head.
    queries_per_key: Divisor,
}

/// One tile of work: a block of query rows of one head, or of the [packed](Packing) rows of a group of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkTile {
    /// Block of query rows.
    pub block_m: u32,
    /// Query head, or group of them.
    pub head: u32,
    /// Batch entry.
    pub batch: u32,
}

impl TileOrder {
    /// The order for `blocks_m` query blocks of each of `heads` heads of `batch` sequences, `heads_per_group` heads a
    /// group. The product of the first three is below 2^31.
    pub const fn new(blocks_m: u32, heads: u32, kv_heads: u32, batch: u32, heads_per_group: u32) -> Self {
        let all_heads = heads * batch;
        let per_group = if heads_per_group == 0 { 1 } else { heads_per_group };
        let per_group = if per_group > all_heads && all_heads > 0 { all_heads } else { per_group };
        let whole_groups = all_heads / per_group;
        TileOrder {
            tiles: blocks_m * all_heads,
            group_tiles: Divisor::new(per_group * blocks_m),
            group_heads: Divisor::new(per_group),
            last_group_heads: Divisor::new(all_heads - whole_groups * per_group),
            last_group_first: whole_groups * per_group * blocks_m,
            blocks_m: Divisor::new(blocks_m),
            heads: Divisor::new(heads),
            queries_per_key: Divisor::new(match heads.checked_div(kv_heads) {
                Some(queries) => queries,
                None => 1,
            }),
        }
    }

    /// Tile number `index`.
    #[inline(always)]
    pub const fn tile(&self, index: u32, longest_first: bool) -> WorkTile {
        let (group, inside) = self.group_tiles.div_rem(index);
        let first_head = group * self.group_heads.get();
        let (block_m, head_in_group) = if longest_first {
            let group_heads =
                if index < self.last_group_first { self.group_heads } else { self.last_group_heads };
            let (from_last, head) = group_heads.div_rem(inside);
            (self.blocks_m.get() - 1 - from_last, head)
        } else {
            let (head, block_m) = self.blocks_m.div_rem(inside);
            (block_m, head)
        };
        let (batch, head) = self.heads.div_rem(first_head + head_in_group);
        WorkTile { block_m, head, batch }
    }

    /// The key head that query head `head` reads.
    #[inline(always)]
    pub const fn kv_head(&self, head: u32) -> u32 {
        self.queries_per_key.div_rem(head).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn divisors_divide() {
        let top = (1 << 31) - 1;
        for d in (1..300).chain([511, 512, 513, 65_535, 65_536, 65_537, 1 << 30, top - 1, top]) {
            let divisor = Divisor::new(d);
            for n in [0, 1, d - 1, d, d.saturating_add(1), top / 2, top - 1, top].into_iter().chain(0..200) {
                if n <= top {
                    assert_eq!(divisor.div_rem(n), (n / d, n % d), "{n} / {d}");
                }
            }
        }
    }

    #[test]
    fn packed_rows_are_queries_and_heads_each_once() {
        for heads in [1, 2, 3, 4, 7, 8, 16, 33, 64] {
            let (packing, queries) = (Packing::of(heads), 5);
            let rows = queries << packing.shift();
            let mut seen = HashSet::new();
            for row in 0..rows {
                if let Some(head) = packing.head(row) {
                    assert!(head < heads && packing.query(row) < queries);
                    assert!(seen.insert((packing.query(row), head)));
                }
            }
            assert_eq!((packing.heads(), seen.len() as u32), (heads, queries * heads));
            assert!(Packing::MAX_HEADS.is_multiple_of(1 << packing.shift()));
        }
        // The order in which a copy of whole queries fills the rows: heads innermost.
        let rows = [0, 1, 2, 3, 4].map(|row| (Packing::of(3).query(row), Packing::of(3).head(row)));
        assert_eq!(rows, [(0, Some(0)), (0, Some(1)), (0, Some(2)), (0, None), (1, Some(0))]);
    }

    #[test]
    fn every_tile_comes_exactly_once() {
        for (blocks_m, heads, batch, per_group) in [(1, 1, 1, 1), (5, 3, 2, 4), (4, 8, 3, 24), (7, 2, 5, 100)]
        {
            let order = TileOrder::new(blocks_m, heads, 1, batch, per_group);
            for longest_first in [false, true] {
                let seen: HashSet<_> = (0..order.tiles)
                    .map(|index| order.tile(index, longest_first))
                    .inspect(|t| assert!(t.block_m < blocks_m && t.head < heads && t.batch < batch, "{t:?}"))
                    .collect();
                assert_eq!(seen.len(), order.tiles as usize);
            }
        }
    }

    #[test]
    fn longest_tiles_come_first_in_each_group_of_heads() {
        // Three groups of two heads and a last one of one.
        let (blocks_m, heads, kv_heads) = (5, 7, 1);
        let order = TileOrder::new(blocks_m, heads, kv_heads, 1, 2);
        let tiles: Vec<_> = (0..order.tiles).map(|index| order.tile(index, true)).collect();
        let groups = tiles.chunk_by(|a, b| a.head / 2 == b.head / 2).collect::<Vec<_>>();
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [10, 10, 10, 5]);
        for group in groups {
            assert!(group.is_sorted_by(|a, b| a.block_m >= b.block_m), "{group:?}");
        }
    }

    #[test]
    fn query_heads_share_key_heads_in_groups() {
        let order = TileOrder::new(1, 6, 2, 1, 6);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|head| order.kv_head(head)), [0, 0, 0, 1, 1, 1]);
    }
}
