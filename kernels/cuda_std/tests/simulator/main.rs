//! The simulated device: what it computes, and each kind of bug seen to be caught.
//!
//! The kernels here are functions with one bug or none; they have no launch contract of their own.
#![allow(missing_docs, clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

mod asynchronous;
mod basics;
mod findings;
mod tensor_cores;
