//! Who runs when: one fiber a thread, all choices by the seed.

use super::barrier::{ClusterBarrier, HardwareBarrier};
use super::clock::{Clock, MAX_SLOTS, epoch};
use super::collective::Rendezvous;
use super::cp_async;
use super::finding::{FindingKind, GIVE_UP};
use super::handle::Handle;
use super::shared::Shared;
use super::state::{Block, Cluster, Machine, Thread, Wait, Warp, set_current};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Fiber = Coroutine<(), (), (), DefaultStack>;

/// Room for a simulated thread; only what it touches costs memory.
const STACK_BYTES: usize = 512 << 10;
/// Slots for asynchronous units beside those of the threads.
const UNIT_SLOTS: usize = 96;

thread_local! {
    /// Stacks of ended fibers, to be used again.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
    /// Where the last panic of a simulated thread happened.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs the blocks `first ..` of one cluster to their end.
pub(crate) fn run_cluster(machine: Handle<Machine>, first: u32, shared_bytes: usize, kernel: &dyn Fn()) {
    let mut cluster = new_cluster(machine, first, shared_bytes);
    let whole = Handle::new(&mut *cluster);
    let mut fibers: Vec<Option<Fiber>> = (0..cluster.threads.len())
        .map(|slot| Some(fiber(Handle::new(&mut cluster.threads[slot]), kernel)))
        .collect();
    let mut running = fibers.len();
    let mut machine = machine;
    // Some seeds let asynchronous work complete soon, some late, some only when nothing else can go on.
    let eagerness = [64, 16, 255, 0][machine.rng.below(4)];
    // And some let one warp run rarely as long as others can.
    let slow = machine.rng.below(2 * cluster.warps.len()) as u32;
    while running > 0 && machine.findings.count() < GIVE_UP {
        if cluster.ready.is_empty() {
            if complete_one(whole) {
                continue;
            }
            report_deadlock(&mut cluster);
            break;
        }
        let mut pick = machine.rng.below(cluster.ready.len());
        if cluster.ready[pick] == slow && machine.rng.below(256) > 0 {
            pick = (pick + 1) % cluster.ready.len();
        }
        let warp = cluster.ready.swap_remove(pick) as usize;
        let lanes = std::mem::take(&mut cluster.warps[warp].ready);
        let first_thread = cluster.warps[warp].first;
        let turn = machine.rng.next() % 32;
        for step in 0..32 {
            let lane = (turn + step) % 32;
            if lanes >> lane & 1 == 0 {
                continue;
            }
            let slot = first_thread + lane as usize;
            set_current(Handle::new(&mut cluster.threads[slot]));
            let fiber = fibers[slot].as_mut().expect("a fiber that has not ended");
            if let CoroutineResult::Return(()) = fiber.resume(()) {
                running -= 1;
                end(fibers[slot].take().expect("the fiber that ran"));
                cluster.threads[slot].done = true;
                on_exit(whole);
            }
            set_current(Handle::NULL);
        }
        while (machine.rng.next() & 0xff) < eagerness && complete_one(whole) {}
        land_some(whole, eagerness);
    }
    for mut fiber in fibers.into_iter().flatten() {
        // SAFETY: what the fiber's frames own is plain data; they are forgotten, not unwound.
        unsafe { fiber.force_reset() };
        end(fiber);
    }
    for thread in &mut cluster.threads {
        machine.ops += thread.ops;
    }
}

fn new_cluster(machine: Handle<Machine>, first: u32, shared_bytes: usize) -> Box<Cluster> {
    let (per_block, blocks) = (machine.block_threads as usize, machine.cluster_blocks as usize);
    let total = per_block * blocks;
    let slots = total + UNIT_SLOTS;
    assert!(slots <= MAX_SLOTS, "{total} threads in a cluster are too many for the simulated device");
    let mut cluster = Box::new(Cluster {
        machine,
        blocks: Vec::with_capacity(blocks),
        threads: Vec::with_capacity(total),
        warps: Vec::new(),
        ready: Vec::new(),
        pending: Vec::new(),
        barrier: ClusterBarrier::new(slots),
        slots_used: total,
        slots,
    });
    for rank in 0..blocks as u32 {
        cluster.blocks.push(Block {
            rank,
            shared: Shared::new(shared_bytes),
            barriers: (0..16).map(|_| HardwareBarrier::new(slots)).collect(),
            mbarriers: Vec::new(),
            mbarrier_at: vec![0; shared_bytes.div_ceil(8)],
            warpgroups: (0..per_block.div_ceil(128)).map(|_| Default::default()).collect(),
        });
        for first_lane in (0..per_block).step_by(32) {
            let lanes = (per_block - first_lane).min(32) as u32;
            let ready = ((1u64 << lanes) - 1) as u32;
            let meeting = Rendezvous::default();
            cluster.ready.push(cluster.warps.len() as u32);
            let first = rank as usize * per_block + first_lane;
            cluster.warps.push(Warp { first, lanes, ready, meeting });
        }
    }
    let warps_per_block = per_block.div_ceil(32);
    let whole = Handle::new(&mut *cluster);
    for slot in 0..total {
        let (rank, index) = (slot / per_block, slot % per_block);
        let warp_index = rank * warps_per_block + index / 32;
        let mut clock = Clock::new(slots);
        clock.seen[slot] = 1;
        let thread = Thread {
            machine,
            cluster: whole,
            block: Handle::new(&mut cluster.blocks[rank]),
            warp: Handle::new(&mut cluster.warps[warp_index]),
            warp_index: warp_index as u32,
            block_index: first + rank as u32,
            index: index as u32,
            lane: index as u32 % 32,
            slot,
            me: epoch(slot, 1),
            clock,
            waits: Wait::Nothing,
            done: false,
            ops: 0,
            yielder: std::ptr::null(),
            copies: Default::default(),
            products: Default::default(),
        };
        cluster.threads.push(thread);
    }
    cluster
}

fn fiber(mut thread: Handle<Thread>, kernel: &dyn Fn()) -> Fiber {
    let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
        DefaultStack::new(STACK_BYTES).expect("memory for the stack of a simulated thread")
    });
    // SAFETY: `run_cluster` ends or resets every fiber before it returns, so none outlives the kernel's borrow.
    let kernel: &'static dyn Fn() = unsafe { std::mem::transmute(kernel) };
    Coroutine::with_stack(stack, move |yielder, ()| {
        thread.yielder = yielder;
        if let Err(payload) = catch_unwind(AssertUnwindSafe(kernel)) {
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(|text| text.to_string()))
                .unwrap_or_default();
            let place = PANIC.take().unwrap_or_default();
            thread.report((FindingKind::Panic, format!("{text} ({place})")));
        }
    })
}

fn end(fiber: Fiber) {
    if fiber.done() {
        STACKS.with_borrow_mut(|stacks| stacks.push(fiber.into_stack()));
    }
}

/// Keeps panics of simulated threads, which become findings, out of the terminal.
pub(crate) fn install_panic_hook() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if super::state::is_simulated() {
                PANIC.set(info.location().map(ToString::to_string));
            } else {
                before(info);
            }
        }));
    });
}

/// Lets one asynchronous unit take its next step; false where none has anything to do.
pub(crate) fn complete_one(mut cluster: Handle<Cluster>) -> bool {
    if cluster.pending.is_empty() {
        return false;
    }
    let steps = cluster.pending.len();
    let pick = cluster.machine.rng.below(steps);
    let queue = cluster.pending[pick].queue;
    let first = cluster.pending.iter().position(|step| step.queue == queue).expect("the step picked");
    let pending = cluster.pending.remove(first);
    (pending.step)(cluster);
    true
}

/// Lets some copies of some threads arrive early.
fn land_some(mut cluster: Handle<Cluster>, eagerness: u32) {
    if eagerness == 0 || !cluster.machine.copies_used {
        return;
    }
    let threads = cluster.threads.len();
    for _ in 0..eagerness / 16 {
        let slot = cluster.machine.rng.below(threads);
        cp_async::land_one(Handle::new(&mut cluster.threads[slot]));
    }
}

/// A thread has ended: the barrier of the cluster waits for the others only.
fn on_exit(cluster: Handle<Cluster>) {
    super::barrier::cluster_exit(cluster);
}

/// Says who waits for what, one finding for threads of a warp that wait for the same.
fn report_deadlock(cluster: &mut Cluster) {
    let mut groups: Vec<(usize, Wait, u32)> = Vec::new();
    for (slot, thread) in cluster.threads.iter().enumerate().filter(|(_, thread)| !thread.done) {
        match groups.iter_mut().find(|(first, wait, _)| {
            *wait == thread.waits && cluster.threads[*first].warp_index == thread.warp_index
        }) {
            Some(group) => group.2 += 1,
            None => groups.push((slot, thread.waits, 1)),
        }
    }
    let ended = cluster.threads.iter().filter(|thread| thread.done).count();
    let lines: Vec<String> = groups
        .iter()
        .map(|&(slot, wait, count)| {
            let thread = &cluster.threads[slot];
            let (block, warp) = (thread.block_index, thread.index / 32);
            format!("block {block} warp {warp}: {count} threads wait {}", describe(thread, wait))
        })
        .collect();
    let kind =
        if is_divergence(cluster, &groups) { FindingKind::BarrierDivergence } else { FindingKind::Deadlock };
    let what = format!("nobody can go on; {ended} threads have ended; {}", lines.join("; "));
    if let Some(&(slot, ..)) = groups.first() {
        cluster.threads[slot].report((kind, what));
    }
}

/// Whether threads stand at barriers that others of their block or warp have missed, rather than wait for data.
fn is_divergence(cluster: &Cluster, groups: &[(usize, Wait, u32)]) -> bool {
    let for_data = |wait: &Wait| matches!(wait, Wait::Mbarrier { .. });
    let somebody_ended = cluster.threads.iter().any(|thread| thread.done);
    let different = groups.iter().any(|group| group.1 != groups[0].1);
    !groups.iter().any(|(_, wait, _)| for_data(wait)) && (somebody_ended || different)
}

fn describe(thread: &Thread, wait: Wait) -> String {
    match wait {
        Wait::Nothing | Wait::GivenUp => "for nothing".into(),
        Wait::Lanes(what) => format!("at {what} for the other lanes"),
        Wait::Warpgroup(what) => format!("at {what} for the other threads of the warpgroup"),
        Wait::Cluster => "at barrier.cluster".into(),
        Wait::Barrier { id, threads } => {
            format!("at barrier {id}, where {} of {threads} are", thread.block.barriers[id as usize].arrived)
        }
        Wait::Mbarrier { offset, parity } => {
            let index = thread.block.mbarrier_at[offset as usize / 8];
            let state = &thread.block.mbarriers[usize::from(index) - 1];
            format!(
                "for parity {parity} of the mbarrier at byte {offset} (phase {}, {} arrivals and {} bytes missing)",
                state.phase, state.missing, state.bytes
            )
        }
    }
}
