//! Loads, stores and atomics of single threads.

use super::handle::Handle;
use super::mutation::{self, Mutation};
use super::state::{Thread, current};
use crate::memory::Scalar;

macro_rules! by_size {
    ($type:ty, $size:ident => $body:expr) => {
        match size_of::<$type>() {
            2 => {
                const $size: usize = 2;
                $body
            }
            4 => {
                const $size: usize = 4;
                $body
            }
            8 => {
                const $size: usize = 8;
                $body
            }
            16 => {
                const $size: usize = 16;
                $body
            }
            _ => unreachable!("scalars have 2 to 16 bytes"),
        }
    };
}

/// The scalar made of these bytes; all ones where there is a fault.
#[inline(always)]
fn value<T: Scalar>(bytes: &[u8]) -> T {
    // SAFETY: `bytes` has the scalar's size, and every bit pattern is a value.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

#[inline(always)]
fn bytes<const N: usize, T: Scalar>(value: T) -> [u8; N] {
    debug_assert!(size_of::<T>() == N);
    // SAFETY: a scalar of N bytes, plain data without padding.
    unsafe { std::mem::transmute_copy(&value) }
}

#[inline(always)]
fn checked<const N: usize>(
    mut thread: Handle<Thread>,
    result: Result<[u8; N], super::memory::Fault>,
) -> [u8; N] {
    match result {
        Ok(value) => value,
        Err(fault) => {
            thread.report(fault);
            [0xff; N]
        }
    }
}

/// Looks whether floats that are stored may be used yet.
#[inline(always)]
fn check_floats<T: Scalar>(value: &T) {
    let value: &dyn std::any::Any = value;
    if let Some(value) = value.downcast_ref::<f32>() {
        super::wgmma::check_value(*value);
    } else if let Some(values) = value.downcast_ref::<[f32; 2]>() {
        values.iter().for_each(|value| super::wgmma::check_value(*value));
    } else if let Some(values) = value.downcast_ref::<[f32; 4]>() {
        values.iter().for_each(|value| super::wgmma::check_value(*value));
    }
}

#[inline(never)]
pub(crate) fn load_global<T: Scalar>(address: u64) -> T {
    let thread = current();
    let mut memory = thread.machine.memory;
    by_size!(T, N => value(&checked(thread, memory.load::<N>(mutation::narrowed(address, Mutation::NarrowLoads), thread.me, &thread.clock))))
}

#[inline(never)]
pub(crate) fn store_global<T: Scalar>(address: u64, value: T) {
    let mut thread = current();
    let mut memory = thread.machine.memory;
    check_floats(&value);
    let stored = by_size!(T, N => memory.store::<N>(mutation::narrowed(address, Mutation::NarrowStores), bytes(value), thread.me, &thread.clock));
    if let Err(fault) = stored {
        thread.report(fault);
    }
}

#[inline(never)]
pub(crate) fn load_shared<T: Scalar>(address: u32) -> T {
    let thread = current();
    let mut block = thread.block;
    by_size!(T, N => value(&checked(thread, block.shared.load::<N>(address, thread.actor()))))
}

#[inline(never)]
pub(crate) fn store_shared<T: Scalar>(address: u32, value: T) {
    let mut thread = current();
    let mut block = thread.block;
    check_floats(&value);
    let stored = by_size!(T, N => block.shared.store::<N>(address, bytes(value), thread.actor()));
    if let Err(fault) = stored {
        thread.report(fault);
    }
}

/// An atomic step on a global word; gives the value before.
pub(crate) fn atomic_global(address: u64, f: impl FnOnce(u32) -> u32) -> u32 {
    let mut thread = current();
    let mut memory = thread.machine.memory;
    memory.atomic(address, f).unwrap_or_else(|fault| {
        thread.report(fault);
        0
    })
}
