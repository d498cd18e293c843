//! The entries as functions that the simulated device can call.

use crate::forward;
use crate::params::{ForwardParams, Sm90Params};
use cuda_std::tma::ParamAddress;

/// An entry compiled for the host, by its parameters.
#[derive(Clone, Copy)]
pub enum Kernel {
    /// Of the families `standard`, `tiled` and `sm80`.
    Forward(unsafe fn(ForwardParams)),
    /// Of the family `sm90`.
    Sm90(unsafe fn(Sm90Params, ParamAddress)),
}

/// The entry of that name.
pub fn kernel(name: &str) -> Option<Kernel> {
    let mut forward = [forward::tiled::FUNCTIONS, forward::sm80::FUNCTIONS].into_iter().flatten();
    let plain = forward.find(|(entry, _)| *entry == name).map(|(_, function)| Kernel::Forward(*function));
    let mut sm90 = forward::sm90::FUNCTIONS.iter();
    plain.or_else(|| sm90.find(|(entry, _)| *entry == name).map(|(_, function)| Kernel::Sm90(*function)))
}
