//! Shared memory of a simulated block, with a shadow of who touched what.

use super::clock::{Clock, Epoch, slot};
use super::finding::FindingKind;
use super::memory::Fault;
use std::ops::Range;

/// Where the block's dynamic shared memory begins, so that an address made of nothing strays.
pub(crate) const BASE: u32 = 1024;

/// Holds a value.
const WRITTEN: u8 = 1;
/// A copy into it has begun and has not ended.
const IN_FLIGHT: u8 = 2;
/// Written by the asynchronous proxy, so no proxy fence is needed before that proxy reads it.
const BY_ASYNC: u8 = 4;
/// Belongs to an mbarrier.
const MBARRIER: u8 = 8;

/// The bytes and their shadow: for every two bytes, a unit, who wrote them last and two who read them. Each in an array
/// of its own, so that the units of one access are looked at together, as vectors.
pub(crate) struct Shared {
    data: Vec<u8>,
    write: Vec<Epoch>,
    read: Vec<Epoch>,
    other_read: Vec<Epoch>,
    flags: Vec<u8>,
}

/// Who accesses: its stamp, its view, and for asynchronous units the threads that sent it.
pub(crate) struct Actor<'a> {
    pub me: Epoch,
    pub clock: &'a Clock,
}

impl Shared {
    pub(crate) fn new(bytes: usize) -> Self {
        let units = bytes.div_ceil(2);
        let nobody = || vec![0; units];
        Shared {
            // All ones is a NaN in every float type.
            data: vec![0xff; bytes],
            write: nobody(),
            read: nobody(),
            other_read: nobody(),
            flags: vec![0; units],
        }
    }

    /// The offset of an access in the block's memory.
    #[inline(always)]
    pub(crate) fn offset(&self, address: u32, bytes: usize) -> Result<usize, Fault> {
        let offset = address.wrapping_sub(BASE) as usize;
        if !(address as usize).is_multiple_of(bytes) {
            return Err((FindingKind::Misaligned, format!("{bytes} bytes at shared address {address}")));
        }
        if offset + bytes > self.data.len() {
            let size = self.data.len();
            return Err((
                FindingKind::OutOfBounds,
                format!("{bytes} bytes at shared byte {} of {size}", offset as u32 as i32),
            ));
        }
        Ok(offset)
    }

    #[inline(always)]
    pub(crate) fn load<const N: usize>(&mut self, address: u32, actor: Actor<'_>) -> Result<[u8; N], Fault> {
        let offset = self.offset(address, N)?;
        let units = offset / 2..(offset + N) / 2;
        if !self.all_plain(units.clone()) {
            return Err(at(self.fault(units), offset));
        }
        let mut seen = self.write[units.start];
        let mut ordered = actor.sees(seen);
        for &write in &self.write[units.clone()] {
            if write != seen {
                ordered &= actor.sees(write);
                seen = write;
            }
        }
        if !ordered {
            let what = "read, and an unordered write of another thread";
            return Err(at((FindingKind::Race, what.into()), offset));
        }
        self.stamp_read(units, actor.me);
        Ok(self.data[offset..offset + N].try_into().expect("N bytes"))
    }

    #[inline(always)]
    pub(crate) fn store<const N: usize>(
        &mut self,
        address: u32,
        value: [u8; N],
        actor: Actor<'_>,
    ) -> Result<(), Fault> {
        let offset = self.offset(address, N)?;
        self.data[offset..offset + N].copy_from_slice(&value);
        self.write_units(offset, N, actor, WRITTEN)
    }

    /// Marks the destination of a copy at its start: the sender must have seen all earlier accesses.
    pub(crate) fn begin_copy(&mut self, offset: usize, bytes: usize, actor: Actor<'_>) -> Result<(), Fault> {
        self.write_units(offset, bytes, actor, IN_FLIGHT)
    }

    /// Stamps a write. It happens even where it may not, so that one bug does not look like several.
    #[inline(always)]
    fn write_units(&mut self, offset: usize, bytes: usize, actor: Actor<'_>, flags: u8) -> Result<(), Fault> {
        let units = offset / 2..(offset + bytes) / 2;
        let at_first = |epochs: &[Epoch]| epochs[units.start];
        let usual = |epochs: &[Epoch]| {
            let first = at_first(epochs);
            same(&epochs[units.clone()], first) && actor.sees(first)
        };
        let free =
            self.flags[units.clone()].iter().fold(0, |all, flags| all | flags & (IN_FLIGHT | MBARRIER)) == 0;
        let mut result = Ok(());
        if !(free && usual(&self.write) && usual(&self.read) && usual(&self.other_read)) {
            for unit in units.clone() {
                if let Err(fault) = self.check_write(unit, &actor) {
                    result = Err(at(fault, offset));
                }
            }
        }
        self.write[units.clone()].fill(actor.me);
        self.read[units.clone()].fill(0);
        self.other_read[units.clone()].fill(0);
        self.flags[units].iter_mut().for_each(|old| *old = flags | *old & MBARRIER);
        result
    }

    /// The bytes of a copy arrive.
    pub(crate) fn finish_copy(&mut self, offset: usize, value: &[u8], me: Epoch, by_async_proxy: bool) {
        self.data[offset..offset + value.len()].copy_from_slice(value);
        let units = offset / 2..(offset + value.len()) / 2;
        self.write[units.clone()].fill(me);
        self.flags[units].fill(WRITTEN | if by_async_proxy { BY_ASYNC } else { 0 });
    }

    /// A copy's bytes are the sender's from now on (`cp.async.wait_group`).
    pub(crate) fn restamp(&mut self, offset: usize, bytes: usize, me: Epoch) {
        let units = offset / 2..(offset + bytes) / 2;
        self.write[units.clone()].fill(me);
        self.flags[units].iter_mut().for_each(|flags| *flags &= !IN_FLIGHT);
    }

    /// Keeps a copy's destination marked after its bytes have arrived, until the sender has waited for them.
    pub(crate) fn keep_in_flight(&mut self, offset: usize, bytes: usize) {
        self.flags[offset / 2..(offset + bytes) / 2].iter_mut().for_each(|flags| *flags |= IN_FLIGHT);
    }

    /// A read by the asynchronous proxy with the stamp `me`, as a thread with this view starts it. `checked` keeps the
    /// last write that was found in order, which most of an operand shares.
    pub(crate) fn touch_async(
        &mut self,
        offset: usize,
        bytes: usize,
        me: Epoch,
        clock: &Clock,
        checked: &mut Epoch,
    ) -> Result<(), Fault> {
        let units = offset / 2..(offset + bytes) / 2;
        if !(self.all_plain(units.clone()) && same(&self.write[units.clone()], *checked)) {
            for unit in units.clone() {
                self.check_async(unit, clock, checked).map_err(|fault| at(fault, offset))?;
            }
        }
        self.stamp_read(units, me);
        Ok(())
    }

    /// Whether all units hold values and nothing else.
    #[inline(always)]
    fn all_plain(&self, units: Range<usize>) -> bool {
        self.flags[units].iter().fold(0, |all, flags| all | (flags & !BY_ASYNC ^ WRITTEN)) == 0
    }

    #[inline(always)]
    fn stamp_read(&mut self, units: Range<usize>, me: Epoch) {
        for (read, other) in self.read[units.clone()].iter_mut().zip(&mut self.other_read[units]) {
            *other = if slot(*read) == slot(me) { *other } else { *read };
            *read = me;
        }
    }

    /// The bytes themselves, unchecked.
    pub(crate) fn bytes(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.data[offset..offset + bytes]
    }

    /// Gives 8 bytes to an mbarrier.
    pub(crate) fn make_mbarrier(&mut self, offset: usize, actor: Actor<'_>) -> Result<(), Fault> {
        for unit in offset / 2..offset / 2 + 4 {
            let flags = self.flags[unit];
            self.flags[unit] &= !MBARRIER;
            self.check_write(unit, &actor).map_err(|fault| at(fault, offset))?;
            (self.write[unit], self.read[unit], self.other_read[unit]) = (actor.me, 0, 0);
            self.flags[unit] = flags | MBARRIER;
        }
        Ok(())
    }

    /// Whether the actor has seen the initialisation of the mbarrier at `offset`.
    pub(crate) fn has_seen(&self, offset: usize, clock: &Clock) -> bool {
        clock.has_seen(self.write[offset / 2])
    }

    /// What is wrong with the first of these units that does not simply hold a value.
    #[cold]
    fn fault(&self, mut units: Range<usize>) -> Fault {
        let strange = |unit: &usize| self.flags[*unit] & !BY_ASYNC != WRITTEN;
        let flags = units.find(strange).map_or(0, |unit| self.flags[unit]);
        if flags & IN_FLIGHT != 0 {
            (FindingKind::CopyInFlight, "access while a copy into it is in flight".into())
        } else if flags & MBARRIER != 0 {
            (FindingKind::Misuse, "access to an mbarrier as if it were data".into())
        } else {
            (FindingKind::Uninitialised, "read of shared memory that nobody has written".into())
        }
    }

    fn check_async(&self, unit: usize, clock: &Clock, checked: &mut Epoch) -> Result<(), Fault> {
        if self.flags[unit] & !BY_ASYNC != WRITTEN {
            return Err(self.fault(unit..unit + 1));
        }
        let write = self.write[unit];
        if write != *checked {
            if !clock.has_seen(write) {
                let what = "asynchronous read, and an unordered write of another thread";
                return Err((FindingKind::Race, what.into()));
            }
            if self.flags[unit] & BY_ASYNC == 0 && !clock.is_proxied(write) {
                let what = "asynchronous read of a generic write without fence.proxy.async";
                return Err((FindingKind::ProxyFence, what.into()));
            }
            *checked = write;
        }
        Ok(())
    }

    fn check_write(&self, unit: usize, actor: &Actor<'_>) -> Result<(), Fault> {
        let race = |what: &str| {
            Err((FindingKind::Race, format!("write, and an unordered {what} of another thread")))
        };
        if self.flags[unit] & (IN_FLIGHT | MBARRIER) != 0 {
            Err(self.fault(unit..unit + 1))
        } else if !actor.sees(self.write[unit]) {
            race("write")
        } else if !(actor.sees(self.read[unit]) && actor.sees(self.other_read[unit])) {
            race("read")
        } else {
            Ok(())
        }
    }
}

impl Actor<'_> {
    #[inline(always)]
    fn sees(&self, epoch: Epoch) -> bool {
        self.clock.has_seen(epoch)
    }
}

/// Whether all of these are `epoch`.
#[inline(always)]
fn same(epochs: &[Epoch], epoch: Epoch) -> bool {
    epochs.iter().fold(0, |all, other| all | (other ^ epoch)) == 0
}

fn at((kind, what): Fault, offset: usize) -> Fault {
    (kind, format!("{what}, at shared byte {offset}"))
}
