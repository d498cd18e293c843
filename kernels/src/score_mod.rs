//! What happens to a score between the product and the softmax.

/// Changes one score; `s` is already scaled, `i` is the query row, `j` the key.
pub trait ScoreMod: Copy {
    /// Whether the scores go through unchanged, so that the scale can be folded into the exponential.
    const IDENTITY: bool;

    /// The score that the softmax sees.
    fn apply(self, s: f32, i: i32, j: i32) -> f32;
}

/// Scores as they are.
#[derive(Clone, Copy, Debug)]
pub struct NoScoreMod;

impl ScoreMod for NoScoreMod {
    const IDENTITY: bool = true;

    #[inline(always)]
    fn apply(self, s: f32, _: i32, _: i32) -> f32 {
        s
    }
}
