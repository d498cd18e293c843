//! Which blocks of keys a tile of queries visits: the one owner of the bounds by whole blocks.

use crate::config::MaskKind;
use crate::mask::Mask;
use cuda_std::mutant;

/// The key blocks of one query tile, in three stages: `0 .. full` need no mask, `full .. end` do, the rest is
/// never loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// One past the last block in which every row of the tile may see every key.
    pub full: i32,
    /// One past the last block in which any row of the tile may see any key.
    pub end: i32,
}

impl BlockRange {
    /// The range for the query rows `first_row .. first_row + block_m` (rows past `seqlen_q` do not count) against
    /// `seqlen_k` keys in blocks of `block_n`.
    #[inline(always)]
    pub fn new<M: Mask>(
        mask: M,
        first_row: i32,
        block_m: i32,
        block_n: i32,
        seqlen_q: i32,
        seqlen_k: i32,
    ) -> Self {
        let (mut visible, mut visible_to_all) = (seqlen_k, seqlen_k);
        if matches!(M::KIND, MaskKind::Causal) {
            let last_row = (first_row + block_m).min(seqlen_q) - 1;
            visible = clamp(mask.row_end(last_row), seqlen_k);
            visible_to_all = clamp(mask.row_end(first_row), seqlen_k);
        }
        // block_n is a constant of the tile, so this divides by a constant and leaves no panic path on the device.
        let whole = visible_to_all as u32 / block_n as u32;
        let full = mutant!(FullOneMore, whole + 1, whole);
        let end = mutant!(
            PartialBlockLost,
            visible as u32 / block_n as u32,
            (visible as u32).div_ceil(block_n as u32)
        );
        BlockRange { full: full as i32, end: end as i32 }
    }
}

#[inline(always)]
fn clamp(row_end: i32, seqlen_k: i32) -> i32 {
    row_end.max(0).min(seqlen_k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::{Causal, Full};

    #[test]
    fn agrees_with_the_mask_element_by_element() {
        for (seqlen_q, seqlen_k) in [(1, 1), (7, 9), (16, 16), (33, 5), (5, 33), (40, 0)] {
            for offset in [0, seqlen_k - seqlen_q] {
                for first_row in (0..seqlen_q).step_by(16) {
                    check(Causal { offset }, first_row, seqlen_q, seqlen_k);
                    check(Full, first_row, seqlen_q, seqlen_k);
                }
            }
        }
    }

    fn check<M: Mask + std::fmt::Debug>(mask: M, first_row: i32, seqlen_q: i32, seqlen_k: i32) {
        let (block_m, block_n) = (16, 4);
        let range = BlockRange::new(mask, first_row, block_m, block_n, seqlen_q, seqlen_k);
        let rows = first_row..(first_row + block_m).min(seqlen_q);
        for block in 0..seqlen_k.div_euclid(block_n) + 1 {
            let keys = block * block_n..((block + 1) * block_n).min(seqlen_k);
            let any = rows.clone().any(|i| keys.clone().any(|j| mask.allows(i, j)));
            let whole = keys.len() == block_n as usize
                && rows.clone().all(|i| keys.clone().all(|j| mask.allows(i, j)));
            assert_eq!(any, block < range.end, "{mask:?} rows {rows:?} block {block}: {range:?}");
            assert_eq!(whole, block < range.full, "{mask:?} rows {rows:?} block {block}: {range:?}");
        }
    }
}
