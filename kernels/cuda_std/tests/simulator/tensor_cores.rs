//! `cp.async`, `ldmatrix` and `mma.sync`; clusters with multicast copies and remote arrivals.

use crate::findings::caught;
use cuda_std::element::{Bf16, Element};
use cuda_std::global::GlobalPtr;
use cuda_std::mbarrier::Mbarrier;
use cuda_std::shared::{SharedPtr, dynamic_shared_mem};
use cuda_std::sim::{Finding, FindingKind, Launch, Memory, Swizzle, encode_tensor_map};
use cuda_std::tma::ParamAddress;
use cuda_std::{cluster, cp_async, fence, ldmatrix, mma, thread, warp};

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    NoWait,
    NoBarrier,
    Overwrites,
}

/// A 16 x 16 by 16 x 16 product of one warp; B lies as `(k, column)`. Two warps copy, the first multiplies.
unsafe fn product(a: u64, b: u64, output: u64, bug: Bug) {
    let tile: SharedPtr<[u32; 4]> = dynamic_shared_mem();
    let (tid, lane) = (thread::thread_idx_x(), warp::lane_id());
    let from = GlobalPtr::<[u32; 4]>::new(if tid < 32 { a } else { b });
    unsafe {
        cp_async::copy_16(tile.offset(tid), from.offset(i64::from(lane)), true);
        cp_async::commit_group();
        if bug == Bug::Overwrites {
            tile.store(tid, [0; 4]);
        }
        if bug != Bug::NoWait {
            cp_async::wait_group::<0>();
        }
        if bug != Bug::NoBarrier {
            thread::sync_threads();
        }
        if tid >= 32 {
            return;
        }
        // 16 rows of two chunks: lanes 0 to 15 pass the left half's rows, the others the right half's.
        let row = tile.offset(lane % 16 * 2 + lane / 16);
        let a = ldmatrix::x4(row);
        let b = ldmatrix::x4_trans(row.offset(32));
        for half in 0..2 {
            let mut acc = [0.0; 4];
            mma::m16n8k16::<Bf16>(&mut acc, a, [b[2 * half], b[2 * half + 1]]);
            for (i, value) in acc.into_iter().enumerate() {
                let row = lane as usize / 4 + 8 * (i / 2);
                let column = 8 * half + 2 * (lane as usize % 4) + i % 2;
                GlobalPtr::<f32>::new(output).store((16 * row + column) as i64, value);
            }
        }
    }
}

fn run(launch: &Launch, bug: Bug) -> (Vec<Finding>, Vec<f32>, Vec<f32>) {
    let value = |i: usize| ((i * 37 + 11) % 23) as f32 - 11.0;
    let (a, b): (Vec<f32>, Vec<f32>) = (0..256).map(|i| (value(i), value(i + 3))).unzip();
    let bits = |values: &[f32]| values.iter().map(|&x| Bf16::from_f32(x)).collect::<Vec<u16>>();
    let mut memory = Memory::new();
    let (a_at, b_at) = (memory.upload("a", &bits(&a)), memory.upload("b", &bits(&b)));
    let output = memory.output::<f32>("output", 256);
    let report = launch.clone().shared(1024).run(&mut memory, || unsafe { product(a_at, b_at, output, bug) });
    let expected =
        (0..256).map(|at| (0..16).map(|k| a[at / 16 * 16 + k] * b[16 * k + at % 16]).sum()).collect();
    (report.findings, memory.read(output, 256), expected)
}

#[test]
fn a_product_of_one_warp() {
    for seed in 0..8 {
        let (findings, result, expected) = run(&Launch::new("product", 1, 64).seed(seed), Bug::None);
        assert_eq!((findings, result), (vec![], expected));
    }
}

#[test]
fn a_missing_wait_for_a_copy_and_a_write_into_one() {
    for bug in [Bug::NoWait, Bug::Overwrites] {
        caught(FindingKind::CopyInFlight, Launch::new("product", 1, 64), |launch| run(launch, bug).0);
    }
}

#[test]
fn copies_of_other_threads_need_a_barrier() {
    for seed in 0..8 {
        let (findings, ..) = run(&Launch::new("product", 1, 64).seed(seed), Bug::NoBarrier);
        let expected = [FindingKind::Race, FindingKind::CopyInFlight, FindingKind::Uninitialised];
        assert!(findings.iter().any(|finding| expected.contains(&finding.kind)), "{findings:?}");
    }
}

#[repr(C, align(64))]
struct Multicast {
    map: [u64; 16],
    output: u64,
}

/// Each of two blocks copies half of a tile to both; nobody overwrites it before both have read it.
unsafe fn multicast(params: &Multicast, rounds: u32, skip_remote_wait: bool) {
    let map = ParamAddress(&raw const *params as u64).tensor_map(0);
    let shared: SharedPtr<u16> = dynamic_shared_mem();
    let (full, empty) =
        (Mbarrier(shared.offset(4096).cast()), Mbarrier(shared.offset(4096).cast().offset(1)));
    let (tid, rank) = (thread::thread_idx_x(), cluster::block_rank());
    unsafe {
        if tid == 0 {
            full.init(1);
            empty.init(2);
        }
        fence::mbarrier_init();
        cluster::sync();
        for round in 0..rounds {
            if tid == 0 {
                if round > 0 && !skip_remote_wait {
                    empty.wait((round + 1) % 2);
                }
                full.arrive_expect(8192);
                let row = (64 * round + 32 * rank) as i32;
                map.load_4d_multicast(shared.offset(2048 * rank), [0, row, 0, 0], full, 0b11);
            }
            full.wait(round % 2);
            let value = shared.load(64 * tid + (tid % 8 * 8));
            GlobalPtr::<u16>::new(params.output).store(i64::from((rounds * rank + round) * 64 + tid), value);
            warp::sync_warp();
            thread::sync_threads();
            if tid < 2 {
                empty.arrive_at(tid);
            }
        }
        cluster::sync();
    }
}

fn run_multicast(launch: &Launch, skip_remote_wait: bool) -> (Vec<Finding>, Vec<u16>) {
    let mut memory = Memory::new();
    let values: Vec<u16> = (0..4 * 64 * 64).map(|i| (i / 64) as u16).collect();
    let base = memory.upload("input", &values);
    let output = memory.output::<u16>("output", 2 * 4 * 64);
    let map = encode_tensor_map(
        base,
        &[64, 256, 1, 1],
        &[128, 32768, 32768],
        &[64, 32, 1, 1],
        2,
        Swizzle::Bytes128,
    );
    let params = Multicast { map, output };
    let launch = launch.clone().cluster(2).shared(8192 + 16);
    let report = launch.run(&mut memory, || unsafe { multicast(&params, 4, skip_remote_wait) });
    (report.findings, memory.read(output, 512))
}

#[test]
fn two_blocks_of_a_cluster_share_their_copies() {
    let expected: Vec<u16> = (0..512).map(|i| (i % 256) as u16).collect();
    for seed in 0..8 {
        let launch = Launch::new("multicast", 2, 64).seed(seed);
        assert_eq!(run_multicast(&launch, false), (vec![], expected.clone()));
    }
}

#[test]
fn copies_over_what_another_block_still_reads() {
    for seed in 0..8 {
        let launch = Launch::new("multicast", 2, 64).seed(seed);
        let (findings, _) = run_multicast(&launch, true);
        assert!(!findings.is_empty(), "seed {seed}");
    }
}
