//! The entries as functions that the simulated device can call.

use crate::forward;
use crate::params::{ForwardParams, Sm80Params, Sm90Params, StandardParams};
use cuda_std::tma::ParamAddress;

/// An entry compiled for the host, by its parameters.
#[derive(Clone, Copy)]
pub enum Kernel {
    /// Of the family `standard`.
    Standard(unsafe fn(StandardParams)),
    /// Of the family `tiled`.
    Tiled(unsafe fn(ForwardParams)),
    /// Of the family `sm80`.
    Sm80(unsafe fn(Sm80Params)),
    /// Of the family `sm90`.
    Sm90(unsafe fn(Sm90Params, ParamAddress)),
}

/// The entry of that name.
pub fn kernel(name: &str) -> Option<Kernel> {
    let standard = forward::standard::FUNCTIONS.iter().map(|&(entry, f)| (entry, Kernel::Standard(f)));
    let tiled = forward::tiled::FUNCTIONS.iter().map(|&(entry, f)| (entry, Kernel::Tiled(f)));
    let sm80 = forward::sm80::FUNCTIONS.iter().map(|&(entry, f)| (entry, Kernel::Sm80(f)));
    let sm90 = forward::sm90::FUNCTIONS.iter().map(|&(entry, f)| (entry, Kernel::Sm90(f)));
    let mut all = standard.chain(tiled).chain(sm80).chain(sm90);
    all.find(|(entry, _)| *entry == name).map(|(_, kernel)| kernel)
}
