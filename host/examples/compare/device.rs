//! Where a case runs.

use crate::cuda::Gpu;
use crate::measure::Failure;
use crate::options::{DeviceChoice, KernelChoice};
use crate::tensors::{Inputs, dims, len, view, view_mut, zeros};
use flash_attention::reference::all_rows;
use flash_attention::{Element, Extras, Family, Problem, plain};
use std::time::{Duration, Instant};

/// What a device made of a case.
pub struct Run<T> {
    /// The device in words.
    pub device: String,
    /// Kernel family, or `cpu`.
    pub kernel: String,
    /// The whole plan in words.
    pub plan: String,
    /// O in the problem's layout.
    pub o: Vec<T>,
    /// LSE `(batch, heads, seqlen_q)`.
    pub lse: Vec<f32>,
    /// Cost of a call.
    pub timing: Timing,
    /// Cost of a call of the kernel that materialises the scores, where it was run beside.
    pub standard: Option<Timing>,
}

/// What a call costs.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Median time of a call.
    pub time: Duration,
    /// Most memory in use, tensors included, where it is known.
    pub peak_bytes: Option<u64>,
}

/// Runs `problem` on the device that the options ask for.
pub fn run<T: Element>(
    choice: DeviceChoice,
    kernel: KernelChoice,
    problem: &Problem,
    inputs: &Inputs<T>,
) -> Result<Run<T>, Failure> {
    let gpu_run = || Gpu::open()?.run(family(kernel), problem, inputs);
    match (choice, kernel) {
        (DeviceChoice::Cuda, KernelChoice::Cpu) => {
            Err(Failure::new("--kernel cpu is no GPU kernel; leave it out or use --device cpu"))
        }
        (DeviceChoice::Cuda, _) => gpu_run(),
        (DeviceChoice::Cpu, KernelChoice::Auto | KernelChoice::Cpu)
        | (DeviceChoice::Auto, KernelChoice::Cpu) => run_plain(problem, inputs),
        (DeviceChoice::Cpu, _) => Err(Failure::new("--kernel names GPU kernels; leave it out on the CPU")),
        (DeviceChoice::Auto, _) => match gpu_run() {
            Err(failure) if failure.is_unavailable() && kernel == KernelChoice::Auto => {
                let mut run = run_plain(problem, inputs)?;
                run.plan = format!("{} ({failure})", run.plan);
                Ok(run)
            }
            result => result,
        },
    }
}

fn family(kernel: KernelChoice) -> Option<Family> {
    match kernel {
        KernelChoice::Auto | KernelChoice::Cpu => None,
        KernelChoice::Standard => Some(Family::Standard),
        KernelChoice::Tiled => Some(Family::Tiled),
        KernelChoice::Sm80 => Some(Family::Sm80),
        KernelChoice::Sm90 => Some(Family::Sm90),
    }
}

fn run_plain<T: Element>(problem: &Problem, inputs: &Inputs<T>) -> Result<Run<T>, Failure> {
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
        timing: Timing { time, peak_bytes: None },
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
