//! Benchmarks of flash-attention.
//!
//! - `cargo bench -p flash-attention-benches` times our kernels by criterion, on GPU time ([`gpu::GpuTime`]).
//! - `cargo run -p flash-attention-benches --bin plot -- FILE.json… --out docs` draws the charts ([`chart`]) of a
//!   comparison with the rivals.
//! - `check_pytorch.py` checks the library against PyTorch, `measure_power.py` measures it beside the rivals under
//!   load; both call it through the C interface (`ours.py`).

pub mod chart;
pub mod gpu;
