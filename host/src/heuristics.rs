//! Choices that change speed and never a result's meaning: pure functions of the problem and the GPU.

use crate::problem::Problem;

/// Bytes of keys and values that are meant to stay in the L2 cache together: well below the 40 to 50 MB of the GPUs
/// that this project knows, because Q and O pass through it as well.
const L2_BUDGET: usize = 32 << 20;

/// How many query heads of the call should be worked on together: those whose keys and values fit in the L2 cache.
///
/// Query heads that share a key head share its bytes. At least 1, at most all heads of the call.
pub fn heads_per_group(problem: &Problem) -> u32 {
    let bytes = problem.seqlen_k * (problem.head_dim + problem.head_dim_v) * problem.dtype.size();
    let kv_heads = L2_BUDGET / bytes.max(1);
    let heads = kv_heads.saturating_mul(problem.heads / problem.kv_heads).max(1);
    u32::try_from(heads.min((problem.heads * problem.batch).max(1))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::DType;

    fn group(batch: usize, seqlen: usize, heads: usize, kv_heads: usize) -> u32 {
        let mut problem = Problem::new(DType::Bf16, batch, seqlen, heads, 128);
        problem.kv_heads = kv_heads;
        heads_per_group(&problem)
    }

    #[test]
    fn heads_share_the_cache_until_it_is_full() {
        // 512 bytes a key: 16384 keys are 8 MB, so four key heads fit.
        assert_eq!(group(1, 16384, 16, 16), 4);
        assert_eq!(group(1, 16384, 16, 4), 16);
        assert_eq!(group(1, 16384, 16, 8), 8);
        assert_eq!(group(1, 1 << 20, 16, 16), 1);
        assert_eq!(group(1, 1 << 20, 16, 1), 1);
        assert_eq!(group(2, 512, 16, 16), 32);
        assert_eq!(group(0, 512, 16, 16), 1);
        assert_eq!(group(1, 0, 16, 16), 16);
    }
}
