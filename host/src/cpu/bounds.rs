//! Which keys a row may see by the causal mask, the window and the lengths: always one range, and the one owner of it
//! on the CPU device.

use crate::extras::Sequence;
use crate::problem::{Causal, Problem};
use std::ops::Range;

/// The bounds of every row of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Keys of the sequence.
    keys: i64,
    /// The offset δ of the masks.
    diagonal: i64,
    /// Keys to the left of the diagonal.
    left: i64,
    /// Keys to the right of the diagonal.
    right: i64,
}

impl Bounds {
    /// The bounds that `problem` sets in `sequence`.
    pub fn new(problem: &Problem, sequence: &Sequence) -> Self {
        // Far beyond any sequence, and still safe to add to one.
        const OPEN: i64 = 1 << 40;
        let side =
            |bound: Option<usize>| bound.map_or(OPEN, |n| i64::try_from(n).map_or(OPEN, |n| n.min(OPEN)));
        let right = side(problem.window.right);
        Bounds {
            keys: sequence.k.len() as i64,
            diagonal: sequence.diagonal(problem.causal),
            left: side(problem.window.left),
            right: if problem.causal == Causal::No { right } else { right.min(0) },
        }
    }

    /// The key on the diagonal of row `i`, inside the sequence or not.
    pub fn center(&self, i: usize) -> i64 {
        i as i64 + self.diagonal
    }

    /// The keys that row `i` may see.
    pub fn row(&self, i: usize) -> Range<usize> {
        let center = self.center(i);
        let begin = (center - self.left).clamp(0, self.keys);
        let end = (center + self.right + 1).clamp(begin, self.keys);
        begin as usize..end as usize
    }
}

/// How some rows see a block of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// No row sees any key.
    Nothing,
    /// Some row does not see some key.
    Part,
    /// Every row sees every key.
    Whole,
}

impl Sight {
    /// How rows with these ranges see the keys `block`.
    pub fn of(rows: impl Iterator<Item = Range<usize>>, block: Range<usize>) -> Self {
        let (mut any, mut all) = (false, true);
        for keys in rows {
            any |= !keys.is_empty() && keys.start < block.end && block.start < keys.end;
            all &= keys.start <= block.start && block.end <= keys.end;
        }
        match (any, all) {
            (false, _) => Sight::Nothing,
            (true, false) => Sight::Part,
            (true, true) => Sight::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{DType, Window};

    #[test]
    fn ranges_are_the_inequalities() {
        for (s_q, s_k) in [(6usize, 9usize), (9, 6), (5, 5), (4, 0), (0, 4), (1, 7)] {
            for causal in [Causal::No, Causal::BottomRight, Causal::TopLeft] {
                for (left, right) in [
                    (None, None),
                    (Some(2), None),
                    (None, Some(1)),
                    (Some(0), Some(0)),
                    (Some(3), Some(2)),
                    (Some(usize::MAX), Some(usize::MAX)),
                ] {
                    let window = Window { left, right };
                    let problem = Problem { causal, window, ..Problem::new(DType::F32, 1, 1, 1, 8) };
                    let bounds = Bounds::new(&problem, &Sequence { batch: 0, q: 0..s_q, k: 0..s_k });
                    let delta = if causal == Causal::TopLeft { 0 } else { s_k as i128 - s_q as i128 };
                    for i in 0..s_q {
                        let at = i as i128 + delta;
                        let seen: Vec<usize> = (0..s_k)
                            .filter(|&j| {
                                let j = j as i128;
                                (causal == Causal::No || j <= at)
                                    && left.is_none_or(|left| at - left as i128 <= j)
                                    && right.is_none_or(|right| j <= at + right as i128)
                            })
                            .collect();
                        assert_eq!(bounds.row(i).collect::<Vec<_>>(), seen, "{problem:?} row {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn sight_tells_nothing_part_and_whole_apart() {
        let of = |rows: &[Range<usize>]| Sight::of(rows.iter().cloned(), 4..8);
        assert_eq!(of(&[0..4, 8..9, 3..3]), Sight::Nothing);
        assert_eq!(of(&[0..4, 7..9]), Sight::Part);
        assert_eq!(of(&[0..8, 0..9]), Sight::Whole);
        assert_eq!(of(&[0..8, 0..7]), Sight::Part);
        // An empty range inside the block is not a sight.
        assert_eq!(of(&[5..5, 0..2]), Sight::Nothing);
    }
}
