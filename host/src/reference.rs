//! The truth: attention forward in f64, one row at a time, written to be obviously right.
//!
//! It obeys the whole contract of docs/semantics.md and computes any choice of rows, so that a large problem can be
//! checked by sampling. [`forward`] is what every kernel and the CPU device are measured against, by the rule of
//! [`crate::check`].

mod rows;
#[cfg(test)]
mod tests;

use crate::element::Element;
use crate::error::Result;
use crate::extras::Extras;
use crate::problem::Problem;
use ndarray::ArrayView4;
pub use rows::{RowIndex, Rows, all_rows, sample_rows};
pub(crate) use rows::{RowInput, RowOutput, each_row};

/// O and LSE of the rows `rows`, in f64 throughout.
///
/// Q is `(batch, seqlen_q, heads, head_dim)`, K `(batch, seqlen_k, kv_heads, head_dim)`, V `(batch, seqlen_k,
/// kv_heads, head_dim_v)`; packed tensors have a batch of 1. The strides of `problem` play no part: the views have
/// their own. [`all_rows`] lists every row that the call writes.
///
/// ```
/// use flash_attention::{DType, Extras, Problem, reference};
/// use ndarray::Array4;
/// let problem = Problem::new(DType::F32, 1, 3, 1, 2);
/// let (q, v) = (Array4::zeros((1, 3, 1, 2)), Array4::from_shape_fn((1, 3, 1, 2), |(_, j, _, _)| j as f32));
/// let extras = Extras::default();
/// let rows = reference::all_rows(&problem, &extras);
/// let truth = reference::forward(&problem, q.view(), q.view(), v.view(), &extras, &rows)?;
/// // Equal scores: the mean of 0, 1 and 2, and ln 3.
/// assert!((truth.o[(0, 0)] - 1.0).abs() < 1e-15);
/// assert_eq!(truth.lse.unwrap()[0], 3f64.ln());
/// # Ok::<(), flash_attention::Error>(())
/// ```
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) where `problem`, `extras` and the views do not fit together.
///
/// # Panics
/// Where `rows` holds a row that the call does not write.
pub fn forward<T: Element>(
    problem: &Problem,
    q: ArrayView4<'_, T>,
    k: ArrayView4<'_, T>,
    v: ArrayView4<'_, T>,
    extras: &Extras<'_>,
    rows: &[RowIndex],
) -> Result<Rows> {
    each_row(problem, q, k, v, extras, rows, |row| attend(problem, row))
}

/// One row of O and its LSE.
fn attend(problem: &Problem, row: &RowInput<'_, '_>) -> RowOutput {
    let keys: Vec<usize> = (0..row.keys()).filter(|&j| row.allows(j)).collect();
    let scores: Vec<f64> = keys.iter().map(|&j| score(problem, row, j)).collect();

    // The sink is one more logit, of a key without a value.
    let sink = row.sink.map(f64::from);
    let logits = || scores.iter().copied().chain(sink);
    if logits().any(f64::is_nan) {
        return RowOutput { o: vec![f64::NAN; problem.head_dim_v], lse: f64::NAN };
    }
    let max = logits().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return RowOutput { o: vec![0.0; problem.head_dim_v], lse: f64::NEG_INFINITY };
    }

    let sum: f64 = logits().map(|s| (s - max).exp()).sum();
    let mut o = vec![0.0; problem.head_dim_v];
    for (&j, s) in keys.iter().zip(&scores) {
        let weight = (s - max).exp() / sum;
        for (o, &v) in o.iter_mut().zip(row.v(j)) {
            *o += weight * f64::from(v);
        }
    }
    RowOutput { o, lse: max + sum.ln() }
}

/// The score of key `j`: scaled product, cap, ALiBi, bias.
fn score(problem: &Problem, row: &RowInput<'_, '_>, j: usize) -> f64 {
    let mut s = f64::from(problem.scale) * dot(row.q, row.k(j));
    if let Some(cap) = problem.softcap {
        let cap = f64::from(cap);
        s = cap * (s / cap).tanh();
    }
    if let Some(slope) = row.alibi_slope {
        s -= f64::from(slope) * row.distance(j) as f64;
    }
    if let Some(bias) = row.bias(j) {
        s += f64::from(bias);
    }
    s
}

/// `a . b` in f64, in eight partial sums so that the compiler may use vectors.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f64 = a_chunks
        .remainder()
        .iter()
        .zip(b_chunks.remainder())
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for (sum, (&a, &b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += f64::from(a) * f64::from(b);
        }
    }
    sums.iter().sum::<f64>() + tail
}
