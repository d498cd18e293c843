//! Shared memory of a simulated block, with a shadow of who touched what.

use super::clock::{Clock, Epoch, slot};
use super::finding::FindingKind;
use super::memory::Fault;

/// Where the block's dynamic shared memory begins, so that an address made of nothing strays.
pub(crate) const BASE: u32 = 1024;

/// Holds a value.
const WRITTEN: u32 = 1;
/// A copy into it has begun and has not ended.
const IN_FLIGHT: u32 = 2;
/// Written by the asynchronous proxy, so no proxy fence is needed before that proxy reads it.
const BY_ASYNC: u32 = 4;
/// Belongs to an mbarrier.
const MBARRIER: u32 = 8;

/// The shadow of two bytes.
#[derive(Clone, Copy, Default)]
struct Unit {
    write: Epoch,
    read: Epoch,
    other_read: Epoch,
    flags: u32,
}

/// The bytes and their shadow.
pub(crate) struct Shared {
    data: Vec<u8>,
    units: Vec<Unit>,
}

/// Who accesses: its stamp, its view, and for asynchronous units the threads that sent it.
pub(crate) struct Actor<'a> {
    pub me: Epoch,
    pub clock: &'a Clock,
}

impl Shared {
    pub(crate) fn new(bytes: usize) -> Self {
        // All ones is a NaN in every float type.
        Shared { data: vec![0xff; bytes], units: vec![Unit::default(); bytes.div_ceil(2)] }
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
        for unit in &mut self.units[offset / 2..(offset + N) / 2] {
            if unit.read != actor.me {
                unit.on_read(&actor).map_err(|fault| at(fault, offset))?;
            }
        }
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
    fn write_units(
        &mut self,
        offset: usize,
        bytes: usize,
        actor: Actor<'_>,
        flags: u32,
    ) -> Result<(), Fault> {
        let mut result = Ok(());
        for unit in &mut self.units[offset / 2..(offset + bytes) / 2] {
            if let Err(fault) = unit.on_write(&actor) {
                result = Err(at(fault, offset));
            }
            unit.flags = flags | unit.flags & MBARRIER;
        }
        result
    }

    /// The bytes of a copy arrive.
    pub(crate) fn finish_copy(&mut self, offset: usize, value: &[u8], me: Epoch, by_async_proxy: bool) {
        self.data[offset..offset + value.len()].copy_from_slice(value);
        for unit in &mut self.units[offset / 2..(offset + value.len()) / 2] {
            unit.write = me;
            unit.flags = WRITTEN | if by_async_proxy { BY_ASYNC } else { 0 };
        }
    }

    /// A copy's bytes are the sender's from now on (`cp.async.wait_group`).
    pub(crate) fn restamp(&mut self, offset: usize, bytes: usize, me: Epoch) {
        for unit in &mut self.units[offset / 2..(offset + bytes) / 2] {
            unit.write = me;
            unit.flags &= !IN_FLIGHT;
        }
    }

    /// Keeps a copy's destination marked after its bytes have arrived, until the sender has waited for them.
    pub(crate) fn keep_in_flight(&mut self, offset: usize, bytes: usize) {
        for unit in &mut self.units[offset / 2..(offset + bytes) / 2] {
            unit.flags |= IN_FLIGHT;
        }
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
        for unit in &mut self.units[offset / 2..(offset + bytes) / 2] {
            if unit.flags & !BY_ASYNC != WRITTEN {
                return Err(at(unit.fault(), offset));
            }
            if unit.write != *checked {
                if !clock.has_seen(unit.write) {
                    let what = "asynchronous read, and an unordered write of another thread";
                    return Err(at((FindingKind::Race, what.into()), offset));
                }
                if unit.flags & BY_ASYNC == 0 && !clock.is_proxied(unit.write) {
                    let what = "asynchronous read of a generic write without fence.proxy.async";
                    return Err(at((FindingKind::ProxyFence, what.into()), offset));
                }
                *checked = unit.write;
            }
            if slot(unit.read) != slot(me) {
                unit.other_read = unit.read;
            }
            unit.read = me;
        }
        Ok(())
    }

    /// The bytes themselves, unchecked.
    pub(crate) fn bytes(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.data[offset..offset + bytes]
    }

    /// Gives 8 bytes to an mbarrier.
    pub(crate) fn make_mbarrier(&mut self, offset: usize, actor: Actor<'_>) -> Result<(), Fault> {
        for unit in &mut self.units[offset / 2..offset / 2 + 4] {
            let flags = unit.flags;
            unit.flags &= !MBARRIER;
            unit.on_write(&actor).map_err(|fault| at(fault, offset))?;
            unit.flags = flags | MBARRIER;
        }
        Ok(())
    }

    /// Whether the actor has seen the initialisation of the mbarrier at `offset`.
    pub(crate) fn has_seen(&self, offset: usize, clock: &Clock) -> bool {
        clock.has_seen(self.units[offset / 2].write)
    }
}

fn at((kind, what): Fault, offset: usize) -> Fault {
    (kind, format!("{what}, at shared byte {offset}"))
}

impl Unit {
    #[cold]
    fn fault(&self) -> Fault {
        if self.flags & IN_FLIGHT != 0 {
            (FindingKind::CopyInFlight, "access while a copy into it is in flight".into())
        } else if self.flags & MBARRIER != 0 {
            (FindingKind::Misuse, "access to an mbarrier as if it were data".into())
        } else {
            (FindingKind::Uninitialised, "read of shared memory that nobody has written".into())
        }
    }

    #[inline(always)]
    fn on_read(&mut self, actor: &Actor<'_>) -> Result<(), Fault> {
        if self.flags & !BY_ASYNC != WRITTEN {
            return Err(self.fault());
        }
        if !actor.clock.has_seen(self.write) {
            return Err((FindingKind::Race, "read, and an unordered write of another thread".into()));
        }
        if slot(self.read) != slot(actor.me) {
            self.other_read = self.read;
        }
        self.read = actor.me;
        Ok(())
    }

    #[inline(always)]
    fn on_write(&mut self, actor: &Actor<'_>) -> Result<(), Fault> {
        let race = |what: &str| {
            Err((FindingKind::Race, format!("write, and an unordered {what} of another thread")))
        };
        let result = if self.flags & (IN_FLIGHT | MBARRIER) != 0 {
            Err(self.fault())
        } else if !actor.clock.has_seen(self.write) {
            race("write")
        } else if !(actor.clock.has_seen(self.read) && actor.clock.has_seen(self.other_read)) {
            race("read")
        } else {
            Ok(())
        };
        *self = Unit { write: actor.me, flags: self.flags & MBARRIER, ..Unit::default() };
        result
    }
}
