//! The plain run: attention as a textbook writes it, in the precision of its type. Its error is the yardstick of the
//! tolerances in [`crate::check`].
//!
//! Scores and softmax are f32; the weights P and the output O are rounded to the element type, as a framework that
//! materialises them would.

use crate::element::Element;
use crate::error::Result;
use crate::extras::Extras;
use crate::problem::Problem;
use crate::reference::{RowIndex, RowInput, RowOutput, Rows, each_row};
use ndarray::ArrayView4;

/// O and LSE of the rows `rows`, as [`reference::forward`](crate::reference::forward) but in the precision of `T`. The
/// values of O are exact in `T`, those of LSE in f32.
///
/// ```
/// use flash_attention::{DType, Extras, Problem, check, plain, reference};
/// use half::bf16;
/// use ndarray::Array4;
/// let problem = Problem::new(DType::Bf16, 1, 20, 1, 8);
/// let x = Array4::from_shape_fn((1, 20, 1, 8), |(_, s, _, d)| bf16::from_f32(((s * 13 + d) as f32).sin()));
/// let (x, extras) = (x.view(), Extras::default());
/// let rows = reference::all_rows(&problem, &extras);
/// let truth = reference::forward(&problem, x, x, x, &extras, &rows)?;
/// let error = check::errors(&plain::forward(&problem, x, x, x, &extras, &rows)?, &truth).relative;
/// assert!(error > 1e-4 && error < 1e-2); // Roundings of bf16.
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
    each_row(problem, q, k, v, extras, rows, |row| attend::<T>(problem, row))
}

fn attend<T: Element>(problem: &Problem, row: &RowInput<'_, '_>) -> RowOutput {
    let scores: Vec<f32> = (0..row.keys())
        .map(|j| if row.allows(j) { score(problem, row, j) } else { f32::NEG_INFINITY })
        .collect();
    let logits = || scores.iter().copied().chain(row.sink);
    if logits().any(f32::is_nan) {
        return RowOutput { o: vec![f64::NAN; problem.head_dim_v], lse: f64::NAN };
    }
    let max = logits().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return RowOutput { o: vec![0.0; problem.head_dim_v], lse: f64::NEG_INFINITY };
    }
    let sum: f32 = logits().map(|s| (s - max).exp()).sum();
    let mut o = vec![0.0; problem.head_dim_v];
    for (j, s) in scores.iter().enumerate() {
        let weight = T::from_f32((s - max).exp() / sum).to_f32();
        if weight > 0.0 {
            o.iter_mut().zip(row.v(j)).for_each(|(o, v)| *o += weight * v);
        }
    }
    let round = |x: f32| f64::from(T::from_f32(x).to_f32());
    RowOutput { o: o.into_iter().map(round).collect(), lse: f64::from(max + sum.ln()) }
}

fn score(problem: &Problem, row: &RowInput<'_, '_>, j: usize) -> f32 {
    let mut s = problem.scale * dot(row.q, row.k(j));
    if let Some(cap) = problem.softcap {
        s = cap * (s / cap).tanh();
    }
    if let Some(slope) = row.alibi_slope {
        s -= slope * row.distance(j) as f32;
    }
    if let Some(bias) = row.bias(j) {
        s += bias;
    }
    s
}

/// `a . b` in f32, in eight partial sums so that the compiler may use vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + tail
}
