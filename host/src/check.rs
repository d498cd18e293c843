//! When a result is right: errors against the f64 reference, held to twice those of the plain run.
//!
//! | measure | of the run | limit |
//! | --- | --- | --- |
//! | relative error | `‖O - R‖ / ‖R‖`, Frobenius over all rows | 2 × plain run's + c |
//! | worst row | `‖O_i - R_i‖ / max(‖R_i‖, half the typical ‖R_i‖)` | 2 × plain run's + 4c |
//! | worst element | `max abs(O - R)` | 2 × plain run's + 4c × `max abs(R)` |
//! | LSE | `abs(L - R)` | `1e-4 * max(1, abs(R))` |
//!
//! NaN, and infinities in LSE, must stand in the same places. `c` is [`rounding`] of the type. A row far smaller than
//! the others is measured against half the typical (root mean square) row, because there the plain run's own relative
//! error is chance.

#[cfg(test)]
mod tests;

use crate::problem::DType;
use crate::reference::{RowIndex, Rows};
use ndarray::ArrayView1;

/// The rounding-sized constant `c` of a type: a quarter of its unit roundoff for the 16-bit types, where the rounding
/// of O rules; 16 unit roundoffs for f32, where sums of thousands of terms in another order and the device's
/// exponential do.
///
/// ```
/// use flash_attention::{DType, check};
/// assert_eq!(check::rounding(DType::Bf16), (0.5f64).powi(10));
/// ```
pub const fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / (1u64 << 13) as f64,
        DType::Bf16 => 1.0 / (1u64 << 10) as f64,
        DType::F32 => 1.0 / (1u64 << 20) as f64,
    }
}

/// Where a value stands in O, or in LSE where there is no column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Row of O.
    pub row: RowIndex,
    /// Column of O.
    pub column: Option<usize>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.column {
            Some(column) => write!(f, "O at {}, column {column}", self.row),
            None => write!(f, "LSE at {}", self.row),
        }
    }
}

/// A place with what was found there and what the reference has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Where.
    pub place: Place,
    /// The value under test.
    pub found: f64,
    /// The value of the f64 reference.
    pub expected: f64,
}

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (found, expected) = (in_words(self.found), in_words(self.expected));
        write!(f, "{}: {found}, where the reference has {expected}", self.place)
    }
}

/// All digits of a value, with an exponent only where it saves zeros.
fn in_words(x: f64) -> String {
    if x == 0.0 || (1e-4..1e6).contains(&x.abs()) { format!("{x}") } else { format!("{x:e}") }
}

/// The errors of one run against the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    /// Relative Frobenius error of O.
    pub relative: f64,
    /// Relative error of the worst row of O.
    pub worst_row: f64,
    /// Which row that is.
    pub worst_row_at: Option<RowIndex>,
    /// Largest absolute error of an element of O.
    pub max_abs: f64,
    /// Where that is.
    pub worst: Option<Pair>,
    /// Largest absolute error of LSE; none where the run has no LSE.
    pub lse_max_abs: Option<f64>,
    /// Largest error of LSE as a share of what is allowed.
    lse_share: f64,
    lse_worst: Option<Pair>,
    /// First place where NaN or an infinity stands on one side only.
    pub misplaced: Option<Pair>,
}

/// The largest errors of O that pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// For [`Errors::relative`].
    pub relative: f64,
    /// For [`Errors::worst_row`].
    pub worst_row: f64,
    /// For [`Errors::max_abs`].
    pub max_abs: f64,
}

/// A run held against the plain run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Errors of the run under test.
    pub run: Errors,
    /// Errors of the plain run.
    pub plain: Errors,
    /// What the errors of the run may be.
    pub limits: Limits,
    /// One sentence for each rule that is broken, with the worst index and both values; empty if the run is right.
    pub failures: Vec<String>,
}

impl Report {
    /// Whether the run is right.
    pub fn ok(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Measures `run` and `plain` against `truth` and judges `run` by the rule of this module.
///
/// ```
/// use flash_attention::reference::{self, Rows};
/// use flash_attention::{Attention, Device, Extras, Stream, Tensor, check, plain};
/// use half::f16;
/// use ndarray::{Array3, Array4};
///
/// // Attention on the CPU device, held against the reference.
/// let shape = [1, 30, 2, 8];
/// let values: Vec<f16> = (0..480).map(|n| f16::from_f32((n as f32).sin())).collect();
/// let x = Tensor::from_slice(Device::Cpu, &values, shape)?;
/// let attention = Attention::forward(&x, &x, &x).causal(true);
/// let (problem, output) = (attention.problem()?, attention.run(&Stream::new(Device::Cpu)?)?);
///
/// let (extras, x) = (Extras::default(), Array4::from_shape_vec(shape, values).unwrap());
/// let rows = reference::all_rows(&problem, &extras);
/// let truth = reference::forward(&problem, x.view(), x.view(), x.view(), &extras, &rows)?;
/// let plain = plain::forward(&problem, x.view(), x.view(), x.view(), &extras, &rows)?;
/// let o = Array4::from_shape_vec(shape, output.o.to_vec()?).unwrap();
/// let lse = Array3::from_shape_vec([1, 2, 30], output.lse.to_vec()?).unwrap();
/// let mut run = Rows::gather(o.view(), Some(lse.view()), &rows);
/// assert!(check::check(problem.dtype, &run, &truth, &plain).ok());
///
/// // A fault of a hundredth in one element is found, and where it is.
/// run.o[(7, 3)] += 0.01;
/// let report = check::check(problem.dtype, &run, &truth, &plain);
/// assert!(report.failures.last().unwrap().contains("worst O at batch 0, row 7, head 0, column 3: "));
/// # Ok::<(), flash_attention::Error>(())
/// ```
///
/// # Panics
/// Where the three do not hold the same rows.
pub fn check(dtype: DType, run: &Rows, truth: &Rows, plain: &Rows) -> Report {
    judge(dtype, run, truth, errors(plain, truth))
}

/// Measures `run` against `truth` and judges it by errors of a plain run that are already known: where `truth` is a
/// result of unknown worth, the plain run's distance from it must not make room for its faults.
///
/// # Panics
/// Where the two do not hold the same rows.
pub fn judge(dtype: DType, run: &Rows, truth: &Rows, plain: Errors) -> Report {
    let largest = truth.o.iter().filter(|x| x.is_finite()).fold(0.0f64, |max, x| max.max(x.abs()));
    let run = errors(run, truth);
    let c = rounding(dtype);
    let limits = Limits {
        relative: 2.0 * plain.relative + c,
        worst_row: 2.0 * plain.worst_row + 4.0 * c,
        max_abs: 2.0 * plain.max_abs + 4.0 * c * largest,
    };
    let mut failures: Vec<String> = run.misplaced.iter().map(Pair::to_string).collect();
    let row = run.worst_row_at.map_or(String::new(), |at| format!(" ({at})"));
    for (what, error, plain_error, limit) in [
        ("relative error is".into(), run.relative, plain.relative, limits.relative),
        (format!("worst row{row} is off by"), run.worst_row, plain.worst_row, limits.worst_row),
        ("worst element is off by".into(), run.max_abs, plain.max_abs, limits.max_abs),
    ] {
        if error > limit {
            let worst = run.worst.map_or(String::new(), |pair| format!("; worst {pair}"));
            failures.push(format!(
                "{what} {error:.3e}, above {limit:.3e} (the plain run has {plain_error:.3e}){worst}"
            ));
        }
    }
    if let Some(pair) = run.lse_worst
        && run.lse_share > 1.0
    {
        failures.push(format!(
            "{pair}, off by {:.3e}; allowed is 1e-4 * max(1, |lse|)",
            (pair.found - pair.expected).abs()
        ));
    }
    Report { run, plain, limits, failures }
}

/// Measures `run` against `truth`. Places where either side is not finite count as misplaced or not at all.
///
/// # Panics
/// Where the two do not hold the same rows.
pub fn errors(run: &Rows, truth: &Rows) -> Errors {
    assert!(run.index == truth.index && run.o.dim() == truth.o.dim(), "the two runs hold different rows");
    let mut errors = Errors::default();
    let square = |x: f64| if x.is_finite() { x * x } else { 0.0 };
    let norm = |row: ArrayView1<'_, f64>| row.iter().map(|&x| square(x)).sum::<f64>().sqrt();
    let total = truth.o.iter().map(|&x| square(x)).sum::<f64>().sqrt();
    let typical = total / (truth.index.len().max(1) as f64).sqrt();
    let mut total_error = 0.0;
    for ((found, expected), &at) in run.o.outer_iter().zip(truth.o.outer_iter()).zip(&truth.index) {
        let mut row_error = 0.0;
        for (column, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            let pair = Pair { place: Place { row: at, column: Some(column) }, found, expected };
            if let Some(difference) = errors.difference(pair) {
                row_error += difference * difference;
                if difference > errors.max_abs {
                    (errors.max_abs, errors.worst) = (difference, Some(pair));
                }
            }
        }
        total_error += row_error;
        let relative = ratio(row_error.sqrt(), norm(expected).max(0.5 * typical));
        if relative > errors.worst_row {
            (errors.worst_row, errors.worst_row_at) = (relative, Some(at));
        }
    }
    errors.relative = ratio(total_error.sqrt(), total);
    if let (Some(found), Some(expected)) = (&run.lse, &truth.lse) {
        let mut max_abs = 0.0f64;
        for ((&found, &expected), &at) in found.iter().zip(expected).zip(&truth.index) {
            let pair = Pair { place: Place { row: at, column: None }, found, expected };
            if let Some(difference) = errors.difference(pair) {
                max_abs = max_abs.max(difference);
                let share = difference / (1e-4 * expected.abs().max(1.0));
                if share > errors.lse_share {
                    (errors.lse_share, errors.lse_worst) = (share, Some(pair));
                }
            }
        }
        errors.lse_max_abs = Some(max_abs);
    }
    errors
}

impl Errors {
    /// The distance of two finite values; notes the first pair that is not finite and not the same.
    fn difference(&mut self, pair: Pair) -> Option<f64> {
        if pair.found.is_finite() && pair.expected.is_finite() {
            return Some((pair.found - pair.expected).abs());
        }
        let same = pair.found == pair.expected || (pair.found.is_nan() && pair.expected.is_nan());
        if !same && self.misplaced.is_none() {
            self.misplaced = Some(pair);
        }
        None
    }
}

/// `error / size`, where no error of nothing is no error.
fn ratio(error: f64, size: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / size }
}
