//! Choices that change speed and never a result's meaning: pure functions of the problem and the GPU.

use crate::problem::Problem;

/// Bytes of keys and values that are meant to stay in the L2 cache together: well below the 40 to 50 MB of the GPUs
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::DType;

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
