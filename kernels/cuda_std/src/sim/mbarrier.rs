//! mbarriers: arrivals and bytes of copies, by phases.

use super::clock::{Clock, epoch};
use super::finding::FindingKind;
use super::handle::Handle;
use super::memory::Fault;
use super::state::{Block, Cluster, Thread, Wait, current};

/// An initialised mbarrier.
pub(crate) struct State {
    /// Where it lies in the block's shared memory.
    pub offset: u32,
    count: u32,
    /// Arrivals that the phase still waits for.
    pub missing: u32,
    /// Bytes that the phase still waits for; copies may complete before the arrival that announces them.
    pub bytes: i64,
    /// Phases completed.
    pub phase: u32,
    /// Slot of the copies that complete on it.
    slot: usize,
    /// Views of those that arrived in this phase, and the view that the last complete phase gives.
    arriving: Clock,
    complete: Clock,
    waiting: Vec<(usize, u32)>,
    /// Whether its initialisation was made visible to the asynchronous proxy.
    fenced: bool,
    initialised_by: usize,
}

impl State {
    /// The stamp of the copies that complete in the present phase.
    pub(crate) fn copy_stamp(&self) -> u32 {
        epoch(self.slot, self.phase + 1)
    }

    /// Ends the phase if nothing is missing.
    fn turn(&mut self, mut cluster: Handle<Cluster>) {
        if self.missing > 0 || self.bytes != 0 {
            return;
        }
        self.phase += 1;
        self.missing = self.count;
        self.arriving.seen[self.slot] = self.phase;
        self.arriving.proxied[self.slot] = self.phase;
        std::mem::swap(&mut self.arriving, &mut self.complete);
        self.arriving.clear();
        // A phase gives what the phases before it gave.
        self.arriving.join(&self.complete);
        let phase = self.phase;
        let complete = &self.complete;
        self.waiting.retain(|&(slot, parity)| {
            let wakes = phase & 1 != parity;
            if wakes {
                let thread = &mut cluster.threads[slot];
                thread.clock.join(complete);
                thread.wake();
            }
            !wakes
        });
    }
}

/// The mbarrier at a shared address of a block.
fn find(block: &mut Block, address: u32) -> Result<&mut State, Fault> {
    let offset = block.shared.offset(address, 8)?;
    match block.mbarrier_at[offset / 8] {
        0 => Err((FindingKind::Misuse, format!("no mbarrier was initialised at shared byte {offset}"))),
        index => Ok(&mut block.mbarriers[usize::from(index) - 1]),
    }
}

/// The mbarrier, as the thread (of this or of another block of the cluster) may use it.
fn find_for<'a>(block: &'a mut Handle<Block>, thread: &Thread, address: u32) -> Result<&'a mut State, Fault> {
    let shared = Handle::new(&mut block.shared);
    let state = find(block, address)?;
    if !shared.has_seen(state.offset as usize, &thread.clock) {
        let what = format!("use of the mbarrier at shared byte {}, unordered with its init", state.offset);
        return Err((FindingKind::Race, what));
    }
    Ok(state)
}

/// `mbarrier.init`.
pub(crate) fn init(address: u32, count: u32) {
    let mut thread = current();
    let mut block = thread.block;
    let made = block.shared.offset(address, 8).and_then(|offset| {
        block.shared.make_mbarrier(offset, thread.actor())?;
        Ok(offset)
    });
    let offset = match made {
        Ok(offset) => offset,
        Err(fault) => return thread.report(fault),
    };
    if count == 0 {
        return thread.misuse("mbarrier.init with a count of 0");
    }
    let slots = thread.cluster.slots;
    let mut state = State {
        offset: offset as u32,
        count,
        missing: count,
        bytes: 0,
        phase: 0,
        slot: 0,
        arriving: Clock::new(slots),
        complete: Clock::new(slots),
        waiting: Vec::new(),
        fenced: false,
        initialised_by: thread.slot,
    };
    match block.mbarrier_at[offset / 8] {
        0 => {
            state.slot = thread.cluster.new_slot();
            block.mbarriers.push(state);
            block.mbarrier_at[offset / 8] = block.mbarriers.len() as u16;
        }
        index => {
            let old = &mut block.mbarriers[usize::from(index) - 1];
            state.slot = old.slot;
            state.phase = old.phase & !1;
            *old = state;
        }
    }
}

/// The initialisations of this thread become visible to the asynchronous proxy.
pub(crate) fn fence_inits(thread: &mut Thread) {
    let slot = thread.slot;
    for state in &mut thread.block.mbarriers {
        state.fenced |= state.initialised_by == slot;
    }
}

/// `mbarrier.arrive`, with `bytes` of copies to wait for, at this block's barrier or at that of block `rank`.
pub(crate) fn arrive(address: u32, bytes: u32, rank: Option<u32>) {
    let mut thread = current();
    let mut cluster = thread.cluster;
    let mut block = thread.block;
    if let Some(rank) = rank {
        match cluster.blocks.get_mut(rank as usize) {
            Some(other) => block = Handle::new(other),
            None => return thread.misuse(format!("arrival at block {rank} of the cluster")),
        }
    }
    let state = match find_for(&mut block, &thread, address) {
        Ok(state) => state,
        Err(fault) => return thread.report(fault),
    };
    if state.missing == 0 {
        let what = format!("more arrivals than the {} of the mbarrier at byte {}", state.count, state.offset);
        return thread.misuse(what);
    }
    state.missing -= 1;
    state.bytes += i64::from(bytes);
    state.arriving.join(&thread.clock);
    state.turn(thread.cluster);
    thread.tick();
}

/// `mbarrier.try_wait.parity` until it succeeds.
pub(crate) fn wait(address: u32, parity: u32) {
    let mut thread = current();
    let mut block = thread.block;
    let slot = thread.slot;
    let state = match find_for(&mut block, &thread, address) {
        Ok(state) => state,
        Err(fault) => return thread.report(fault),
    };
    if parity > 1 {
        return thread.misuse(format!("parity {parity}: an mbarrier's phase has parity 0 or 1"));
    }
    if state.phase & 1 != parity {
        thread.clock.join(&state.complete);
    } else {
        state.waiting.push((slot, parity));
        let offset = state.offset;
        thread.block_on(Wait::Mbarrier { offset, parity });
    }
}

/// The mbarrier that a copy will complete on, seen from its sender.
pub(crate) fn for_copy(block: &mut Handle<Block>, thread: &Thread, address: u32) -> Result<usize, Fault> {
    let state = find_for(block, thread, address)?;
    if !state.fenced {
        let what = format!(
            "copy on the mbarrier at shared byte {}, whose init no fence has made visible to the copy unit",
            state.offset
        );
        return Err((FindingKind::ProxyFence, what));
    }
    let offset = state.offset as usize;
    Ok(usize::from(block.mbarrier_at[offset / 8]) - 1)
}

/// Bytes of a copy have arrived.
pub(crate) fn complete_bytes(cluster: Handle<Cluster>, mut block: Handle<Block>, index: usize, bytes: usize) {
    let state = &mut block.mbarriers[index];
    state.bytes -= bytes as i64;
    state.turn(cluster);
}
