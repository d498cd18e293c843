//! Which keys a query may see, element by element. The bounds by whole blocks are [`crate::block_range`]'s.

use crate::config::MaskKind;

/// Decides about single elements of the score matrix; the kernel asks only in blocks that
/// [`crate::block_range::BlockRange`] calls partial.
pub trait Mask: Copy {
    /// The row of the entry table that this mask belongs to.
    const KIND: MaskKind;

    /// Makes the mask of a call from its launch parameters.
    fn new(causal_offset: i32) -> Self;

    /// One past the last key that query row `i` may see, before the sequence's end cuts it.
    fn row_end(self, i: i32) -> i32;

    /// Whether query row `i` may see key `j`.
    #[inline(always)]
    fn allows(self, i: i32, j: i32) -> bool {
        j < self.row_end(i)
    }
}

/// Every key is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Full;

impl Mask for Full {
    const KIND: MaskKind = MaskKind::Full;

    #[inline(always)]
    fn new(_: i32) -> Self {
        Full
    }

    #[inline(always)]
    fn row_end(self, _: i32) -> i32 {
        i32::MAX
    }
}

/// Key `j` is allowed for query `i` where `j <= i + offset`.
#[derive(Clone, Copy, Debug)]
pub struct Causal {
    /// `seqlen_k - seqlen_q` for the bottom-right alignment, 0 for the top-left one.
    pub offset: i32,
}

impl Mask for Causal {
    const KIND: MaskKind = MaskKind::Causal;

    #[inline(always)]
    fn new(causal_offset: i32) -> Self {
        Causal { offset: causal_offset }
    }

    #[inline(always)]
    fn row_end(self, i: i32) -> i32 {
        i + self.offset + 1
    }
}
