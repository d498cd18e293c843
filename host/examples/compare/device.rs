//! Where a case runs.

use crate::measure::Failure;
use crate::memory::peak_of;
use crate::options::{DeviceChoice, KernelChoice};
use crate::standard::{Cost, Standard, too_large};
use crate::tensors::{Inputs, dims, len};
use flash_attention::{
    Attention, Device, Element, Family, Problem, Stream, Strides, Tensor, TensorView, cpu, sim,
};
use std::time::{Duration, Instant};

/// What a run on the CPU calls its kernel.
pub const CPU: &str = "cpu";

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
    /// Cost of a call: the median of its times, and its memory.
    pub cost: Cost,
    /// Bytes of the tensors.
    pub tensor_bytes: u64,
    /// Standard attention, where the device has been asked for it.
    pub standard: Option<Standard>,
    /// What the simulated device found wrong with the kernel's accesses.
    pub findings: Vec<String>,
}

/// Runs `problem` on the device that the options ask for.
pub fn run<T: Element>(
    choice: DeviceChoice,
    kernel: KernelChoice,
    problem: &Problem,
    inputs: &Inputs<T>,
) -> Result<Run<T>, Failure> {
    let device = match (choice, kernel) {
        (DeviceChoice::Sim, _) => return simulate(kernel, problem, inputs),
        (DeviceChoice::Cpu, _) | (DeviceChoice::Auto, KernelChoice::Cpu) => Device::Cpu,
        (DeviceChoice::Auto, _) => Device::auto()?,
        (DeviceChoice::Cuda, KernelChoice::Cpu) => {
            return Err(Failure::new("--kernel cpu is no GPU kernel; leave it out or use --device cpu"));
        }
        (DeviceChoice::Cuda, _) => Device::Cuda(0),
    };
    if let (Device::Cpu, Some(family)) = (device, family(kernel)) {
        return Err(Failure::new(format!(
            "--kernel {} is a kernel of the GPU, but the device is the CPU; leave the option out",
            family.name()
        )));
    }
    match run_on(device, family(kernel), problem, inputs) {
        Err(failure)
            if failure.is_unavailable() && choice == DeviceChoice::Auto && kernel == KernelChoice::Auto =>
        {
            let mut run = run_on(Device::Cpu, None, problem, inputs)?;
            run.plan = format!("{} ({failure})", run.plan);
            Ok(run)
        }
        result => result,
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

fn run_on<T: Element>(
    device: Device,
    family: Option<Family>,
    problem: &Problem,
    inputs: &Inputs<T>,
) -> Result<Run<T>, Failure> {
    let (name, gpu) = device.describe()?;
    let [q_dim, k_dim, v_dim, o_dim] = dims(problem).map(|(b, s, h, d)| [b, s, h, d]);
    let lse_dim = [problem.batch, problem.heads, problem.seqlen_q, 1];
    let q = Tensor::from_slice(device, &inputs.q, q_dim)?;
    let k = Tensor::from_slice(device, &inputs.k, k_dim)?;
    let v = Tensor::from_slice(device, &inputs.v, v_dim)?;
    // NaN in the outputs, so that what a kernel leaves out cannot pass for a result.
    let mut o = filled(device, o_dim, T::from_f32(f32::NAN))?;
    let mut lse = filled(device, lse_dim, f32::NAN)?;
    let stream = Stream::new(device)?;
    let attention = |family: Option<Family>| -> flash_attention::Result<Attention<'_, T>> {
        let (q, k, v) = (strided(&q, problem.q)?, strided(&k, problem.k)?, strided(&v, problem.v)?);
        let mut attention =
            Attention::forward(q, k, v).causal(problem.causal).window(problem.window).scale(problem.scale);
        if let Some(cap) = problem.softcap {
            attention = attention.softcap(cap);
        }
        Ok(match family {
            Some(family) => attention.kernel(family),
            None => attention,
        })
    };
    let chosen = attention(family)?;
    let plan = chosen.plan(device)?;
    let mut call = |attention: &Attention<'_, T>| {
        attention.run_into(&stream, o.view_mut().with_strides(problem.o)?, Some(lse.view_mut()))
    };
    let (result, host_bytes) = peak_of(|| call(&chosen));
    result?;
    let time = median(&stream, || call(&chosen))?;
    let workspace = match &plan {
        Some(plan) => plan.workspace_bytes(problem),
        None => host_bytes,
    };
    let standard = match &plan {
        Some(plan) if plan.entry.family != Family::Standard => {
            Some(run_standard(&stream, problem, &attention(Some(Family::Standard))?))
        }
        _ => None,
    };
    Ok(Run {
        device: match gpu {
            Some(gpu) => format!("{name} (compute capability {}.{})", gpu.capability.0, gpu.capability.1),
            None => name,
        },
        kernel: plan.map_or(CPU, |plan| plan.entry.family.name()).into(),
        plan: plan.map_or_else(cpu_plan, |plan| plan.to_string()),
        o: o.to_vec()?,
        lse: lse.to_vec()?,
        cost: Cost { time, workspace: Some(workspace) },
        tensor_bytes: tensor_bytes::<T>(problem, inputs),
        standard,
        findings: Vec::new(),
    })
}

/// The same call by the kernel `standard`, unless its scores are too large for something that runs on the side.
fn run_standard<T: Element>(stream: &Stream, problem: &Problem, attention: &Attention<'_, T>) -> Standard {
    let run = || -> Result<Standard, Failure> {
        let Some(plan) = attention.plan(stream.device())? else {
            return Err(Failure::new("the device has no such kernel"));
        };
        let (bytes, free) = (plan.workspace_bytes(problem), stream.device().free_bytes()?.unwrap_or(0));
        if let Some(why) = too_large(bytes, free) {
            return Ok(Standard::Skipped(why));
        }
        let (batch, seqlen, heads, dim) = dims(problem)[3];
        let mut o = Tensor::<T>::zeros(stream.device(), [batch, seqlen, heads, dim])?;
        let mut call = || attention.run_into(stream, o.view_mut().with_strides(problem.o)?, None);
        call()?;
        let cost = Cost { time: median(stream, call)?, workspace: Some(bytes) };
        let rows = problem.batch * problem.heads * problem.seqlen_q;
        Ok(Standard::Ran { cost, rows: (rows, rows) })
    };
    run().unwrap_or_else(|failure| Standard::Skipped(failure.to_string()))
}

/// Bytes of Q, K, V, O and LSE.
fn tensor_bytes<T: Element>(problem: &Problem, inputs: &Inputs<T>) -> u64 {
    let elements = inputs.q.len() + inputs.k.len() + inputs.v.len() + len(dims(problem)[3]);
    let rows = problem.batch * problem.heads * problem.seqlen_q;
    (elements * size_of::<T>() + rows * size_of::<f32>()) as u64
}

/// The kernel that the plan takes for a Hopper GPU, or the one asked for, on the simulated device.
fn simulate<T: Element>(
    kernel: KernelChoice,
    problem: &Problem,
    inputs: &Inputs<T>,
) -> Result<Run<T>, Failure> {
    if kernel == KernelChoice::Cpu {
        return Err(Failure::new("--kernel cpu is no kernel of the GPU; leave it out or use --device cpu"));
    }
    let options = sim::Options { kernel: family(kernel), ..sim::Options::default() };
    let begin = Instant::now();
    let outcome = sim::forward(problem, &inputs.q, &inputs.k, &inputs.v, &options)?;
    let mut findings: Vec<String> = outcome.report.findings.iter().map(ToString::to_string).collect();
    if outcome.report.more_findings > 0 {
        findings.push(format!("{} more findings", outcome.report.more_findings));
    }
    Ok(Run {
        device: "simulated GPU".into(),
        kernel: outcome.plan.entry.family.name().into(),
        plan: outcome.plan.to_string(),
        o: outcome.o,
        lse: outcome.lse,
        cost: Cost { time: begin.elapsed(), workspace: Some(outcome.plan.workspace_bytes(problem)) },
        tensor_bytes: tensor_bytes::<T>(problem, inputs),
        standard: None,
        findings,
    })
}

fn cpu_plan() -> String {
    format!("tiles on the CPU's vectors ({})", cpu::instruction_set())
}

fn strided<T: Element>(tensor: &Tensor<T>, strides: Strides) -> flash_attention::Result<TensorView<'_, T>> {
    tensor.view().with_strides(strides)
}

fn filled<T: Element>(device: Device, shape: [usize; 4], value: T) -> Result<Tensor<T>, Failure> {
    Ok(Tensor::from_slice(device, &vec![value; shape.iter().product()], shape)?)
}

/// The median over rounds of the mean time of a call. A round on the GPU is as many calls as fill a millisecond, put
/// into the stream at once, so that the host's own time hides behind the device's.
fn median(
    stream: &Stream,
    mut call: impl FnMut() -> flash_attention::Result<()>,
) -> Result<Duration, Failure> {
    let (budget, fill) = match stream.device() {
        Device::Cpu => (Duration::from_secs(1), Duration::ZERO),
        Device::Cuda(_) => (Duration::from_millis(200), Duration::from_millis(1)),
    };
    let begin = Instant::now();
    let mut calls = 1;
    let mut times = Vec::new();
    while times.len() < 20 && (times.is_empty() || begin.elapsed() < budget) {
        let ((), time) = stream.time(|| (0..calls).try_for_each(|_| call()))?;
        if calls == 1 && time < fill {
            calls = (fill.as_nanos() / time.as_nanos().max(1)).clamp(2, 200) as u32;
            continue;
        }
        times.push(time / calls);
    }
    times.sort();
    Ok(times[times.len() / 2])
}
