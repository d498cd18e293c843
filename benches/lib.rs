//! Benchmarks of flash-attention.
