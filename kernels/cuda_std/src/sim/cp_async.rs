//! `cp.async`: copies of 4 to 16 bytes from global to shared memory that complete when their thread waits, or earlier.

use super::finding::FindingKind;
use super::handle::Handle;
use super::mutation::{self, Mutation};
use super::state::{Thread, current};

/// The copies of one thread.
#[derive(Default)]
pub(crate) struct Copies {
    /// Oldest first.
    flying: Vec<Copy>,
    /// Groups committed so far.
    groups: u32,
}

struct Copy {
    group: u32,
    offset: usize,
    from: u64,
    /// Bytes that come from global memory; the rest of `size` is filled with zeros.
    bytes: usize,
    size: usize,
    landed: bool,
}

/// `cp.async.ca/cg.shared.global [to], [from], size, bytes`.
pub(crate) fn copy(to: u32, from: u64, size: usize, bytes: u32) {
    let mut thread = current();
    let mut block = thread.block;
    thread.machine.copies_used = true;
    if bytes as usize > size {
        return thread.misuse(format!("cp.async of {bytes} source bytes into {size}"));
    }
    if bytes > 0 && !from.is_multiple_of(size as u64) {
        let place = thread.machine.memory.place(from);
        return thread.report((FindingKind::Misaligned, format!("cp.async of {size} bytes from {place}")));
    }
    let offset = match block.shared.offset(to, size) {
        Ok(offset) => offset,
        Err(fault) => return thread.report(fault),
    };
    if let Err(fault) = block.shared.begin_copy(offset, size, thread.actor()) {
        thread.report(fault);
    }
    let group = thread.copies.groups;
    thread.copies.flying.push(Copy { group, offset, from, bytes: bytes as usize, size, landed: false });
}

/// `cp.async.commit_group`.
pub(crate) fn commit_group() {
    current().copies.groups += 1;
}

/// `cp.async.wait_group pending`.
pub(crate) fn wait_group(pending: u32) {
    let mut thread = current();
    let pending = crate::mutant!(OneCopyGroupMore, pending + 1, pending);
    let done = thread.copies.groups.saturating_sub(pending);
    finish(&mut thread, done);
}

fn finish(thread: &mut Handle<Thread>, groups: u32) {
    let count = thread.copies.flying.iter().take_while(|copy| copy.group < groups).count();
    for index in 0..count {
        land(thread, index);
    }
    let me = thread.me;
    let mut block = thread.block;
    for copy in thread.copies.flying.drain(..count) {
        block.shared.restamp(copy.offset, copy.size, me);
    }
}

/// The scheduler's chance to let the oldest outstanding copy of a thread arrive early.
pub(crate) fn land_one(mut thread: Handle<Thread>) {
    if let Some(index) = thread.copies.flying.iter().position(|copy| !copy.landed) {
        land(&mut thread, index);
    }
}

fn land(thread: &mut Handle<Thread>, index: usize) {
    let copy = &mut thread.copies.flying[index];
    if copy.landed {
        return;
    }
    copy.landed = true;
    let (from, bytes, size, offset) =
        (mutation::narrowed(copy.from, Mutation::NarrowLoads), copy.bytes, copy.size, copy.offset);
    let mut value = [0u8; 16];
    let mut memory = thread.machine.memory;
    if let Err(fault) = memory.load_bytes(from, &mut value[..bytes], thread.me, &thread.clock) {
        thread.report_for(fault);
    }
    let me = thread.me;
    let mut block = thread.block;
    block.shared.finish_copy(offset, &value[..size], me, false);
    block.shared.keep_in_flight(offset, size);
}
