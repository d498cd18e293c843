//! The block's hardware barriers and the cluster's.

use super::clock::Clock;
use super::finding::FindingKind;
use super::handle::Handle;
use super::state::{Cluster, Wait, current};

/// One of the 16 barriers of a block.
pub(crate) struct HardwareBarrier {
    pub arrived: u32,
    /// Threads that the present phase asks for.
    pub threads: u32,
    /// Views of those that have arrived.
    pub clock: Clock,
    waiting: Vec<u32>,
}

impl HardwareBarrier {
    pub(crate) fn new(slots: usize) -> Self {
        HardwareBarrier { arrived: 0, threads: 0, clock: Clock::new(slots), waiting: Vec::new() }
    }
}

/// `bar.sync id, threads` and `bar.arrive id, threads`; `threads` is 0 for all of the block.
pub(crate) fn barrier(id: u32, threads: u32, wait: bool) {
    let mut thread = current();
    let all = thread.machine.block_threads;
    let threads = if threads == 0 { all } else { threads };
    if id > 15 || threads > all || !threads.is_multiple_of(32) && threads != all {
        return thread.misuse(format!("barrier {id} for {threads} threads in a block of {all}"));
    }
    let mut block = thread.block;
    let barrier = &mut block.barriers[id as usize];
    if barrier.arrived > 0 && barrier.threads != threads {
        let text = format!("barrier {id}: {threads} threads here, {} at an earlier arrival", barrier.threads);
        thread.report((FindingKind::BarrierDivergence, text));
    }
    barrier.threads = threads;
    barrier.arrived += 1;
    barrier.clock.join(&thread.clock);
    if barrier.arrived < threads {
        if wait {
            barrier.waiting.push(thread.index);
            thread.block_on(Wait::Barrier { id, threads });
        }
    } else {
        barrier.arrived = 0;
        if wait {
            thread.clock.copy_from(&barrier.clock);
        }
        let rank = block.rank;
        let barrier = &mut block.barriers[id as usize];
        for index in barrier.waiting.drain(..) {
            let other = &mut thread.cluster.block_threads(rank)[index as usize];
            other.clock.copy_from(&barrier.clock);
            other.wake();
        }
        barrier.clock.clear();
    }
    thread.tick();
}

/// The barrier of a cluster.
pub(crate) struct ClusterBarrier {
    arrived: usize,
    clock: Clock,
}

impl ClusterBarrier {
    pub(crate) fn new(slots: usize) -> Self {
        ClusterBarrier { arrived: 0, clock: Clock::new(slots) }
    }
}

/// `barrier.cluster.arrive` and `wait`: waits for all threads of the cluster that have not ended.
pub(crate) fn cluster_sync() {
    let mut thread = current();
    let mut cluster = thread.cluster;
    cluster.barrier.arrived += 1;
    cluster.barrier.clock.join(&thread.clock);
    if !release(cluster) {
        thread.block_on(Wait::Cluster);
    }
    thread.tick();
}

/// A thread has ended: perhaps the barrier of the cluster waited for it alone.
pub(crate) fn cluster_exit(cluster: Handle<Cluster>) {
    if cluster.barrier.arrived > 0 {
        release(cluster);
    }
}

fn release(mut cluster: Handle<Cluster>) -> bool {
    let running = cluster.threads.iter().filter(|thread| !thread.done).count();
    if cluster.barrier.arrived < running {
        return false;
    }
    let mut whole = cluster;
    whole.barrier.arrived = 0;
    for thread in cluster.threads.iter_mut().filter(|thread| !thread.done) {
        thread.clock.copy_from(&whole.barrier.clock);
        if thread.waits == Wait::Cluster {
            thread.wake();
        }
    }
    whole.barrier.clock.clear();
    true
}
