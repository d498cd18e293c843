//! Threads, barriers, shuffles, votes, atomics, shared memory; schedules and speed.

use cuda_std::barrier::NamedBarrier;
use cuda_std::global::GlobalPtr;
use cuda_std::shared::{SharedPtr, dynamic_shared_mem};
use cuda_std::sim::{Launch, Memory};
use cuda_std::{atomic, kernel, thread, warp};

#[kernel]
unsafe fn reverse(input: u64, output: u64) {
    let (input, output) = (GlobalPtr::<f32>::new(input), GlobalPtr::<f32>::new(output));
    let shared: SharedPtr<f32> = dynamic_shared_mem();
    let (tid, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let first = (thread::block_idx_x() * threads) as i64;
    unsafe {
        shared.store(tid, input.load(first + tid as i64));
        thread::sync_threads();
        output.store(first + tid as i64, shared.load(threads - 1 - tid));
    }
}

#[test]
fn blocks_exchange_through_shared_memory() {
    for seed in 0..8 {
        let mut memory = Memory::new();
        let values: Vec<f32> = (0..3 * 160).map(|i| i as f32).collect();
        let input = memory.upload("input", &values);
        let output = memory.output::<f32>("output", values.len());
        let launch = Launch::new("reverse", 3, 160).shared(160 * 4).seed(seed);
        launch.run(&mut memory, || unsafe { reverse(input, output) }).expect_clean();
        let expected: Vec<f32> = values.chunks(160).flat_map(|block| block.iter().rev().copied()).collect();
        assert_eq!(memory.read::<f32>(output, values.len()), expected);
    }
}

#[kernel]
unsafe fn shuffles(output: u64, counter: u64) {
    let output = GlobalPtr::<u32>::new(output);
    let tid = thread::thread_idx_x();
    let mut sum = tid;
    for mask in [1, 2, 4, 8, 16] {
        sum += warp::shuffle_xor(sum, mask);
    }
    let third = warp::shuffle_idx(tid, 3);
    let any = warp::any(tid == 40);
    unsafe {
        let _ = atomic::add_u32(GlobalPtr::new(counter), 2);
        output.store(i64::from(tid), sum + 10_000 * third + 1_000_000 * u32::from(any));
    }
}

#[test]
fn warps_exchange_by_shuffles_votes_and_atomics() {
    let mut memory = Memory::new();
    let output = memory.output::<u32>("output", 64);
    let counter = memory.output::<u32>("counter", 1);
    memory.write(counter, &[5u32]);
    Launch::new("shuffles", 1, 64).run(&mut memory, || unsafe { shuffles(output, counter) }).expect_clean();
    let results = memory.read::<u32>(output, 64);
    assert!(results[..32].iter().all(|&x| x == (0..32).sum::<u32>() + 30_000), "{results:?}");
    assert!(results[32..].iter().all(|&x| x == (32..64).sum::<u32>() + 350_000 + 1_000_000), "{results:?}");
    assert_eq!(memory.read::<u32>(counter, 1), [5 + 128]);
}

const FULL: NamedBarrier = NamedBarrier { id: 1, threads: 64 };
const EMPTY: NamedBarrier = NamedBarrier { id: 2, threads: 64 };

/// Warp 0 hands 20 numbers to warp 1, one at a time, through 32 words of shared memory.
#[kernel]
unsafe fn hand_over(output: u64) {
    let shared: SharedPtr<u32> = dynamic_shared_mem();
    let (output, lane) = (GlobalPtr::<u32>::new(output), warp::lane_id());
    if thread::thread_idx_x() < 32 {
        for round in 0..20 {
            if round > 0 {
                EMPTY.sync();
            }
            unsafe { shared.store(lane, round * lane) };
            FULL.arrive();
        }
    } else {
        let mut sum = 0;
        for round in 0..20 {
            FULL.sync();
            sum += unsafe { shared.load(31 - lane) };
            if round < 19 {
                EMPTY.arrive();
            }
        }
        unsafe { output.store(i64::from(lane), sum) };
    }
}

#[test]
fn named_barriers_order_two_warps() {
    for seed in 0..16 {
        let mut memory = Memory::new();
        let output = memory.output::<u32>("output", 32);
        let launch = Launch::new("hand_over", 1, 64).shared(128).seed(seed);
        launch.run(&mut memory, || unsafe { hand_over(output) }).expect_clean();
        let expected: Vec<u32> = (0..32).map(|lane| (31 - lane) * 190).collect();
        assert_eq!(memory.read::<u32>(output, 32), expected);
    }
}

#[kernel]
unsafe fn order(output: u64, counter: u64) {
    let ticket = unsafe { atomic::add_u32(GlobalPtr::new(counter), 1) };
    unsafe { GlobalPtr::<u32>::new(output).store(i64::from(thread::thread_idx_x()), ticket) };
}

#[test]
fn a_seed_replays_its_schedule_and_others_differ() {
    let tickets = |seed| {
        let mut memory = Memory::new();
        let output = memory.output::<u32>("output", 128);
        let counter = memory.output::<u32>("counter", 1);
        memory.write(counter, &[0u32]);
        let launch = Launch::new("order", 1, 128).seed(seed);
        launch.run(&mut memory, || unsafe { order(output, counter) }).expect_clean();
        memory.read::<u32>(output, 128)
    };
    assert_eq!(tickets(7), tickets(7));
    assert_ne!(tickets(7), tickets(8));
}

#[kernel]
unsafe fn products(output: u64) {
    let shared: SharedPtr<f32> = dynamic_shared_mem();
    let tid = thread::thread_idx_x();
    let mut sum = 0.0;
    unsafe {
        shared.store(tid, tid as f32);
        for _ in 0..20 {
            thread::sync_threads();
            for i in 0..128 {
                sum += shared.load(i) * shared.load((i + tid) % 128);
            }
            sum += f32::from_bits(warp::shuffle_xor(sum.to_bits(), 1));
        }
        GlobalPtr::<f32>::new(output).store(tid as i64, sum);
    }
}

/// 20 million operations a second is what the project promises; a loaded machine and an unoptimised test harness
/// get some room, since this is a check against a fall by half, not a benchmark.
#[test]
fn operations_are_cheap() {
    let mut memory = Memory::new();
    let output = memory.output::<f32>("output", 128);
    let start = std::time::Instant::now();
    let report = Launch::new("products", 1, 128).shared(512).run(&mut memory, || unsafe { products(output) });
    let rate = report.operations as f64 / start.elapsed().as_secs_f64() / 1e6;
    report.expect_clean();
    println!("{rate:.1} million simulated thread operations a second");
    assert!(rate > 5.0, "{rate:.1} million simulated thread operations a second");
}
