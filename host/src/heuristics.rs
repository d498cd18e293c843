//! Choices that change speed and never a result's meaning: pure functions of the problem and the GPU.

use crate::plan::{Entry, Family, Packing};
use crate::problem::{MAX_SEQLEN, Problem};

/// Bytes of keys and values that are meant to stay in the L2 cache together: well below the 40 to 50 MB of the large GPUs
/// that this project knows, because Q and O pass through it as well.
const L2_BUDGET: usize = 32 << 20;
/// Tiles that a group of heads should have at least, four for each SM of an H100: groups end in short tiles, and few
/// of those leave SMs idle.
const GROUP_TILES: usize = 512;
/// Up to this many heads, several query blocks of a head run at once and share its keys by being near in time, so that
/// the budget may be passed to reach [`GROUP_TILES`].
const HEADS_NEAR_IN_TIME: usize = 32;

/// How many query heads of the call should be worked on together: those whose keys and values fit in the L2 cache, or a
/// few more where that makes too few tiles of `blocks_m` query blocks a head; all groups about equal.
///
/// Query heads that share a key head share its bytes. At least 1, at most all heads of the call.
///
/// ```
/// use flash_attention::{DType, Problem, heuristics::heads_per_group};
/// // 16384 keys of 512 bytes are 8 MB a head: four fit in the cache. A query block has 128 rows.
/// let problem = Problem::new(DType::Bf16, 1, 16384, 16, 128);
/// assert_eq!(heads_per_group(&problem, 16384 / 128), 4);
/// ```
pub fn heads_per_group(problem: &Problem, blocks_m: u32) -> u32 {
    let all = (problem.heads * problem.batch).max(1);
    let bytes = problem.seqlen_k * (problem.head_dim + problem.head_dim_v) * problem.dtype.size();
    let in_cache = (L2_BUDGET / bytes.max(1)).saturating_mul(problem.heads / problem.kv_heads);
    let for_tiles = GROUP_TILES.div_ceil(blocks_m.max(1) as usize).min(HEADS_NEAR_IN_TIME);
    let heads = in_cache.max(for_tiles).min(all);
    u32::try_from(all.div_ceil(all.div_ceil(heads))).unwrap_or(u32::MAX)
}

/// How the query heads of a key head share the tiles of `entry`: all of them do where that makes fewer tiles, and each
/// has its own where it does not. Rows past a short sequence's end are then those of another head instead of nobody's.
///
/// A function of `heads / kv_heads` and not of either, as whatever a plan chooses.
///
/// # Panics
/// If `kv_heads` is 0 or more than `heads`, which [`Problem::check`] refuses.
///
/// ```
/// use flash_attention::{DType, GpuProperties, Plan, PlanOptions, Problem, heuristics};
/// // One new query of 32 heads on 4 key heads of 1000 keys.
/// let mut problem = Problem::new(DType::Bf16, 1, 1, 32, 64);
/// (problem.seqlen_k, problem.kv_heads) = (1000, 4);
/// let h200 = GpuProperties { capability: (9, 0), multiprocessors: 132, max_shared: 227 << 10 };
/// let plan = Plan::new(&problem, &h200, &PlanOptions::default())?;
/// assert_eq!(heuristics::packing(&problem, &plan.entry).heads(), 8);
/// # Ok::<(), flash_attention::Error>(())
/// ```
pub fn packing(problem: &Problem, entry: &Entry) -> Packing {
    let &Problem { heads, kv_heads, seqlen_q, .. } = problem;
    let group = heads / kv_heads;
    if entry.family != Family::Sm90 || group > Packing::MAX_HEADS as usize {
        return Packing::NONE;
    }
    let packed = Packing::of(group as u32);
    let tiles_of_group = |packing: Packing| {
        blocks_of_rows(seqlen_q, packing, entry).saturating_mul(group / packing.heads() as usize)
    };
    let countable = seqlen_q <= MAX_SEQLEN >> packed.shift();
    if countable && tiles_of_group(packed) < tiles_of_group(Packing::NONE) { packed } else { Packing::NONE }
}

/// Blocks of rows that the tiles of `entry` cut `seqlen_q` queries into, for one head or for those that share a tile.
pub(crate) fn blocks_of_rows(seqlen_q: usize, packing: Packing, entry: &Entry) -> usize {
    (seqlen_q << packing.shift()).div_ceil(entry.block_m as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::DType;

    /// The heads of a tile of 128 rows.
    fn packed(seqlen_q: usize, heads: usize, kv_heads: usize) -> u32 {
        let mut problem = Problem::new(DType::Bf16, 3, seqlen_q, heads, 128);
        (problem.kv_heads, problem.seqlen_k) = (kv_heads, 1024);
        let entry = flash_attention_kernels::config::entries()
            .find(|entry| entry.family == Family::Sm90 && entry.block_m == 128)
            .unwrap();
        packing(&problem, entry).heads()
    }

    #[test]
    fn short_queries_share_tiles_with_the_group() {
        assert_eq!([packed(1, 8, 8), packed(1, 8, 4), packed(1, 8, 1), packed(1, 32, 8)], [1, 2, 8, 4]);
        // The number of heads does not matter, their ratio does.
        assert_eq!([packed(17, 14, 2), packed(17, 28, 4), packed(17, 7, 1)], [7, 7, 7]);
        // A box of Q is 64 rows.
        assert_eq!([packed(1, 64, 1), packed(1, 65, 1)], [64, 1]);
    }

    #[test]
    fn sharing_has_to_save_tiles() {
        // Two heads: 128 rows are a whole tile, 64 and 130 are not.
        assert_eq!([64, 65, 128, 130, 192, 256].map(|s| packed(s, 2, 1)), [2, 1, 1, 2, 2, 1]);
        // Three heads take the rows of four: from 32 queries on one tile does not hold them, from 64 on three are as good.
        assert_eq!([1, 32, 33, 64, 65, 96].map(|s| packed(s, 3, 1)), [3, 3, 3, 3, 1, 1]);
        assert_eq!([4096, 4096 + 1].map(|s| packed(s, 8, 1)), [1, 8]);
        assert_eq!([0, MAX_SEQLEN].map(|s| packed(s, 8, 1)), [1, 1]);
    }

    fn group(batch: usize, seqlen: usize, heads: usize, kv_heads: usize) -> u32 {
        let mut problem = Problem::new(DType::Bf16, batch, seqlen, heads, 128);
        problem.kv_heads = kv_heads;
        heads_per_group(&problem, seqlen.div_ceil(128) as u32)
    }

    #[test]
    fn heads_share_the_cache_until_it_is_full() {
        // 512 bytes a key: 16384 keys are 8 MB, so four key heads fit.
        assert_eq!(group(1, 16384, 16, 16), 4);
        assert_eq!(group(1, 16384, 16, 4), 16);
        assert_eq!(group(1, 16384, 16, 8), 8);
        assert_eq!(group(1, 1 << 20, 16, 16), 1);
        assert_eq!(group(2, 512, 16, 16), 32);
        assert_eq!(group(0, 512, 16, 16), 1);
        assert_eq!(group(1, 0, 16, 16), 16);
    }

    #[test]
    fn groups_are_about_equal_and_have_many_tiles() {
        // Five heads of 16384 keys: 4 fit, but 3 and 2 end together sooner than 4 and 1.
        assert_eq!(group(1, 16384, 5, 5), 3);
        // 1024 bytes a key: 8192 keys are 8 MB, of which 4 fit; 64 query blocks a head ask for 8 heads.
        let problem = Problem::new(DType::Bf16, 2, 8192, 8, 256);
        assert_eq!(heads_per_group(&problem, 64), 8);
    }
}
