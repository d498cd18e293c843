//! How fast the simulated device is: thread operations a second on one core, for the kernels as they are shipped.
//!
//! `cargo run --release --example simulated_speed [-- FAMILY]`
//!
//! An operation is a call of a device function by one simulated thread: a load, a store, its part in a shuffle, a
//! barrier, an `ldmatrix` or a product, an index; arithmetic (fused multiply-adds, exponentials, maxima, conversions)
//! is counted beside them. What Rust itself adds and multiplies is not counted, but takes its time.

use flash_attention::sim::{self, Options};
use flash_attention::{Causal, DType, Family, Problem};
use half::bf16;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Runs of each kernel, of which the fastest counts: whatever else the machine does only slows one down.
const RUNS: usize = 15;

/// The time that this thread has run for; on other systems than Linux, the time of day, which counts what other
/// programs take too.
fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = ran.and_then(|ran| ran.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

fn main() -> Result<(), flash_attention::Error> {
    let shape = [1, 400, 2, 64];
    let mut problem = Problem::new(DType::Bf16, shape[0], shape[1], shape[2], shape[3]);
    problem.causal = Causal::BottomRight;
    let values: Vec<bf16> = (0..shape.iter().product::<usize>() as u32)
        .map(|i| bf16::from_f32((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0))
        .collect();
    let named = std::env::args().nth(1);
    let families = [Family::Tiled, Family::Sm80, Family::Sm90];
    for family in families.into_iter().filter(|f| named.as_deref().is_none_or(|name| name == f.name())) {
        let (mut best, mut counts) = (Duration::MAX, (0, 0));
        for seed in 0..RUNS as u64 {
            let options = Options { kernel: Some(family), seed, ..Options::default() };
            let start = now();
            let outcome = sim::forward(&problem, &values, &values, &values, &options)?;
            best = best.min(now() - start);
            outcome.report.expect_clean();
            counts = (outcome.report.operations, outcome.report.arithmetic);
        }
        let rate = |count: u64| count as f64 / 1e6 / best.as_secs_f64();
        println!(
            "{:6} {:6.3} s: {:6.1} million a second, {:6.1} million of them other than arithmetic",
            family.name(),
            best.as_secs_f64(),
            rate(counts.0 + counts.1),
            rate(counts.0)
        );
    }
    Ok(())
}
