//! The rows of a call: which there are, what each reads, and what came out for those that were computed.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::extras::{Extras, Sequence, broadcast_index};
use crate::problem::{Causal, Problem};
use ndarray::{Array2, ArrayView2, ArrayView3, ArrayView4, s};
use rayon::prelude::*;
use std::collections::BTreeSet;

/// One row of O: indices into the tensors.
///
/// ```
/// use flash_attention::reference::RowIndex;
/// assert_eq!(RowIndex { batch: 1, head: 2, row: 3 }.to_string(), "batch 1, row 3, head 2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowIndex {
    /// Batch entry; 0 where the tensors are packed.
    pub batch: usize,
    /// Query head.
    pub head: usize,
    /// Row of Q and O.
    pub row: usize,
}

impl std::fmt::Display for RowIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "batch {}, row {}, head {}", self.batch, self.row, self.head)
    }
}

/// Rows of O and their LSE, whoever computed them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Which rows these are.
    pub index: Vec<RowIndex>,
    /// One row of O each: `(rows, head_dim_v)`.
    pub o: Array2<f64>,
    /// One value each; none where the caller did not ask for it.
    pub lse: Option<Vec<f64>>,
}

impl Rows {
    /// Picks the rows `index` out of a whole O `(batch, seqlen_q, heads, head_dim_v)` and a whole LSE
    /// `(batch, heads, seqlen_q)`.
    ///
    /// ```
    /// use flash_attention::reference::{RowIndex, Rows};
    /// use ndarray::Array4;
    /// let o = Array4::from_shape_fn((1, 5, 2, 3), |(_, i, h, _)| (10 * i + h) as f32);
    /// let rows = Rows::gather(o.view(), None, &[RowIndex { batch: 0, head: 1, row: 4 }]);
    /// assert_eq!(rows.o[(0, 0)], 41.0);
    /// ```
    pub fn gather<T: Element>(
        o: ArrayView4<'_, T>,
        lse: Option<ArrayView3<'_, f32>>,
        index: &[RowIndex],
    ) -> Self {
        let mut rows = Array2::zeros((index.len(), o.dim().3));
        for (mut row, at) in rows.outer_iter_mut().zip(index) {
            row.assign(&o.slice(s![at.batch, at.row, at.head, ..]).mapv(|x| f64::from(x.to_f32())));
        }
        let lse = lse.map(|lse| index.iter().map(|at| f64::from(lse[(at.batch, at.head, at.row)])).collect());
        Rows { index: index.to_vec(), o: rows, lse }
    }
}

/// Every row that a call writes, by batch entry, head and row. [`Extras::check`] must have passed.
///
/// ```
/// use flash_attention::{DType, Extras, Problem, reference::all_rows};
/// let problem = Problem::new(DType::F16, 2, 100, 4, 64);
/// assert_eq!(all_rows(&problem, &Extras::default()).len(), 2 * 100 * 4);
/// let padded = Extras { lengths_q: Some(&[100, 7]), ..Extras::default() };
/// assert_eq!(all_rows(&problem, &padded).len(), (100 + 7) * 4);
/// ```
pub fn all_rows(problem: &Problem, extras: &Extras<'_>) -> Vec<RowIndex> {
    let mut rows = Vec::new();
    for sequence in extras.sequences(problem) {
        for head in 0..problem.heads {
            rows.extend(sequence.q.clone().map(|row| RowIndex { batch: sequence.batch, head, row }));
        }
    }
    rows
}

/// `count` of the rows that a call writes (or all, where there are fewer), sorted: half of them the first and the last
/// rows of sequences, where masks and tails go wrong, the others spread by `seed`.
///
/// ```
/// use flash_attention::{DType, Extras, Problem, reference::sample_rows};
/// let problem = Problem::new(DType::F16, 1, 32768, 8, 64);
/// let rows = sample_rows(&problem, &Extras::default(), 64, 1);
/// assert!(rows.len() == 64 && rows.iter().any(|at| at.row == 0) && rows.iter().any(|at| at.row == 32767));
/// ```
pub fn sample_rows(problem: &Problem, extras: &Extras<'_>, count: usize, seed: u64) -> Vec<RowIndex> {
    let sequences: Vec<Sequence> =
        extras.sequences(problem).into_iter().filter(|sequence| !sequence.q.is_empty()).collect();
    let total = sequences.iter().map(|sequence| sequence.q.len()).sum::<usize>() * problem.heads;
    if count >= total {
        return all_rows(problem, extras);
    }
    let mut state = seed;
    let mut below = |n: usize| (split_mix(&mut state) % n as u64) as usize;
    let mut picked = BTreeSet::new();
    for attempt in 0.. {
        if picked.len() == count {
            break;
        }
        let sequence = &sequences[below(sequences.len())];
        // The ends are soon used up where sequences are few: then any row will do.
        let row = match attempt % 4 {
            0 if attempt < 2 * count => sequence.q.start,
            1 if attempt < 2 * count => sequence.q.end - 1,
            _ => sequence.q.start + below(sequence.q.len()),
        };
        picked.insert(RowIndex { batch: sequence.batch, head: below(problem.heads), row });
    }
    picked.into_iter().collect()
}

/// The next number of Steele, Lea and Flood's SplitMix64.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What one row of O is made of. Rows and keys are counted from the sequence's first.
pub(crate) struct RowInput<'a, 'e> {
    /// The query.
    pub q: &'a [f32],
    /// The head's logit in the denominator.
    pub sink: Option<f32>,
    /// The head's ALiBi slope.
    pub alibi_slope: Option<f32>,
    k: ArrayView2<'a, f32>,
    v: ArrayView2<'a, f32>,
    problem: &'a Problem,
    extras: &'a Extras<'e>,
    batch: usize,
    head: usize,
    i: usize,
    diagonal: i64,
}

impl RowInput<'_, '_> {
    /// Keys of the sequence.
    pub fn keys(&self) -> usize {
        self.k.nrows()
    }

    /// Key `j`.
    pub fn k(&self, j: usize) -> &[f32] {
        self.k.row(j).to_slice().expect("a copied head is contiguous")
    }

    /// Value `j`.
    pub fn v(&self, j: usize) -> &[f32] {
        self.v.row(j).to_slice().expect("a copied head is contiguous")
    }

    /// How far key `j` lies from the diagonal: `|i + δ - j|`.
    pub fn distance(&self, j: usize) -> u64 {
        (self.i as i64 + self.diagonal).abs_diff(j as i64)
    }

    /// What is added to the score of key `j`.
    pub fn bias(&self, j: usize) -> Option<f32> {
        self.extras.bias.map(|bias| bias.at(self.batch, self.head, self.i, j))
    }

    /// Whether the row may attend to key `j`: the intersection of all masks.
    pub fn allows(&self, j: usize) -> bool {
        let center = self.i as i64 + self.diagonal;
        let far = |bound: Option<usize>| bound.map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
        let window = self.problem.window;
        let j_at = j as i64;
        (self.problem.causal == Causal::No || j_at <= center)
            && j_at >= center.saturating_sub(far(window.left))
            && j_at <= center.saturating_add(far(window.right))
            && self
                .extras
                .mask
                .is_none_or(|mask| mask[broadcast_index(mask.dim(), (self.batch, self.head, self.i, j))])
            && self.bias(j) != Some(f32::NEG_INFINITY)
    }
}

/// What one row comes to.
pub(crate) struct RowOutput {
    /// The row of O.
    pub o: Vec<f64>,
    /// Its LSE.
    pub lse: f64,
}

/// Computes `rows` by `attend`, in parallel over heads and rows.
pub(crate) fn each_row<T: Element>(
    problem: &Problem,
    q: ArrayView4<'_, T>,
    k: ArrayView4<'_, T>,
    v: ArrayView4<'_, T>,
    extras: &Extras<'_>,
    rows: &[RowIndex],
    attend: impl Fn(&RowInput<'_, '_>) -> RowOutput + Sync,
) -> Result<Rows> {
    check(problem, q.dim(), k.dim(), v.dim(), T::DTYPE, extras)?;
    let sequences = extras.sequences(problem);
    let same_head = |a: &RowIndex, b: &RowIndex| {
        (a.batch, a.head) == (b.batch, b.head) && sequence_of(&sequences, a).q == sequence_of(&sequences, b).q
    };
    let groups: Vec<&[RowIndex]> = rows.chunk_by(same_head).collect();
    let outputs: Vec<Vec<RowOutput>> = groups
        .par_iter()
        .map(|group| {
            let (batch, head) = (group[0].batch, group[0].head);
            let sequence = sequence_of(&sequences, &group[0]);
            let kv_head = problem.kv_head(head);
            // f32 holds every element type exactly.
            let copy = |t: &ArrayView4<'_, T>| {
                t.slice(s![batch, sequence.k.clone(), kv_head, ..]).as_standard_layout().mapv(T::to_f32)
            };
            let (k, v) = (copy(&k), copy(&v));
            group
                .par_iter()
                .map(|at| {
                    let q: Vec<f32> =
                        q.slice(s![batch, at.row, head, ..]).iter().map(|x| x.to_f32()).collect();
                    attend(&RowInput {
                        q: &q,
                        sink: extras.sink.map(|sink| sink[head]),
                        alibi_slope: extras.alibi_slopes.map(|slopes| slopes[head]),
                        k: k.view(),
                        v: v.view(),
                        problem,
                        extras,
                        batch,
                        head,
                        i: at.row - sequence.q.start,
                        diagonal: sequence.diagonal(problem.causal),
                    })
                })
                .collect()
        })
        .collect();

    let mut o = Array2::zeros((rows.len(), problem.head_dim_v));
    let mut lse = Vec::with_capacity(rows.len());
    for (mut row, output) in o.outer_iter_mut().zip(outputs.into_iter().flatten()) {
        row.iter_mut().zip(&output.o).for_each(|(to, &from)| *to = from);
        lse.push(output.lse);
    }
    Ok(Rows { index: rows.to_vec(), o, lse: Some(lse) })
}

/// The sequence that a row belongs to.
fn sequence_of<'a>(sequences: &'a [Sequence], at: &RowIndex) -> &'a Sequence {
    sequences
        .iter()
        .find(|sequence| sequence.batch == at.batch && sequence.q.contains(&at.row))
        .expect("the row lies within a sequence")
}

type Dim = (usize, usize, usize, usize);

fn check(problem: &Problem, q: Dim, k: Dim, v: Dim, dtype: crate::DType, extras: &Extras<'_>) -> Result<()> {
    problem.check()?;
    extras.check(problem)?;
    if dtype != problem.dtype {
        return Err(Error::invalid(
            "dtype",
            dtype.name(),
            format!("the problem says {}", problem.dtype.name()),
            "make the tensors and the problem agree",
        ));
    }
    let p = problem;
    for (name, dim, expected) in [
        ("q", q, (p.batch, p.seqlen_q, p.heads, p.head_dim)),
        ("k", k, (p.batch, p.seqlen_k, p.kv_heads, p.head_dim)),
        ("v", v, (p.batch, p.seqlen_k, p.kv_heads, p.head_dim_v)),
    ] {
        if dim != expected {
            return Err(Error::invalid(
                name,
                format!("{dim:?}"),
                format!("the problem says (batch, sequence, heads, head dim) = {expected:?}"),
                "make the tensors and the problem agree",
            ));
        }
    }
    Ok(())
}
