//! Warpgroup products: issued thread by thread, computed late, delivered by the wait.
//!
//! A product belongs to a number: the count of those that its thread issued before. It can be computed once all 128
//! threads have issued it; the scheduler decides when. Until its wait, the accumulator's registers hold a token: NaNs
//! that name the product with which the accumulator started, so that a product on the same registers finds it, and
//! whoever computes with them is found out.

use super::finding::FindingKind;
use super::handle::Handle;
use super::memory::Fault;
use super::state::{Block, Cluster, Pending, Thread, Wait, current};
use std::collections::VecDeque;

const THREADS: usize = 128;
const ROWS: usize = 64;
/// Columns of A in one product.
const DEPTH: usize = 16;
/// A NaN that no arithmetic makes, with 16 bits to spare.
const IN_FLIGHT: u32 = 0x7fd5_0000;
/// The same for results made of shared memory that nobody had written.
const UNINITIALISED: u32 = 0x7fd6_0000;
const TOKEN_MASK: u32 = 0xffff;

/// What a warpgroup has in flight.
#[derive(Default)]
pub(crate) struct Warpgroup {
    products: VecDeque<Product>,
    /// Number of the first of them.
    first: u32,
    sums: Vec<Sums>,
    waiting: Vec<(usize, u32)>,
    /// Slot of its reads of shared memory in the vector clocks.
    slot: Option<usize>,
}

/// A 64 x N accumulator in flight.
struct Sums {
    /// Number of the product that it started with.
    start: u32,
    /// Number of the last product on it so far.
    last: u32,
    columns: usize,
    values: Vec<f32>,
    /// Threads that have taken their results.
    taken: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operands {
    /// A in shared memory; else it is in registers.
    a: Option<u64>,
    b: u64,
    /// Whether B's columns are contiguous, not its rows.
    transposed: bool,
    columns: usize,
    bf16: bool,
    accumulate: bool,
    start: u32,
}

struct Product {
    operands: Operands,
    /// Threads that have issued it.
    issued: usize,
    a: Vec<[u32; 4]>,
    /// Whether an operand holds values that nobody wrote.
    uninitialised: bool,
}

/// What a thread has in flight.
#[derive(Default)]
pub(crate) struct Products {
    /// Products issued.
    issued: u32,
    /// For each committed group not waited for, the number of products issued by then.
    groups: Vec<u32>,
    /// Products that this thread has waited for.
    waited: u32,
    /// Whether a `wgmma.fence` stands between the registers' last wait and now.
    fenced: bool,
}

/// `wgmma.fence`.
pub(crate) fn fence() {
    let mut thread = current();
    thread.products.fenced |= crate::mutant!(NoFenceOfProducts, false, true);
}

/// `wgmma.commit_group`.
pub(crate) fn commit_group() {
    let mut thread = current();
    let issued = thread.products.issued;
    thread.products.groups.push(issued);
}

/// `wgmma.mma_async` with A in shared memory or in registers, and B as it is or transposed.
pub(crate) fn multiply(
    acc: &mut [f32],
    a: Result<u64, [u32; 4]>,
    (b, transposed): (u64, bool),
    bf16: bool,
    accumulate: bool,
) {
    let mut thread = current();
    let mut block = thread.block;
    let mut group = Handle::new(&mut block.warpgroups[thread.index as usize / THREADS]);
    if thread.index as usize / THREADS * THREADS + THREADS > thread.machine.block_threads as usize {
        return thread.misuse("wgmma in a warpgroup of fewer than 128 threads");
    }
    let number = thread.products.issued;
    thread.products.issued += 1;
    let token = token_of(acc);
    if !thread.products.fenced && (token.is_none() || a.is_err()) {
        let what = "wgmma on registers that were used since the last wgmma.fence";
        thread.report((FindingKind::RegistersInFlight, what.into()));
    }
    let start = token.unwrap_or(number & TOKEN_MASK);
    let operands = Operands { a: a.ok(), b, transposed, columns: 2 * acc.len(), bf16, accumulate, start };
    let place = (number - group.first) as usize;
    if place == group.products.len() {
        let a = vec![[0; 4]; if a.is_err() { THREADS } else { 0 }];
        group.products.push_back(Product { operands, issued: 0, a, uninitialised: false });
    }
    if group.products[place].operands != operands {
        let what =
            format!("threads of a warpgroup issue {operands:?} and {:?}", group.products[place].operands);
        return thread.misuse(what);
    }
    let lane = thread.index as usize % THREADS;
    if let Err(registers) = a {
        group.products[place].a[lane] = registers;
    }
    if token.is_none() {
        let sums = group.sums_of(start, operands.columns, number);
        if accumulate {
            scatter(&mut sums.values, acc, lane);
        }
    }
    group.sums_of(start, operands.columns, number).last = number;
    acc.fill(f32::from_bits(IN_FLIGHT | start));
    if lane.is_multiple_of(32) {
        match check_operands(&mut thread, &mut group, operands, number) {
            Ok(uninitialised) => group.products[place].uninitialised |= uninitialised,
            Err(fault) => thread.report(fault),
        }
    }
    let product = &mut group.products[place];
    product.issued += 1;
    if product.issued == THREADS {
        let queue = 1 << 32 | u64::from(thread.slot as u32 / THREADS as u32);
        let step = Box::new(move |cluster| compute(cluster, block, group));
        thread.cluster.pending.push(Pending { queue, step });
    }
}

/// `wgmma.wait_group pending`, and `acc` receives its sums.
pub(crate) fn wait(acc: &mut [f32], pending: u32) {
    let mut thread = current();
    let mut block = thread.block;
    let mut group = Handle::new(&mut block.warpgroups[thread.index as usize / THREADS]);
    let pending = crate::mutant!(OneProductGroupMore, pending + 1, pending);
    let finished = thread.products.groups.len().saturating_sub(pending as usize);
    if let Some(&last) = thread.products.groups[..finished].last() {
        thread.products.waited = last;
    }
    thread.products.groups.drain(..finished);
    let done = thread.products.waited;
    if group.first < done {
        let slot = thread.slot;
        group.waiting.push((slot, done));
        thread.block_on(Wait::Warpgroup("wgmma.wait_group"));
    }
    if let Some(slot) = group.slot {
        let seen = &mut thread.clock.seen[slot];
        *seen = (*seen).max(done);
    }
    thread.products.fenced = false;
    let Some(start) = token_of(acc) else { return };
    let Some(index) = group.sums.iter().position(|sums| sums.start & TOKEN_MASK == start) else {
        return thread.misuse("wgmma.wait_group on registers whose product is unknown");
    };
    if acc.iter().any(|value| value.to_bits() != IN_FLIGHT | start) {
        let what = "registers of a product in flight were written before its wait";
        thread.report((FindingKind::RegistersInFlight, what.into()));
    }
    if group.sums[index].last >= done {
        let what = format!(
            "wgmma.wait_group {pending} does not cover the product whose registers it gives back \
             (product {}, of which {done} are waited for)",
            group.sums[index].last + 1
        );
        return thread.report((FindingKind::RegistersInFlight, what));
    }
    let sums = &mut group.sums[index];
    gather(&sums.values, acc, thread.index as usize % THREADS);
    sums.taken += 1;
    if sums.taken == THREADS {
        group.sums.swap_remove(index);
    }
}

/// Notes a computation with registers that belong to a product in flight, or whose value nobody wrote.
#[inline(always)]
pub(crate) fn check_value(value: f32) {
    if (value.to_bits() ^ IN_FLIGHT) & 0x7ffc_0000 == 0 {
        suspicious(value);
    }
}

#[cold]
#[inline(never)]
fn suspicious(value: f32) {
    if !super::state::is_simulated() {
        return;
    }
    match value.to_bits() & 0x7fff_0000 {
        IN_FLIGHT => {
            let what = "a value computed from registers of a product in flight".into();
            current().report((FindingKind::RegistersInFlight, what));
        }
        UNINITIALISED => {
            let what = "a value computed from shared memory that nobody had written".into();
            current().report((FindingKind::Uninitialised, what));
        }
        _ => {}
    }
}

fn token_of(acc: &[f32]) -> Option<u32> {
    let is_token = |value: &&f32| value.to_bits() & !TOKEN_MASK == IN_FLIGHT;
    acc.iter().find(is_token).map(|value| value.to_bits() & TOKEN_MASK)
}

impl Warpgroup {
    fn sums_of(&mut self, start: u32, columns: usize, number: u32) -> &mut Sums {
        let index = self.sums.iter().position(|sums| sums.start & TOKEN_MASK == start).unwrap_or_else(|| {
            let values = vec![0.0; ROWS * columns];
            self.sums.push(Sums { start: number, last: number, columns, values, taken: 0 });
            self.sums.len() - 1
        });
        &mut self.sums[index]
    }
}

/// Row and column of element `i` of a thread's accumulators.
fn element(lane: usize, i: usize) -> (usize, usize) {
    let row = 16 * (lane / 32) + lane % 32 / 4 + 8 * (i / 2 % 2);
    (row, 8 * (i / 4) + 2 * (lane % 4) + i % 2)
}

fn scatter(values: &mut [f32], acc: &[f32], lane: usize) {
    let columns = 2 * acc.len();
    for (i, value) in acc.iter().enumerate() {
        let (row, column) = element(lane, i);
        values[row * columns + column] = *value;
    }
}

fn gather(values: &[f32], acc: &mut [f32], lane: usize) {
    let columns = 2 * acc.len();
    for (i, value) in acc.iter_mut().enumerate() {
        let (row, column) = element(lane, i);
        *value = values[row * columns + column];
    }
}

/// A matrix descriptor taken apart, as the hardware does.
struct Layout {
    start: usize,
    leading: usize,
    stride: usize,
}

impl Layout {
    fn decode(descriptor: u64) -> Result<Self, Fault> {
        let field = |shift: u32| ((descriptor >> shift) & 0x3fff) as usize * 16;
        let (swizzle, base) = (descriptor >> 62, descriptor >> 49 & 7);
        if swizzle != 1 || base != 0 {
            let what = format!("descriptor {descriptor:#x}: swizzle mode {swizzle}, base offset {base}");
            return Err((FindingKind::Misuse, what));
        }
        Ok(Layout { start: field(0), leading: field(16), stride: field(32) })
    }

    /// Shared address of element (row, k) of an operand whose contraction dimension is contiguous.
    fn contracted_contiguous(&self, row: usize, k: usize) -> usize {
        swizzle(self.start + row / 8 * self.stride + row % 8 * 128 + 2 * k)
    }

    /// Shared address of element (k, column) of an operand whose other dimension is contiguous.
    fn transposed(&self, k: usize, column: usize) -> usize {
        let slab = self.start + column / 64 * self.leading + column % 64 * 2;
        swizzle(slab + k / 8 * self.stride + k % 8 * 128)
    }
}

/// The 128-byte swizzle: within 8 rows of 128 bytes, a row's 16-byte pieces are permuted by the row's number.
pub(crate) fn swizzle(address: usize) -> usize {
    address ^ (address >> 7 & 7) << 4
}

/// Calls `f` with the shared address of each 16-byte piece (8 elements) of the product's operands: whether it is A's,
/// its row, its column.
fn pieces(
    operands: Operands,
    mut f: impl FnMut(bool, usize, usize, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let b = Layout::decode(operands.b)?;
    if let Some(a) = operands.a {
        let a = Layout::decode(a)?;
        for row in 0..ROWS {
            for k in (0..DEPTH).step_by(8) {
                f(true, row, k, a.contracted_contiguous(row, k))?;
            }
        }
    }
    if operands.transposed {
        for k in 0..DEPTH {
            for column in (0..operands.columns).step_by(8) {
                f(false, k, column, b.transposed(k, column))?;
            }
        }
    } else {
        for column in 0..operands.columns {
            for k in (0..DEPTH).step_by(8) {
                f(false, k, column, b.contracted_contiguous(column, k))?;
            }
        }
    }
    Ok(())
}

/// Looks at the operands as the issuing warp sees them, and stamps them as read. Gives whether some of it was never
/// written: that matters only if somebody looks at the result.
fn check_operands(
    thread: &mut Handle<Thread>,
    group: &mut Warpgroup,
    operands: Operands,
    number: u32,
) -> Result<bool, Fault> {
    let slot = *group.slot.get_or_insert_with(|| thread.cluster.new_slot());
    let me = super::clock::epoch(slot, number + 1);
    let (mut checked, mut uninitialised) = (0, false);
    let mut block = thread.block;
    pieces(operands, |_, _, _, address| {
        let offset = block.shared.offset(address as u32, 16)?;
        match block.shared.touch_async(offset, 16, me, &thread.clock, &mut checked) {
            Err((FindingKind::Uninitialised, _)) => uninitialised = true,
            other => other?,
        }
        Ok(())
    })?;
    Ok(uninitialised)
}

/// Computes the oldest product of a warpgroup.
fn compute(mut cluster: Handle<Cluster>, block: Handle<Block>, mut group: Handle<Warpgroup>) {
    let Some(product) = group.products.pop_front() else { return };
    let Operands { columns, bf16, .. } = product.operands;
    let convert = |bits: [u8; 2]| {
        let bits = u16::from_le_bytes(bits);
        if bf16 { f32::from_bits(u32::from(bits) << 16) } else { super::mma::f16_to_f32(bits) }
    };
    let mut a = vec![0f32; ROWS * DEPTH];
    for (lane, registers) in product.a.iter().enumerate() {
        for (i, register) in registers.iter().enumerate() {
            let row = 16 * (lane / 32) + lane % 32 / 4 + 8 * (i % 2);
            let k = 2 * (lane % 4) + 8 * (i / 2);
            let [b0, b1, b2, b3] = register.to_le_bytes();
            a[row * DEPTH + k] = convert([b0, b1]);
            a[row * DEPTH + k + 1] = convert([b2, b3]);
        }
    }
    let mut b = vec![0f32; DEPTH * columns];
    let transposed = product.operands.transposed;
    // Descriptors were checked at issue; what cannot be decoded was reported there and computes nothing.
    let _ = pieces(product.operands, |of_a, row, column, address| {
        let offset = block.shared.offset(address as u32, 16)?;
        let piece = block.shared.bytes(offset, 16);
        for (i, pair) in piece.chunks_exact(2).enumerate() {
            let value = convert([pair[0], pair[1]]);
            match (of_a, transposed) {
                (true, _) => a[row * DEPTH + column + i] = value,
                (false, true) => b[row * columns + column + i] = value,
                (false, false) => b[(row + i) * columns + column] = value,
            }
        }
        Ok(())
    });
    let number = group.first;
    let sums = group.sums_of(product.operands.start, columns, number);
    if !product.operands.accumulate {
        sums.values.fill(0.0);
    }
    for (row, sums) in sums.values.chunks_exact_mut(sums.columns).enumerate() {
        for k in 0..DEPTH {
            let x = a[row * DEPTH + k];
            for (sum, y) in sums.iter_mut().zip(&b[k * columns..][..columns]) {
                *sum += x * y;
            }
        }
    }
    if product.uninitialised {
        sums.values.fill(f32::from_bits(UNINITIALISED));
    }
    group.first += 1;
    let done = group.first;
    group.waiting.retain(|&(slot, target)| {
        if target <= done {
            cluster.threads[slot].wake();
        }
        target > done
    });
}
