//! The CPU device beside the `gemm` crate's f32 product on the same two matrix shapes, on one thread and on all.
//!
//! `cargo bench -p flash-attention-benches --bench cpu`. Before the rows of criterion it prints the share of `gemm`'s
//! speed from calls in turn, the best of each: that is the figure to quote from a machine that is not quiet.

use criterion::{BenchmarkId, Criterion, Throughput};
use flash_attention::reference::all_rows;
use flash_attention::{Causal, DType, Element, Extras, Problem, cpu, plain};
use gemm::Parallelism;
use half::{bf16, f16};
use ndarray::Array4;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::time::{Duration, Instant};

const SEQLEN: usize = 2048;
/// The attention kernel has to reach this share of two plain products.
const LEAST_SHARE: f64 = 1.0 / 3.0;

fn main() {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    println!("vectors: {}", cpu::instruction_set());
    for threads in if all == 1 { vec![1] } else { vec![1, all] } {
        for head_dim in [64, 128] {
            share(threads, head_dim);
        }
    }
    against_plain();

    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for head_dim in [64, 128] {
        rows::<f32>(&mut criterion, head_dim);
        rows::<f16>(&mut criterion, head_dim);
        rows::<bf16>(&mut criterion, head_dim);
    }
    criterion.final_summary();
}

fn pool(threads: usize) -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started")
}

/// Attention's speed as a share of that of its two products by `gemm`.
fn share(threads: usize, head_dim: usize) {
    let problem = Problem::new(DType::F32, 1, SEQLEN, 1, head_dim);
    let mut call = Call::<f32>::new(problem);
    let mut scores = vec![0.0; SEQLEN * SEQLEN];
    let parallelism = if threads == 1 { Parallelism::None } else { Parallelism::Rayon(threads) };
    let (mut products, mut attention) = (f64::MAX, f64::MAX);
    pool(threads).install(|| {
        for _ in 0..40 {
            products = products.min(seconds(|| {
                let (s, d) = (SEQLEN, head_dim);
                product([s, s, d], &call.q, &call.k, (1, d), &mut scores, parallelism);
                product([s, d, s], &scores, &call.v, (d, 1), &mut call.o, parallelism);
            }));
            attention = attention.min(seconds(|| call.run()));
        }
    });
    let speed = |seconds: f64| problem.flop() / seconds * 1e-9;
    let verdict = if products / attention >= LEAST_SHARE { "ok" } else { "TOO SLOW" };
    println!(
        "threads {threads}, d = {head_dim}: attention {:.1} GFLOP/s, gemm {:.1} GFLOP/s, share {:.2} {verdict}",
        speed(attention),
        speed(products),
        products / attention
    );
}

/// `c = a b`, all in rows but `b`, whose strides are `(row, column)`.
fn product(
    [m, n, k]: [usize; 3],
    a: &[f32],
    b: &[f32],
    (b_row, b_column): (usize, usize),
    c: &mut [f32],
    parallelism: Parallelism,
) {
    assert!(a.len() == m * k && b.len() == k * n && c.len() == m * n);
    let stride = |n: usize| n as isize;
    // SAFETY: the three matrices have the sizes just compared, and their strides fill them.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            stride(n),
            false,
            a.as_ptr(),
            1,
            stride(k),
            b.as_ptr(),
            stride(b_column),
            stride(b_row),
            0.0f32,
            1.0f32,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// The CPU device beside the plain run, which stores whole rows of scores.
fn against_plain() {
    for seqlen in [256, 1024] {
        let problem = Problem::new(DType::F32, 1, seqlen, 2, 64);
        let mut call = Call::<f32>::new(problem);
        let array = |x: &[f32]| Array4::from_shape_vec((1, seqlen, 2, 64), x.to_vec()).expect("sizes agree");
        let (q, k, v) = (array(&call.q), array(&call.k), array(&call.v));
        let (extras, rows) = (Extras::default(), all_rows(&problem, &Extras::default()));
        let (mut tiled, mut whole) = (f64::MAX, f64::MAX);
        for _ in 0..5 {
            tiled = tiled.min(seconds(|| call.run()));
            whole = whole.min(seconds(|| {
                plain::forward(&problem, q.view(), k.view(), v.view(), &extras, &rows).expect("a valid call");
            }));
        }
        println!("s = {seqlen}: {:.1} times as fast as the plain run", whole / tiled);
    }
}

fn rows<T: Element>(criterion: &mut Criterion, head_dim: usize) {
    let mut group = criterion.benchmark_group(format!("cpu/{}/d{head_dim}", T::DTYPE.name()));
    for (name, causal) in [("full", Causal::No), ("causal", Causal::BottomRight)] {
        let problem = Problem { causal, ..Problem::new(T::DTYPE, 1, SEQLEN, 2, head_dim) };
        let mut call = Call::<T>::new(problem);
        group.throughput(Throughput::Elements(problem.flop() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| bencher.iter(|| call.run()));
    }
    group.finish();
}

/// Tensors of a call.
struct Call<T> {
    problem: Problem,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    o: Vec<T>,
}

impl<T: Element> Call<T> {
    fn new(problem: Problem) -> Self {
        let mut random = rand::rngs::StdRng::seed_from_u64(0);
        let len = problem.batch * problem.seqlen_q * problem.heads * problem.head_dim;
        let mut tensor =
            || -> Vec<T> { (0..len).map(|_| T::from_f32(StandardNormal.sample(&mut random))).collect() };
        Call { problem, q: tensor(), k: tensor(), v: tensor(), o: vec![T::default(); len] }
    }

    fn run(&mut self) {
        cpu::forward(&self.problem, &self.q, &self.k, &self.v, &Extras::default(), &mut self.o, None)
            .expect("a valid call");
    }
}

fn seconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}
