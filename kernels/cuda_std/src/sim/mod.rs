//! The simulated device: the second implementation of every device function, for the host.
//!
//! A [`Launch`] runs a kernel (a closure that calls it) with one fiber a thread on the calling OS thread. Kernels see
//! a [`Memory`] whose addresses are handles; everything they do is checked, and what is wrong comes back as
//! [`Finding`]s. All choices (who runs next, when a copy arrives) follow from the seed.

mod access;
mod barrier;
mod clock;
mod collective;
pub(crate) mod cp_async;
mod finding;
mod handle;
mod mbarrier;
mod memory;
mod mma;
mod mutation;
mod rng;
mod schedule;
mod shared;
mod state;
mod tma;
pub(crate) mod wgmma;

pub use finding::{Finding, FindingKind};
pub use memory::{Access, Memory};
pub use mutation::{Mutation, planted};
pub use tma::{Swizzle, encode_tensor_map};

pub(crate) use access::{atomic_global, load_global, load_shared, store_global, store_shared};
pub(crate) use barrier::{barrier, cluster_sync};
pub(crate) use collective::{ballot, shuffle_idx, shuffle_xor, sync_warp};
pub(crate) use mbarrier::{arrive, init, wait};
pub(crate) use mma::{ldmatrix, m16n8k16};
pub(crate) use state::{count_arithmetic, current};
pub(crate) use tma::load as tma_load;

use handle::Handle;

/// A kernel's grid on the simulated device.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel's name, for findings.
    pub name: String,
    /// Blocks along x.
    pub grid: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster.
    pub cluster: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// What decides about the schedule.
    pub seed: u64,
    /// A bug to plant.
    pub mutation: Option<Mutation>,
}

/// What a launch did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was wrong; empty for a right kernel.
    pub findings: Vec<Finding>,
    /// Findings beyond those listed.
    pub more_findings: usize,
    /// Device functions called, over all threads, but for arithmetic: what touches memory, other threads or an
    /// asynchronous unit, and questions for indices.
    pub operations: u64,
    /// Arithmetic instructions of `cuda_std`, over all threads: fused multiply-adds, exponentials, conversions, …
    pub arithmetic: u64,
}

impl Report {
    /// Panics with all findings if there are any.
    #[track_caller]
    pub fn expect_clean(&self) {
        let lines: Vec<String> = self.findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{}\n({} more)", lines.join("\n"), self.more_findings);
    }

    /// Whether a finding of this kind is among them.
    pub fn has(&self, kind: FindingKind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }
}

impl Launch {
    /// `grid` blocks of `threads` threads, without clusters or shared memory, seed 0.
    pub fn new(name: &str, grid: u32, threads: u32) -> Self {
        Launch { name: name.into(), grid, threads, cluster: 1, shared_bytes: 0, seed: 0, mutation: None }
    }

    /// With this much dynamic shared memory.
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// In clusters of this many blocks.
    pub fn cluster(mut self, blocks: u32) -> Self {
        self.cluster = blocks;
        self
    }

    /// With another schedule.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs `kernel`, once a thread, to the end of the grid or until nothing can go on.
    pub fn run(&self, memory: &mut Memory, kernel: impl Fn()) -> Report {
        assert!(self.grid.is_multiple_of(self.cluster), "the grid is not a whole number of clusters");
        assert!((1..=1024).contains(&self.threads), "a block has 1 to 1024 threads");
        schedule::install_panic_hook();
        let mut machine = Box::new(state::Machine {
            name: self.name.clone(),
            grid: self.grid,
            block_threads: self.threads,
            cluster_blocks: self.cluster,
            memory: Handle::new(memory),
            rng: rng::Rng::new(self.seed),
            findings: Default::default(),
            copies_used: false,
            ops: 0,
        });
        mutation::plant(self.mutation);
        state::take_arithmetic();
        machine.memory.launch_start = machine.memory.runs + 1;
        for first in (0..self.grid).step_by(self.cluster as usize) {
            machine.memory.runs += 1;
            schedule::run_cluster(Handle::new(&mut machine), first, self.shared_bytes as usize, &kernel);
            if machine.findings.count() >= finding::GIVE_UP {
                break;
            }
        }
        mutation::plant(None);
        let more_findings = machine.findings.dropped;
        let (operations, arithmetic) = (machine.ops, state::take_arithmetic());
        Report { findings: machine.findings.finish(), more_findings, operations, arithmetic }
    }
}

/// Indices of the current thread.
pub(crate) mod index {
    use super::current;

    pub(crate) fn thread_idx_x() -> u32 {
        current().index
    }
    pub(crate) fn block_dim_x() -> u32 {
        current().machine.block_threads
    }
    pub(crate) fn block_idx_x() -> u32 {
        current().block_index
    }
    pub(crate) fn grid_dim_x() -> u32 {
        current().machine.grid
    }
    pub(crate) fn block_rank() -> u32 {
        current().block.rank
    }
}

/// Address of the block's dynamic shared memory.
pub(crate) fn dynamic_shared_mem() -> u32 {
    current();
    shared::BASE
}

/// `fence.proxy.async`: all that this thread has seen so far becomes visible to the asynchronous proxy.
pub(crate) fn fence_proxy_async() {
    let mut thread = current();
    let clock = &mut thread.clock;
    clock.proxied.copy_from_slice(&clock.seen);
    mbarrier::fence_inits(&mut thread);
}

/// `fence.mbarrier_init`.
pub(crate) fn fence_mbarrier_init() {
    let mut thread = current();
    crate::mutant!(NoFenceOfInit, (), mbarrier::fence_inits(&mut thread));
}

/// `fence.acq_rel.gpu`: alone it orders nothing that the vector clocks can see.
pub(crate) fn thread_fence() {
    current();
}

/// `setmaxnreg`: a whole warp executes it; the budget itself means nothing here.
pub(crate) fn set_registers(registers: u32, raise: bool) {
    let mut thread = current();
    if !(24..=256).contains(&registers) || !registers.is_multiple_of(8) {
        thread.misuse(format!("setmaxnreg to {registers}"));
    }
    collective::meet(thread, if raise { "setmaxnreg.inc" } else { "setmaxnreg.dec" }, &[], |_, _| {});
}

/// `prefetch.tensormap`: nothing to see here.
pub(crate) fn prefetch_map(_map: u64) {
    current();
}
