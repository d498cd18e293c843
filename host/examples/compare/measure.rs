//! One case from its options to its result: inputs, run, reference, verdict.

use crate::device::{self, Run};
use crate::files::{self, File, FileElement};
use crate::memory::peak_of;
use crate::options::{CaseOptions, Check, Layout, Options};
use crate::standard::{Cost, Standard};
use crate::tensors::{Inputs, dims, view};
use flash_attention::check::{Report, errors, judge};
use flash_attention::reference::{Rows, all_rows, sample_rows};
use flash_attention::{Causal, DType, Extras, Problem, Window, plain, reference};
use half::{bf16, f16};
use indicatif::{ProgressBar, ProgressStyle};
use ndarray::ArrayView3;
use std::time::{Duration, Instant};

/// Why a case could not be run.
#[derive(Clone, Debug)]
pub struct Failure {
    text: String,
    unavailable: bool,
}

impl Failure {
    /// The case is wrong, or something broke.
    pub fn new(text: impl Into<String>) -> Self {
        Failure { text: text.into(), unavailable: false }
    }

    /// Whether another device may do.
    pub fn is_unavailable(&self) -> bool {
        self.unavailable
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<flash_attention::Error> for Failure {
    fn from(error: flash_attention::Error) -> Self {
        let unavailable = matches!(error, flash_attention::Error::Unavailable { .. });
        Failure { text: error.to_string(), unavailable }
    }
}

/// A case that ran.
pub struct Outcome {
    pub problem: Problem,
    pub layout: Layout,
    pub device: String,
    pub kernel: String,
    pub plan: String,
    pub cost: Cost,
    pub tensor_bytes: u64,
    /// None where the run itself is standard attention, or simulated.
    pub standard: Option<Standard>,
    /// What the simulated device found wrong with the kernel's accesses.
    pub findings: Vec<String>,
    /// Rows held against the reference, of how many.
    pub checked: (usize, usize),
    /// Against the reference; none where no check was asked for.
    pub report: Option<Report>,
    /// Against the results in the input file, where it has them.
    pub file_report: Option<Report>,
}

impl Outcome {
    pub fn ok(&self) -> bool {
        self.findings.is_empty() && [&self.report, &self.file_report].into_iter().flatten().all(Report::ok)
    }

    /// One sentence for each broken rule.
    pub fn failures(&self) -> Vec<String> {
        let part = |report: &Option<Report>, against: &str| -> Vec<String> {
            report.iter().flat_map(|r| &r.failures).map(|text| format!("{text}{against}")).collect()
        };
        let of_file = part(&self.file_report, " (against the file's own result)");
        [self.findings.clone(), part(&self.report, ""), of_file].concat()
    }

    /// What standard attention costs, where it was run.
    pub fn standard_cost(&self) -> Option<Cost> {
        self.standard.as_ref().and_then(Standard::cost)
    }

    /// How many times as long standard attention takes.
    pub fn speedup(&self) -> Option<f64> {
        let seconds = self.cost.time.as_secs_f64();
        self.standard_cost().filter(|_| seconds > 0.0).map(|cost| cost.time.as_secs_f64() / seconds)
    }

    /// Operations a second, in units of 1e12; none where nothing was computed.
    pub fn tflops(&self) -> Option<f64> {
        let seconds = self.cost.time.as_secs_f64();
        (seconds > 0.0).then(|| self.problem.flop() / seconds / 1e12)
    }
}

/// Runs one case and checks it.
pub fn measure_case(options: &Options, case: &CaseOptions) -> Result<Outcome, Failure> {
    let layout = case.layout.unwrap_or_default();
    let file = match options.input.as_slice() {
        [] => None,
        paths => Some(files::read(paths, layout)?),
    };
    let asked = case.dtype.map(|choice| choice.dtype());
    let dtype = match (&file, asked) {
        (Some(file), Some(asked)) if asked != file.dtype => {
            return Err(Failure::new(format!(
                "--dtype is {}, but the input file holds {}; leave the option out or convert the file",
                asked.name(),
                file.dtype.name()
            )));
        }
        (Some(file), _) => file.dtype,
        (None, asked) => asked.unwrap_or(DType::F16),
    };
    match dtype {
        DType::F16 => measure::<f16>(options, case, file),
        DType::Bf16 => measure::<bf16>(options, case, file),
        DType::F32 => measure::<f32>(options, case, file),
    }
}

fn measure<T: FileElement>(
    options: &Options,
    case: &CaseOptions,
    file: Option<File>,
) -> Result<Outcome, Failure> {
    let progress = Progress::new();
    let sizes = match &file {
        Some(file) => {
            case.agree_with(&file.sizes)?;
            file.sizes
        }
        None => case.sizes(),
    };
    let problem = case.problem(T::DTYPE, sizes)?;
    let (inputs, expected) = match file {
        Some(file) => file.split::<T>(&problem)?,
        None => {
            progress.say("making the tensors");
            (Inputs::random(&problem, case.seed.unwrap_or(0))?, None)
        }
    };

    progress.say("running the device");
    let run = device::run(options.device, case.kernel.unwrap_or_default(), &problem, &inputs)?;
    if let Some(path) = &options.output {
        files::write(path, &problem, case.layout.unwrap_or_default(), &run.o, &run.lse)?;
    }

    let extras = Extras::default();
    let total = problem.batch * problem.seqlen_q * problem.heads;
    let rows = match case.check.unwrap_or_default() {
        Check::None => None,
        Check::Full => Some(all_rows(&problem, &extras)),
        Check::Auto if problem.flop() <= (1u64 << 31) as f64 => Some(all_rows(&problem, &extras)),
        Check::Auto => Some(sample_rows(&problem, &extras, 1024, case.seed.unwrap_or(0))),
        Check::Rows(n) => Some(sample_rows(&problem, &extras, n, case.seed.unwrap_or(0))),
    };
    let checked = (rows.as_ref().map_or(0, Vec::len), total);
    let on_cpu = run.kernel == device::CPU;
    let mut standard = match run.standard.clone() {
        None if on_cpu && checked.0 < checked.1.min(1) => {
            Some(Standard::Skipped("it is part of the check, and --check is none".into()))
        }
        standard => standard,
    };
    let (mut report, mut file_report) = (None, None);
    if let Some(rows) = rows {
        let [q_dim, k_dim, v_dim, o_dim] = dims(&problem);
        let (q, k, v) = (
            view(&inputs.q, q_dim, problem.q),
            view(&inputs.k, k_dim, problem.k),
            view(&inputs.v, v_dim, problem.v),
        );
        progress.say(&format!("computing {} rows of the f64 reference", rows.len()));
        let truth = reference::forward(&problem, q, k, v, &extras, &rows)?;
        progress.say(&format!("computing {} rows of the plain run", rows.len()));
        let begin = Instant::now();
        let (plain, workspace) = peak_of(|| plain::forward(&problem, q, k, v, &extras, &rows));
        let (plain, time) = (plain?, begin.elapsed());
        if on_cpu && checked.0 > 0 {
            standard = Some(Standard::plain(time, workspace, checked));
        }
        let found = gather(&problem, &run, o_dim, &rows);
        let plain = errors(&plain, &truth);
        if let Some(expected) = expected.and_then(|expected| expected.rows(&problem, &rows)) {
            file_report = Some(judge(T::DTYPE, &found, &expected, plain.clone()));
        }
        report = Some(judge(T::DTYPE, &found, &truth, plain));
    }
    Ok(Outcome {
        problem,
        layout: case.layout.unwrap_or_default(),
        device: run.device,
        kernel: run.kernel,
        plan: run.plan,
        cost: run.cost,
        tensor_bytes: run.tensor_bytes,
        standard,
        findings: run.findings,
        checked,
        report,
        file_report,
    })
}

fn gather<T: FileElement>(
    problem: &Problem,
    run: &Run<T>,
    o_dim: (usize, usize, usize, usize),
    rows: &[reference::RowIndex],
) -> Rows {
    let lse = ArrayView3::from_shape((problem.batch, problem.heads, problem.seqlen_q), &run.lse)
        .expect("one LSE a row");
    Rows::gather(view(&run.o, o_dim, problem.o), Some(lse), rows)
}

/// Whether the results in a file can be those of this problem: files know two masks and nothing else.
pub fn file_mask(problem: &Problem) -> Option<&'static str> {
    if problem.window != Window::default() || problem.softcap.is_some() {
        return None;
    }
    match problem.causal {
        Causal::No => Some(""),
        Causal::BottomRight => Some("_causal"),
        Causal::TopLeft => (problem.seqlen_q == problem.seqlen_k).then_some("_causal"),
    }
}

/// A line on the terminal about what takes long; silent elsewhere.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("a fixed template"));
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress(bar)
    }

    fn say(&self, what: &str) {
        self.0.set_message(what.to_string());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
