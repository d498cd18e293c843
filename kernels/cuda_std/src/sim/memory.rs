//! Simulated global memory: regions of their own far apart, so that an address that strays is caught.

use super::clock::{Clock, Epoch, slot};
use super::finding::FindingKind;
use crate::memory::Scalar;

/// What a kernel may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// An input.
    Read,
    /// An output or a scratch buffer: written where [`Memory::allow_write`] says, and read where it has been written.
    Write,
}

const REGION_SHIFT: u32 = 40;
const PAGE: usize = 4096;
/// Shadow granularity: two bytes, the smallest element that kernels move.
const UNITS: usize = PAGE / 2;

/// Global memory of a simulated device. Addresses are handles: the region's number in the upper bits, the offset in
/// the lower 40. Pages come into being when they are touched, so a region may be far larger than the host's memory.
#[derive(Default)]
pub struct Memory {
    regions: Vec<Region>,
    /// Clusters run so far on this memory, over all launches.
    pub(crate) runs: u32,
    /// The first of them that belongs to this launch.
    pub(crate) launch_start: u32,
}

struct Region {
    name: String,
    bytes: u64,
    access: Access,
    pages: Vec<Option<Box<Page>>>,
}

struct Page {
    data: [u8; PAGE],
    /// Units that hold a value.
    valid: [u64; UNITS / 64],
    /// Units that the kernel may write.
    writable: [u64; UNITS / 64],
    /// Who touched what; for regions that kernels write only.
    units: Box<[Unit]>,
}

#[derive(Clone, Copy, Default)]
struct Unit {
    write: Epoch,
    read: Epoch,
    other_read: Epoch,
    run: u32,
}

impl Page {
    fn new(access: Access) -> Box<Self> {
        let units = if access == Access::Write { UNITS } else { 0 };
        Box::new(Page {
            data: [0xff; PAGE],
            valid: [0; UNITS / 64],
            writable: [0; UNITS / 64],
            units: vec![Unit::default(); units].into(),
        })
    }
}

/// Why an access is wrong.
pub(crate) type Fault = (FindingKind, String);

impl Memory {
    /// An empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A region of `bytes` that holds nothing yet; gives its address (aligned to 2^40).
    pub fn region(&mut self, name: &str, bytes: u64, access: Access) -> u64 {
        assert!(bytes < 1 << REGION_SHIFT, "a region of {bytes} bytes is too large for the simulated device");
        let pages = (0..bytes.div_ceil(PAGE as u64)).map(|_| None).collect();
        self.regions.push(Region { name: name.into(), bytes, access, pages });
        (self.regions.len() as u64) << REGION_SHIFT
    }

    /// A region that holds these values; gives its address.
    pub fn upload<T: Scalar>(&mut self, name: &str, values: &[T]) -> u64 {
        let address = self.region(name, size_of_val(values) as u64, Access::Read);
        self.write(address, values);
        address
    }

    /// A region for `elements` results, all of which the kernel may write; gives its address.
    pub fn output<T: Scalar>(&mut self, name: &str, elements: usize) -> u64 {
        let bytes = (elements * size_of::<T>()) as u64;
        let address = self.region(name, bytes, Access::Write);
        self.allow_write(address, bytes);
        address
    }

    /// Writes from the host: the values are there for the kernel to read. Panics outside the region.
    pub fn write<T: Scalar>(&mut self, address: u64, values: &[T]) {
        // SAFETY: scalars are plain data without padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        self.pages(address, bytes.len() as u64, |page, at, from, len| {
            page.data[at..at + len].copy_from_slice(&bytes[from..from + len]);
            set(&mut page.valid, at, len, true);
        });
    }

    /// Reads from the host: what a unit that was never written holds is all ones. Panics outside the region.
    pub fn read<T: Scalar>(&mut self, address: u64, elements: usize) -> Vec<T> {
        let mut bytes = vec![0u8; elements * size_of::<T>()];
        self.pages(address, bytes.len() as u64, |page, at, from, len| {
            bytes[from..from + len].copy_from_slice(&page.data[at..at + len]);
        });
        let values = bytes.chunks_exact(size_of::<T>());
        // SAFETY: each chunk holds the bytes of one scalar, for which every bit pattern is a value.
        values.map(|value| unsafe { value.as_ptr().cast::<T>().read_unaligned() }).collect()
    }

    /// Gives what lies here to the kernel to read.
    pub fn allow_read(&mut self, address: u64, bytes: u64) {
        self.pages(address, bytes, |page, at, _, len| set(&mut page.valid, at, len, true));
    }

    /// Takes values back from the kernel (padding): what they hold stays, and reading them is a finding.
    pub fn forbid_read(&mut self, address: u64, bytes: u64) {
        self.pages(address, bytes, |page, at, _, len| set(&mut page.valid, at, len, false));
    }

    /// Makes part of an output writable.
    pub fn allow_write(&mut self, address: u64, bytes: u64) {
        self.pages(address, bytes, |page, at, _, len| set(&mut page.writable, at, len, true));
    }

    /// Whether the kernel (or the host) has written all of this.
    pub fn is_written(&mut self, address: u64, bytes: u64) -> bool {
        let mut all = true;
        self.pages(address, bytes, |page, at, _, len| {
            all &= (at / 2..(at + len) / 2).all(|unit| page.valid[unit / 64] >> (unit % 64) & 1 == 1);
        });
        all
    }

    /// Calls `f(page, offset in the page, offset in the range, length)` for each page of the range.
    fn pages(&mut self, address: u64, bytes: u64, mut f: impl FnMut(&mut Page, usize, usize, usize)) {
        let (index, start) = split(address);
        let region = &mut self.regions[index];
        assert!(start + bytes <= region.bytes, "{} bytes at {start} of region {}", bytes, region.name);
        assert!(start.is_multiple_of(2) && bytes.is_multiple_of(2), "regions are counted in two-byte units");
        let mut done = 0;
        while done < bytes {
            let at = ((start + done) % PAGE as u64) as usize;
            let len = (PAGE - at).min((bytes - done) as usize);
            let page = region.pages[((start + done) / PAGE as u64) as usize]
                .get_or_insert_with(|| Page::new(region.access));
            f(page, at, done as usize, len);
            done += len as u64;
        }
    }

    /// Where an address of the kernel lies, for messages.
    pub(crate) fn place(&self, address: u64) -> String {
        let (index, offset) = split(address);
        match self.regions.get(index) {
            Some(region) => format!("byte {offset} of {} ({} bytes)", region.name, region.bytes),
            None => format!("address {address:#x}, which lies in no region"),
        }
    }

    #[inline(always)]
    fn page(&mut self, address: u64, bytes: usize) -> Result<(&mut Page, usize, Access), Fault> {
        if !address.is_multiple_of(bytes as u64) {
            return Err((FindingKind::Misaligned, format!("{bytes} bytes at {}", self.place(address))));
        }
        let (index, offset) = split(address);
        match self.regions.get(index) {
            Some(region) if offset + bytes as u64 <= region.bytes => {}
            _ => return Err((FindingKind::OutOfBounds, format!("{bytes} bytes at {}", self.place(address)))),
        }
        let region = &mut self.regions[index];
        let at = (offset % PAGE as u64) as usize;
        let page =
            region.pages[(offset / PAGE as u64) as usize].get_or_insert_with(|| Page::new(region.access));
        Ok((page, at, region.access))
    }

    /// Reads a scalar's bytes for the actor `me`, whose view is `clock`.
    #[inline(always)]
    pub(crate) fn load<const N: usize>(
        &mut self,
        address: u64,
        me: Epoch,
        clock: &Clock,
    ) -> Result<[u8; N], Fault> {
        let (runs, start) = (self.runs, self.launch_start);
        let (page, at, access) = self.page(address, N)?;
        let value = page.data[at..at + N].try_into().expect("N bytes");
        let (unit, count) = (at / 2, N / 2);
        let wanted = ((1u64 << count) - 1) << (unit % 64);
        if page.valid[unit / 64] & wanted != wanted {
            return Err((FindingKind::Uninitialised, format!("read of {}", self.place(address))));
        }
        if access == Access::Write {
            for unit in &mut page.units[unit..unit + count] {
                if let Err(what) = unit.on_read(me, clock, runs, start) {
                    return Err((FindingKind::Race, format!("{what} {}", self.place(address))));
                }
            }
        }
        Ok(value)
    }

    /// Reads a row of bytes for an asynchronous copy.
    pub(crate) fn load_bytes(
        &mut self,
        address: u64,
        into: &mut [u8],
        me: Epoch,
        clock: &Clock,
    ) -> Result<(), Fault> {
        let mut at = 0;
        while at < into.len() {
            let from = address.wrapping_add(at as u64);
            if from.is_multiple_of(16) && into.len() - at >= 16 {
                into[at..at + 16].copy_from_slice(&self.load::<16>(from, me, clock)?);
                at += 16;
            } else {
                into[at..at + 2].copy_from_slice(&self.load::<2>(from, me, clock)?);
                at += 2;
            }
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn store<const N: usize>(
        &mut self,
        address: u64,
        value: [u8; N],
        me: Epoch,
        clock: &Clock,
    ) -> Result<(), Fault> {
        let (runs, start) = (self.runs, self.launch_start);
        let (page, at, _) = self.page(address, N)?;
        let (unit, count) = (at / 2, N / 2);
        let wanted = ((1u64 << count) - 1) << (unit % 64);
        if page.writable[unit / 64] & wanted != wanted {
            return Err((FindingKind::WriteOutsideOutput, format!("write to {}", self.place(address))));
        }
        page.data[at..at + N].copy_from_slice(&value);
        page.valid[unit / 64] |= wanted;
        for unit in &mut page.units[unit..unit + count] {
            if let Err(what) = unit.on_write(me, clock, runs, start) {
                return Err((FindingKind::Race, format!("{what} {}", self.place(address))));
            }
        }
        Ok(())
    }

    /// One atomic step on a 32-bit word; atomics do not race with each other.
    pub(crate) fn atomic(&mut self, address: u64, f: impl FnOnce(u32) -> u32) -> Result<u32, Fault> {
        let (page, at, _) = self.page(address, 4)?;
        let wanted = 3u64 << (at / 2 % 64);
        if page.valid[at / 128] & wanted != wanted {
            return Err((FindingKind::Uninitialised, format!("atomic on {}", self.place(address))));
        }
        if page.writable[at / 128] & wanted != wanted {
            return Err((FindingKind::WriteOutsideOutput, format!("atomic on {}", self.place(address))));
        }
        let before = u32::from_le_bytes(page.data[at..at + 4].try_into().expect("4 bytes"));
        page.data[at..at + 4].copy_from_slice(&f(before).to_le_bytes());
        Ok(before)
    }
}

impl Unit {
    /// Forgets earlier launches; whether another block of this one touched the unit.
    #[inline(always)]
    fn turn(&mut self, runs: u32, start: u32) -> bool {
        if self.run == runs {
            return false;
        }
        let foreign = self.run >= start && self.run != 0;
        if !foreign {
            *self = Unit { run: runs, ..Unit::default() };
        }
        foreign
    }

    #[inline(always)]
    fn on_read(&mut self, me: Epoch, clock: &Clock, runs: u32, start: u32) -> Result<(), &'static str> {
        if self.turn(runs, start) {
            if self.write != 0 {
                return Err("read, and another block writes");
            }
            *self = Unit { run: runs, ..Unit::default() };
        }
        if self.write != 0 && !clock.has_seen(self.write) {
            return Err("read, and an unordered write of another thread, at");
        }
        if slot(self.read) != slot(me) {
            self.other_read = self.read;
        }
        self.read = me;
        Ok(())
    }

    #[inline(always)]
    fn on_write(&mut self, me: Epoch, clock: &Clock, runs: u32, start: u32) -> Result<(), &'static str> {
        if self.turn(runs, start) {
            return Err("write, and another block touches");
        }
        for (earlier, what) in [
            (self.write, "write, and an unordered write of another thread, at"),
            (self.read, "write, and an unordered read of another thread, at"),
            (self.other_read, "write, and an unordered read of another thread, at"),
        ] {
            if earlier != 0 && !clock.has_seen(earlier) {
                return Err(what);
            }
        }
        *self = Unit { write: me, read: 0, other_read: 0, run: runs };
        Ok(())
    }
}

#[inline(always)]
fn split(address: u64) -> (usize, u64) {
    ((address >> REGION_SHIFT).wrapping_sub(1) as usize, address & ((1 << REGION_SHIFT) - 1))
}

fn set(bits: &mut [u64], at: usize, len: usize, value: bool) {
    for unit in at / 2..(at + len) / 2 {
        let bit = 1 << (unit % 64);
        if value {
            bits[unit / 64] |= bit;
        } else {
            bits[unit / 64] &= !bit;
        }
    }
}
