//! The parts of a launch in progress: machine, cluster, block, warp, thread.

use super::barrier::{ClusterBarrier, HardwareBarrier};
use super::clock::{Clock, Epoch, epoch};
use super::collective::Rendezvous;
use super::finding::{Finding, FindingKind, Findings, GIVE_UP};
use super::handle::Handle;
use super::mbarrier::State as MbarrierState;
use super::memory::{Fault, Memory};
use super::rng::Rng;
use super::shared::{Actor, Shared};
use std::cell::Cell;

/// What all clusters of a launch share.
pub(crate) struct Machine {
    pub name: String,
    pub grid: u32,
    pub block_threads: u32,
    pub cluster_blocks: u32,
    pub memory: Handle<Memory>,
    pub rng: Rng,
    pub findings: Findings,
    /// Whether any thread has used `cp.async`.
    pub copies_used: bool,
    pub ops: u64,
}

/// Blocks that run together.
pub(crate) struct Cluster {
    pub machine: Handle<Machine>,
    pub blocks: Vec<Block>,
    pub threads: Vec<Thread>,
    pub warps: Vec<Warp>,
    /// Warps with a thread that can go on.
    pub ready: Vec<u32>,
    /// Asynchronous work in flight.
    pub pending: Vec<Pending>,
    pub barrier: ClusterBarrier,
    /// Slots of the vector clocks handed out so far.
    pub slots_used: usize,
    pub slots: usize,
}

/// A step that some asynchronous unit will take; steps of one queue stay in order.
pub(crate) struct Pending {
    pub queue: u64,
    pub step: Box<dyn FnOnce(Handle<Cluster>)>,
}

pub(crate) struct Block {
    pub rank: u32,
    pub shared: Shared,
    pub barriers: Vec<HardwareBarrier>,
    pub mbarriers: Vec<MbarrierState>,
    /// For each 8 bytes of shared memory, the mbarrier there (its index plus one).
    pub mbarrier_at: Vec<u16>,
    pub warpgroups: Vec<super::wgmma::Warpgroup>,
}

pub(crate) struct Warp {
    /// The threads of the warp, in the cluster's list.
    pub first: usize,
    pub lanes: u32,
    /// Lanes that can go on.
    pub ready: u32,
    pub meeting: Rendezvous,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Nothing,
    /// A hardware barrier of the block.
    Barrier {
        id: u32,
        threads: u32,
    },
    /// The other lanes of the warp at an instruction.
    Lanes(&'static str),
    /// The other threads of the warpgroup at an instruction.
    Warpgroup(&'static str),
    /// An mbarrier's phase.
    Mbarrier {
        offset: u32,
        parity: u32,
    },
    /// The other threads of the cluster.
    Cluster,
    /// The end: the launch was given up.
    GivenUp,
}

pub(crate) struct Thread {
    pub machine: Handle<Machine>,
    pub cluster: Handle<Cluster>,
    pub block: Handle<Block>,
    pub warp: Handle<Warp>,
    pub warp_index: u32,
    pub block_index: u32,
    /// In the block.
    pub index: u32,
    pub lane: u32,
    /// In the cluster: its slot in the vector clocks.
    pub slot: usize,
    /// The stamp of its accesses at present.
    pub me: Epoch,
    pub clock: Clock,
    pub waits: Wait,
    pub done: bool,
    pub ops: u64,
    pub yielder: *const corosensei::Yielder<(), ()>,
    pub copies: super::cp_async::Copies,
    pub products: super::wgmma::Products,
}

impl Thread {
    pub(crate) fn actor(&self) -> Actor<'_> {
        Actor { me: self.me, clock: &self.clock }
    }

    /// Starts a new interval: what was stamped so far has been released to somebody.
    pub(crate) fn tick(&mut self) {
        let clock = &mut self.clock.seen[self.slot];
        *clock += 1;
        self.me = epoch(self.slot, *clock);
    }

    /// Waits; another thread or an asynchronous unit wakes it.
    pub(crate) fn block_on(&mut self, what: Wait) {
        self.waits = what;
        // SAFETY: the yielder lives on this fiber's stack for as long as the fiber runs.
        unsafe { (*self.yielder).suspend(()) };
        self.waits = Wait::Nothing;
    }

    pub(crate) fn wake(&mut self) {
        self.wake_lanes(1 << self.lane);
    }

    /// Wakes lanes of this thread's warp.
    pub(crate) fn wake_lanes(&mut self, lanes: u32) {
        let mut warp = self.warp;
        if warp.ready == 0 && lanes != 0 {
            self.cluster.ready.push(self.warp_index);
        }
        warp.ready |= lanes;
    }

    /// Notes a finding of this thread; gives the launch up where there are too many.
    #[cold]
    #[inline(never)]
    pub(crate) fn report(&mut self, (kind, what): Fault) {
        let finding = Finding {
            kind,
            kernel: self.machine.name.clone(),
            block: self.block_index,
            thread: self.index,
            location: None,
            what,
        };
        self.machine.findings.add(finding);
        if self.machine.findings.count() >= GIVE_UP {
            self.block_on(Wait::GivenUp);
        }
    }

    /// Notes a finding of an asynchronous unit that works for this thread, which may be anywhere by now.
    pub(crate) fn report_for(&mut self, (kind, what): Fault) {
        let finding = Finding {
            kind,
            kernel: self.machine.name.clone(),
            block: self.block_index,
            thread: self.index,
            location: Some("an asynchronous copy".into()),
            what,
        };
        self.machine.findings.add(finding);
    }

    pub(crate) fn misuse(&mut self, what: impl Into<String>) {
        self.report((FindingKind::Misuse, what.into()));
    }
}

impl Cluster {
    /// A slot of the vector clocks for an asynchronous unit.
    pub(crate) fn new_slot(&mut self) -> usize {
        assert!(self.slots_used < self.slots, "too many mbarriers for the simulated device");
        self.slots_used += 1;
        self.slots_used - 1
    }

    /// The threads of a block.
    pub(crate) fn block_threads(&mut self, rank: u32) -> &mut [Thread] {
        let threads = self.machine.block_threads as usize;
        &mut self.threads[rank as usize * threads..][..threads]
    }
}

thread_local! {
    static ARITHMETIC: Cell<u64> = const { Cell::new(0) };
    static CURRENT: Cell<Handle<Thread>> = const { Cell::new(Handle::NULL) };
}

/// The simulated thread that runs now.
#[inline(always)]
pub(crate) fn current() -> Handle<Thread> {
    let mut thread = CURRENT.get();
    if thread.is_null() {
        outside();
    }
    thread.ops += 1;
    thread
}

#[cold]
#[inline(never)]
fn outside() -> ! {
    panic!("a device function was called on the host outside a simulated launch (cuda_std::sim::Launch)")
}

pub(crate) fn set_current(thread: Handle<Thread>) {
    CURRENT.set(thread);
}

/// Counts an arithmetic instruction.
#[inline(always)]
pub(crate) fn count_arithmetic() {
    ARITHMETIC.set(ARITHMETIC.get() + 1);
}

/// The arithmetic instructions counted since this was last asked.
pub(crate) fn take_arithmetic() -> u64 {
    ARITHMETIC.take()
}

pub(crate) fn is_simulated() -> bool {
    !CURRENT.get().is_null()
}
