//! Attention forward on the GPU, by GPU time: each call captured in a graph and replayed.
//!
//! A row has 16384 tokens in all and `heads * head_dim = 2048`. Criterion's filter picks rows:
//! `cargo bench -p flash-attention-benches --bench forward -- bf16/d128/causal`. The group `ladder` times every kernel on one shape.

use std::time::Duration;

use anyhow::Result;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use flash_attention::launch::{self, Addresses};
use flash_attention::{Causal, DType, Family, Problem};
use flash_attention_benches::gpu::{Gpu, GpuTime, Graph, Memory};
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

const TOKENS: usize = 16384;
const WIDTH: usize = 2048;

fn main() {
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(why) => {
            eprintln!("SKIPPED: nothing was measured: {why}");
            return;
        }
    };
    let mut criterion = Criterion::default()
        .with_measurement(GpuTime::new(gpu))
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .configure_from_args();
    for dtype in [DType::Bf16, DType::F16] {
        for head_dim in [64, 128, 256] {
            for causal in [Causal::No, Causal::BottomRight] {
                sweep(&mut criterion, gpu, dtype, head_dim, causal);
            }
        }
    }
    ladder(&mut criterion, gpu);
    criterion.final_summary();
}

/// The plan's own choice over the lengths.
fn sweep(criterion: &mut Criterion<GpuTime>, gpu: Gpu, dtype: DType, head_dim: usize, causal: Causal) {
    let mask = if causal == Causal::No { "full" } else { "causal" };
    let mut group = criterion.benchmark_group(format!("{}/d{head_dim}/{mask}", dtype.name()));
    for seqlen in [512, 1024, 2048, 4096, 8192, 16384] {
        let problem = row(dtype, head_dim, seqlen, causal);
        measure(&mut group, BenchmarkId::from_parameter(seqlen), gpu, &problem, None);
    }
}

/// Every kernel on the same shape, from the simplest to the fastest.
fn ladder(criterion: &mut Criterion<GpuTime>, gpu: Gpu) {
    let problem = row(DType::Bf16, 128, 2048, Causal::BottomRight);
    let mut group = criterion.benchmark_group("ladder/bf16/d128/causal/2048");
    for family in [Family::Standard, Family::Tiled, Family::Sm80, Family::Sm90] {
        measure(&mut group, BenchmarkId::from_parameter(family.name()), gpu, &problem, Some(family));
    }
}

fn row(dtype: DType, head_dim: usize, seqlen: usize, causal: Causal) -> Problem {
    let mut problem = Problem::new(dtype, TOKENS / seqlen, seqlen, WIDTH / head_dim, head_dim);
    problem.causal = causal;
    problem
}

/// Replays the call; what cannot run is said, and has no figure.
fn measure(
    group: &mut BenchmarkGroup<'_, GpuTime>,
    id: BenchmarkId,
    gpu: Gpu,
    problem: &Problem,
    kernel: Option<Family>,
) {
    match Call::prepare(gpu, problem, kernel) {
        Ok(call) => {
            group.throughput(Throughput::Elements(problem.flop() as u64));
            group.bench_function(id, |bencher| bencher.iter(|| call.graph.launch()));
        }
        Err(why) => eprintln!("SKIPPED: {why}"),
    }
}

/// A captured call and what it works on; the graph goes first.
struct Call {
    graph: Graph,
    _tensors: [Memory; 4],
}

impl Call {
    fn prepare(gpu: Gpu, problem: &Problem, kernel: Option<Family>) -> Result<Self> {
        let bytes = TOKENS * WIDTH * problem.dtype.size();
        let tensor = |seed| gpu.memory(bytes, &normal(problem.dtype, seed));
        let tensors = [tensor(0)?, tensor(1)?, tensor(2)?, gpu.memory(bytes, &[0xff; 1 << 20])?];
        let [q, k, v, o] = tensors.each_ref().map(Memory::address);
        let graph = gpu.capture(|| {
            // SAFETY: the four tensors are as large as the problem and outlive the graph.
            unsafe { launch::forward(problem, &Addresses { q, k, v, o, lse: 0 }, kernel, gpu.stream()) }
        })?;
        Ok(Call { graph, _tensors: tensors })
    }
}

/// Bytes of normally distributed elements, a prime number of them, so that copies side by side never line up.
fn normal(dtype: DType, seed: u64) -> Vec<u8> {
    const ELEMENTS: usize = 1_048_573;
    let rng = rand::rngs::StdRng::seed_from_u64(seed);
    let elements = StandardNormal.sample_iter(rng).take(ELEMENTS);
    match dtype {
        DType::F16 => elements.flat_map(|x: f32| half::f16::from_f32(x).to_ne_bytes()).collect(),
        DType::Bf16 => elements.flat_map(|x: f32| half::bf16::from_f32(x).to_ne_bytes()).collect(),
        DType::F32 => elements.flat_map(f32::to_ne_bytes).collect(),
    }
}
