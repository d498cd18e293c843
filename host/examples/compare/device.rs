//! Where a case runs.

use crate::measure::Failure;
use crate::options::{DeviceChoice, KernelChoice};
use crate::tensors::{Inputs, dims, len, view, view_mut, zeros};
use flash_attention::reference::all_rows;
use flash_attention::{Element, Extras, Problem, plain};
use std::time::{Duration, Instant};

/// What a device made of a case.
pub struct Run<T> {
    pub device: String,
    /// Kernel family, or what stands in for it.
    pub kernel: String,
    /// The whole plan in words.
    pub plan: String,
    /// O in the problem's layout.
    pub o: Vec<T>,
    /// LSE `(batch, heads, seqlen_q)`.
    pub lse: Vec<f32>,
    /// Median time of a call.
    pub time: Duration,
    /// Device memory that the call needs at most, inputs and outputs included.
    pub peak_bytes: Option<u64>,
    /// Time and peak memory of the kernel that materialises the scores.
    pub standard: Option<(Duration, u64)>,
}

/// Runs `problem` on the device that the options ask for.
pub fn run<T: Element>(
    choice: DeviceChoice,
    kernel: KernelChoice,
    problem: &Problem,
    inputs: &Inputs<T>,
) -> Result<Run<T>, Failure> {
    match choice {
        DeviceChoice::Cuda => Err(Failure::new("no CUDA device in this build; use --device cpu")),
        DeviceChoice::Auto | DeviceChoice::Cpu => run_plain(kernel, problem, inputs),
    }
}

fn run_plain<T: Element>(
    kernel: KernelChoice,
    problem: &Problem,
    inputs: &Inputs<T>,
) -> Result<Run<T>, Failure> {
    if !matches!(kernel, KernelChoice::Auto | KernelChoice::Cpu) {
        return Err(Failure::new("--kernel names GPU kernels; leave it out on the CPU"));
    }
    let [q_dim, k_dim, v_dim, o_dim] = dims(problem);
    let extras = Extras::default();
    let index = all_rows(problem, &extras);
    let (q, k, v) = (
        view(&inputs.q, q_dim, problem.q),
        view(&inputs.k, k_dim, problem.k),
        view(&inputs.v, v_dim, problem.v),
    );
    let (rows, time) = median(|| plain::forward(problem, q, k, v, &extras, &index))?;
    let mut o = zeros(len(o_dim))?;
    let mut o_view = view_mut(&mut o, o_dim, problem.o);
    let mut lse = Vec::with_capacity(index.len());
    let row_lse = rows.lse.unwrap_or_default();
    for ((at, row), l) in rows.index.iter().zip(rows.o.outer_iter()).zip(row_lse) {
        for (column, &x) in row.iter().enumerate() {
            o_view[(at.batch, at.row, at.head, column)] = T::from_f32(x as f32);
        }
        lse.push(l as f32);
    }
    Ok(Run {
        device: format!("CPU ({} threads)", rayon::current_num_threads()),
        kernel: "cpu".into(),
        plan: "the plain run: all scores of a row at once".into(),
        o,
        lse,
        time,
        peak_bytes: None,
        standard: None,
    })
}

/// Calls `f` until a second is spent or ten calls are made, and gives the last result and the median time.
fn median<R, E: Into<Failure>>(mut f: impl FnMut() -> Result<R, E>) -> Result<(R, Duration), Failure> {
    let begin = Instant::now();
    let mut times = Vec::new();
    loop {
        let call = Instant::now();
        let result = f().map_err(Into::into)?;
        times.push(call.elapsed());
        if begin.elapsed() > Duration::from_secs(1) || times.len() == 10 {
            times.sort();
            return Ok((result, times[times.len() / 2]));
        }
    }
}
