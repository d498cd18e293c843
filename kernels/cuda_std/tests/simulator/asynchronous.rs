//! TMA, mbarriers and wgmma: what they compute under many schedules, and their bugs.

use crate::findings::caught;
use cuda_std::element::{Bf16, F16, Half};
use cuda_std::global::GlobalPtr;
use cuda_std::mbarrier::Mbarrier;
use cuda_std::shared::{SharedPtr, dynamic_shared_mem};
use cuda_std::sim::{Finding, FindingKind, Launch, Memory, Swizzle, encode_tensor_map};
use cuda_std::tma::ParamAddress;
use cuda_std::wgmma::{self, Accumulator, Descriptor};
use cuda_std::{fence, thread};

/// Rows and contraction of the products here.
const ROWS: usize = 64;
const DEPTH: usize = 64;
/// Bytes of the tile of A, and where B follows.
const A_BYTES: u32 = 64 * 128;
/// B's columns at most: two slabs.
const B_BYTES: u32 = 2 * 64 * 128;
const BARRIERS: u32 = A_BYTES + B_BYTES;
const SHARED: u32 = BARRIERS + 16;

/// What can be wrong with [`product`].
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    NoMbarrierFence,
    NoFullWait,
    WrongPhase,
    FewerBytes,
    MoreBytes,
    NoWgmmaFence,
    NoCommit,
    NoWgmmaWait,
    TouchesRegisters,
    NoProxyFence,
    Overwrites,
    UnswizzledDescriptor,
    PastTheEnd,
}

#[repr(C, align(64))]
struct Params {
    a: [u64; 16],
    b: [u64; 16],
    output: u64,
    transposed: bool,
    bug: Bug,
}

/// `A B` of 64 x 64 by 64 x N, one warpgroup: A and B by TMA, or A rewritten by the threads in between.
unsafe fn product<T: Half, const N: usize, const C: usize>(params: &Params)
where
    [f32; C]: Accumulator,
{
    let maps = ParamAddress(&raw const *params as u64);
    let (bug, tid) = (params.bug, thread::thread_idx_x());
    let shared: SharedPtr<u16> = dynamic_shared_mem();
    let b_tile = shared.offset(A_BYTES / 2);
    let full = Mbarrier(shared.offset(BARRIERS / 2).cast());
    unsafe {
        if tid == 0 {
            full.init(1);
        }
        if bug != Bug::NoMbarrierFence {
            fence::mbarrier_init();
        }
        thread::sync_threads();
        let bytes = A_BYTES + (N as u32).div_ceil(64) * 64 * 128;
        if tid == 0 {
            match bug {
                Bug::FewerBytes => full.arrive_expect(bytes - 16),
                Bug::MoreBytes => full.arrive_expect(bytes + 16),
                _ => full.arrive_expect(bytes),
            }
            maps.tensor_map(0).load_4d(shared, [0, 0, 0, 0], full);
            for slab in 0..N.div_ceil(64) {
                let (row, column) = if params.transposed { (0, 64 * slab) } else { (64 * slab, 0) };
                let to = b_tile.offset(slab as u32 * 64 * 64);
                maps.tensor_map(128).load_4d(to, [column as i32, row as i32, 0, 0], full);
            }
        }
        match bug {
            Bug::NoFullWait => {}
            Bug::WrongPhase => full.wait(1),
            _ => full.wait(0),
        }
        if bug == Bug::NoProxyFence {
            let doubled = shared.offset(64 * (tid / 2) + 32 * (tid % 2)).cast::<u32>();
            doubled.store(0, doubled.load(0));
            thread::sync_threads();
        }
        let mut acc = [0.0; C];
        if bug != Bug::NoWgmmaFence {
            wgmma::fence();
        }
        for step in 0..DEPTH as u32 / 16 {
            let start = if bug == Bug::PastTheEnd { shared.offset(200 * 1024) } else { shared };
            let mut a = Descriptor::new(start.address(), 0, 1024).advance(32 * step);
            if bug == Bug::UnswizzledDescriptor {
                a.0 &= !(1 << 62);
            }
            if params.transposed {
                let b = Descriptor::new(b_tile.address(), 64 * 128, 1024).advance(2048 * step);
                acc.multiply_registers::<T>(a_registers(shared, step), b);
            } else {
                let b = Descriptor::new(b_tile.address(), 0, 1024).advance(32 * step);
                acc.multiply_shared::<T>(a, b, step > 0);
            }
        }
        if bug != Bug::NoCommit {
            wgmma::commit_group();
        }
        if bug == Bug::TouchesRegisters {
            acc[3] = 1.0;
        }
        if bug == Bug::Overwrites {
            shared.offset(64 * (tid / 2)).store(0, 0);
        }
        if bug != Bug::NoWgmmaWait {
            acc.wait::<0>();
        }
        let output = GlobalPtr::<f32>::new(params.output);
        for (i, value) in acc.iter().enumerate() {
            let row = 16 * (tid / 32) + tid % 32 / 4 + 8 * (i as u32 / 2 % 2);
            let column = 8 * (i as u32 / 4) + 2 * (tid % 4) + i as u32 % 2;
            output.store((row * N as u32 + column) as i64, *value);
        }
    }
}

/// This thread's registers of A, 16 columns from `16 * step` on, read from the swizzled tile.
unsafe fn a_registers(tile: SharedPtr<u16>, step: u32) -> [u32; 4] {
    let tid = thread::thread_idx_x();
    core::array::from_fn(|i| {
        let row = 16 * (tid / 32) + tid % 32 / 4 + 8 * (i as u32 % 2);
        let column = 16 * step + 2 * (tid % 4) + 8 * (i as u32 / 2);
        let byte = (row * 128 + 2 * column) ^ (row % 8) << 4;
        unsafe { tile.offset(byte / 2).cast::<u32>().load(0) }
    })
}

fn integer(i: usize) -> f32 {
    ((i * 7919 + 13) % 31) as f32 - 15.0
}

/// Runs [`product`]; gives its report, its result and what it should be.
fn run<T: Half, const N: usize, const C: usize>(
    launch: &Launch,
    transposed: bool,
    bug: Bug,
) -> (Vec<Finding>, Vec<f32>, Vec<f32>)
where
    [f32; C]: Accumulator,
{
    let mut memory = Memory::new();
    let a: Vec<f32> = (0..ROWS * DEPTH).map(integer).collect();
    let b: Vec<f32> = (0..DEPTH * N).map(|i| integer(i + 5)).collect();
    let bits = |values: &[f32]| values.iter().map(|&x| T::from_f32(x)).collect::<Vec<u16>>();
    let map = |base, dims: [u64; 2]| {
        let strides = [dims[0] * 2, dims[0] * dims[1] * 2, dims[0] * dims[1] * 2];
        encode_tensor_map(base, &[dims[0], dims[1], 1, 1], &strides, &[64, 64, 1, 1], 2, Swizzle::Bytes128)
    };
    let (a_at, b_at) = (memory.upload("a", &bits(&a)), memory.upload("b", &bits(&b)));
    let output = memory.output::<f32>("output", ROWS * N);
    // B lies as (N, depth), or transposed as (depth, N).
    let b_dims = if transposed { [N as u64, DEPTH as u64] } else { [DEPTH as u64, N as u64] };
    let params =
        Params { a: map(a_at, [DEPTH as u64, ROWS as u64]), b: map(b_at, b_dims), output, transposed, bug };
    let report = launch.clone().shared(SHARED).run(&mut memory, || unsafe { product::<T, N, C>(&params) });
    let expected = (0..ROWS * N)
        .map(|at| {
            let (row, column) = (at / N, at % N);
            let b_of = |k| if transposed { b[k * N + column] } else { b[column * DEPTH + k] };
            (0..DEPTH).map(|k| a[row * DEPTH + k] * b_of(k)).sum()
        })
        .collect();
    (report.findings, memory.read(output, ROWS * N), expected)
}

fn right<T: Half, const N: usize, const C: usize>()
where
    [f32; C]: Accumulator,
{
    for transposed in [false, true] {
        for seed in 0..6 {
            let launch = Launch::new("product", 1, 128).seed(seed);
            let (findings, result, expected) = run::<T, N, C>(&launch, transposed, Bug::None);
            assert_eq!(findings, [], "N {N}, transposed {transposed}, seed {seed}");
            assert_eq!(result, expected, "N {N}, transposed {transposed}, seed {seed}");
        }
    }
}

#[test]
fn products_of_tiles_that_tma_loaded() {
    right::<Bf16, 64, 32>();
    right::<F16, 128, 64>();
    right::<Bf16, 80, 40>();
}

#[track_caller]
fn product_is_caught(kind: FindingKind, bug: Bug) {
    let transposed = false;
    caught(kind, Launch::new("product", 1, 128), |launch| run::<Bf16, 64, 32>(launch, transposed, bug).0);
}

#[test]
fn a_missing_fence_after_mbarrier_init() {
    product_is_caught(FindingKind::ProxyFence, Bug::NoMbarrierFence);
}

/// A copy that has not arrived, or that nothing orders before the product.
#[test]
fn a_missing_wait_for_a_copy_and_a_wait_for_the_wrong_phase() {
    for bug in [Bug::NoFullWait, Bug::WrongPhase] {
        for seed in 0..8 {
            let launch = Launch::new("product", 1, 128).seed(seed);
            let (findings, ..) = run::<Bf16, 64, 32>(&launch, false, bug);
            let kinds = [FindingKind::CopyInFlight, FindingKind::Race];
            assert!(findings.iter().any(|f| kinds.contains(&f.kind)), "seed {seed}: {findings:?}");
        }
    }
}

#[test]
fn a_wrong_count_of_bytes() {
    product_is_caught(FindingKind::Deadlock, Bug::MoreBytes);
    product_is_caught(FindingKind::Deadlock, Bug::FewerBytes);
}

#[test]
fn a_missing_wgmma_fence() {
    product_is_caught(FindingKind::RegistersInFlight, Bug::NoWgmmaFence);
}

#[test]
fn a_missing_commit() {
    product_is_caught(FindingKind::RegistersInFlight, Bug::NoCommit);
}

#[test]
fn a_missing_wait_for_a_product() {
    product_is_caught(FindingKind::RegistersInFlight, Bug::NoWgmmaWait);
}

#[test]
fn registers_written_while_a_product_owns_them() {
    product_is_caught(FindingKind::RegistersInFlight, Bug::TouchesRegisters);
}

#[test]
fn generic_writes_that_no_fence_shows_to_the_asynchronous_proxy() {
    product_is_caught(FindingKind::ProxyFence, Bug::NoProxyFence);
}

#[test]
fn operands_overwritten_while_a_product_reads_them() {
    product_is_caught(FindingKind::Race, Bug::Overwrites);
}

#[test]
fn descriptors_of_another_swizzle_or_past_the_end() {
    product_is_caught(FindingKind::Misuse, Bug::UnswizzledDescriptor);
    product_is_caught(FindingKind::OutOfBounds, Bug::PastTheEnd);
}
