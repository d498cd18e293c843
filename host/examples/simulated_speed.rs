//! How fast the simulated device is: thread operations a second on one core, for the kernels as they are shipped.
//!
//! `cargo run --release --example simulated_speed`
//!
//! An operation is a call of a device function by one simulated thread: a load, a store, its part in a shuffle, a
//! barrier, an `ldmatrix` or a product. Plain arithmetic around them is not counted, but takes its time.

use flash_attention::sim::{self, Options};
use flash_attention::{Causal, DType, Family, Problem};
use half::bf16;
use std::time::{Duration, Instant};

/// Runs of each kernel, of which the fastest counts: whatever else the machine does only slows one down.
const RUNS: usize = 5;

fn main() -> Result<(), flash_attention::Error> {
    let shape = [1, 400, 2, 64];
    let mut problem = Problem::new(DType::Bf16, shape[0], shape[1], shape[2], shape[3]);
    problem.causal = Causal::BottomRight;
    let values: Vec<bf16> = (0..shape.iter().product::<usize>() as u32)
        .map(|i| bf16::from_f32((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0))
        .collect();
    for family in [Family::Tiled, Family::Sm80, Family::Sm90] {
        let (mut best, mut operations) = (Duration::MAX, 0);
        for seed in 0..RUNS as u64 {
            let options = Options { kernel: Some(family), seed, ..Options::default() };
            let start = Instant::now();
            let outcome = sim::forward(&problem, &values, &values, &values, &options)?;
            best = best.min(start.elapsed());
            outcome.report.expect_clean();
            operations = outcome.report.operations;
        }
        let (millions, seconds) = (operations as f64 / 1e6, best.as_secs_f64());
        println!(
            "{:6} {millions:7.2} million operations in {seconds:6.3} s: {:6.1} million a second",
            family.name(),
            millions / seconds
        );
    }
    Ok(())
}
