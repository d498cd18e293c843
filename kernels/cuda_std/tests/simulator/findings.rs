//! A tiny kernel for each kind of bug, seen to be caught.

use cuda_std::barrier::NamedBarrier;
use cuda_std::global::GlobalPtr;
use cuda_std::shared::{SharedPtr, dynamic_shared_mem};
use cuda_std::sim::{Access, Finding, FindingKind, Launch, Memory};
use cuda_std::{thread, warp};

/// Runs a kernel of one block under many schedules; every one must show the bug.
#[track_caller]
pub fn caught(kind: FindingKind, launch: Launch, mut run: impl FnMut(&Launch) -> Vec<Finding>) {
    for seed in 0..8 {
        let findings = run(&launch.clone().seed(seed));
        let found = findings.iter().find(|finding| finding.kind == kind);
        let found = found.unwrap_or_else(|| panic!("seed {seed}: no {kind:?} in {findings:?}"));
        let location = found.location.as_deref().unwrap_or("nowhere");
        let expects_line = !matches!(kind, FindingKind::Deadlock | FindingKind::BarrierDivergence);
        assert!(!expects_line || location.contains("tests/simulator/"), "{found}");
    }
}

fn values(memory: &mut Memory, count: usize) -> u64 {
    memory.upload("input", &vec![1.0f32; count])
}

#[test]
fn reads_past_the_end_of_a_tensor() {
    caught(FindingKind::OutOfBounds, Launch::new("k", 1, 32), |launch| {
        let mut memory = Memory::new();
        let input = GlobalPtr::<f32>::new(values(&mut memory, 31));
        launch.run(&mut memory, || unsafe { _ = input.load(thread::thread_idx_x().into()) }).findings
    });
}

#[test]
fn an_offset_cut_to_32_bits() {
    caught(FindingKind::OutOfBounds, Launch::new("k", 1, 32), |launch| {
        let mut memory = Memory::new();
        let rows = memory.region("input", 12 << 30, Access::Read);
        let last = (3i64 << 30) - 1;
        memory.write(rows + 4 * last as u64, &[1.0f32]);
        let wide = launch.run(&mut memory, || unsafe { _ = GlobalPtr::<f32>::new(rows).load(last) });
        wide.expect_clean();
        let cut = i64::from(last as i32);
        launch.run(&mut memory, || unsafe { _ = GlobalPtr::<f32>::new(rows).load(cut) }).findings
    });
}

#[test]
fn reads_outside_shared_memory() {
    caught(FindingKind::OutOfBounds, Launch::new("k", 1, 32).shared(64), |launch| {
        launch
            .run(&mut Memory::new(), || unsafe {
                let shared: SharedPtr<f32> = dynamic_shared_mem();
                shared.store(thread::thread_idx_x(), 1.0);
            })
            .findings
    });
}

#[test]
fn misaligned_vectors() {
    caught(FindingKind::Misaligned, Launch::new("k", 1, 32).shared(1024), |launch| {
        launch
            .run(&mut Memory::new(), || unsafe {
                let shared: SharedPtr<f32> = dynamic_shared_mem();
                shared.offset(thread::thread_idx_x()).cast::<[f32; 4]>().store(0, [1.0; 4]);
            })
            .findings
    });
    caught(FindingKind::Misaligned, Launch::new("k", 1, 32), |launch| {
        let mut memory = Memory::new();
        let input = GlobalPtr::<f32>::new(values(&mut memory, 64));
        launch.run(&mut memory, || unsafe { _ = input.offset(1).cast::<[f32; 2]>().load(0) }).findings
    });
}

#[test]
fn reads_of_shared_memory_never_written() {
    caught(FindingKind::Uninitialised, Launch::new("k", 1, 32).shared(256), |launch| {
        launch
            .run(&mut Memory::new(), || unsafe {
                let shared: SharedPtr<f32> = dynamic_shared_mem();
                shared.store(thread::thread_idx_x(), 1.0);
                thread::sync_threads();
                let _ = shared.load(thread::thread_idx_x() + 1);
            })
            .findings
    });
}

#[test]
fn reads_of_padding() {
    caught(FindingKind::Uninitialised, Launch::new("k", 1, 32), |launch| {
        let mut memory = Memory::new();
        let input = values(&mut memory, 32);
        memory.forbid_read(input + 4 * 30, 8);
        let input = GlobalPtr::<f32>::new(input);
        launch.run(&mut memory, || unsafe { _ = input.load(thread::thread_idx_x().into()) }).findings
    });
}

#[test]
fn a_missing_block_barrier() {
    caught(FindingKind::Race, Launch::new("k", 1, 64).shared(256), |launch| {
        launch
            .run(&mut Memory::new(), || unsafe {
                let shared: SharedPtr<f32> = dynamic_shared_mem();
                let tid = thread::thread_idx_x();
                shared.store(tid, 1.0);
                thread::sync_threads();
                let next = shared.load((tid + 32) % 64);
                shared.store(tid, next);
            })
            .findings
    });
}

#[test]
fn a_barrier_of_too_few_threads() {
    caught(FindingKind::Race, Launch::new("k", 1, 64).shared(256), |launch| {
        launch
            .run(&mut Memory::new(), || unsafe {
                let shared: SharedPtr<f32> = dynamic_shared_mem();
                let tid = thread::thread_idx_x();
                shared.store(tid, 1.0);
                NamedBarrier { id: 1 + tid / 32, threads: 32 }.sync();
                let _ = shared.load(63 - tid);
            })
            .findings
            .into_iter()
            // Where the other warp has not written yet, the same bug shows as a read of nothing.
            .map(|finding| match finding.kind {
                FindingKind::Uninitialised => Finding { kind: FindingKind::Race, ..finding },
                _ => finding,
            })
            .collect()
    });
}

#[test]
fn two_threads_or_two_blocks_write_the_same_result() {
    for launch in [Launch::new("k", 1, 64), Launch::new("k", 2, 1)] {
        caught(FindingKind::Race, launch, |launch| {
            let mut memory = Memory::new();
            let output = GlobalPtr::<f32>::new(memory.output::<f32>("output", 1));
            launch.run(&mut memory, || unsafe { output.store(0, 1.0) }).findings
        });
    }
}

#[test]
fn a_barrier_that_half_of_the_block_skips() {
    caught(FindingKind::BarrierDivergence, Launch::new("k", 1, 64), |launch| {
        launch
            .run(&mut Memory::new(), || {
                if thread::thread_idx_x() < 32 {
                    thread::sync_threads();
                }
            })
            .findings
    });
}

#[test]
fn lanes_at_different_instructions() {
    caught(FindingKind::BarrierDivergence, Launch::new("k", 1, 32), |launch| {
        launch
            .run(&mut Memory::new(), || {
                if thread::thread_idx_x() == 5 {
                    warp::sync_warp();
                } else {
                    let _ = warp::shuffle_xor(1, 1);
                }
            })
            .findings
    });
}

#[test]
fn two_warps_that_wait_for_each_other() {
    caught(FindingKind::BarrierDivergence, Launch::new("k", 1, 64), |launch| {
        let report = launch.run(&mut Memory::new(), || {
            let warp = thread::thread_idx_x() / 32;
            NamedBarrier { id: 1 + warp, threads: 64 }.sync();
            NamedBarrier { id: 2 - warp, threads: 64 }.sync();
        });
        let text = report.findings[0].to_string();
        assert!(text.contains("at barrier 1, where 32 of 64 are") && text.contains("at barrier 2"), "{text}");
        report.findings
    });
}

#[test]
fn writes_outside_the_valid_part_of_an_output() {
    caught(FindingKind::WriteOutsideOutput, Launch::new("k", 1, 32), |launch| {
        let mut memory = Memory::new();
        let output = memory.region("output", 128, Access::Write);
        memory.allow_write(output, 120);
        let output = GlobalPtr::<f32>::new(output);
        launch.run(&mut memory, || unsafe { output.store(thread::thread_idx_x().into(), 1.0) }).findings
    });
    caught(FindingKind::WriteOutsideOutput, Launch::new("k", 1, 1), |launch| {
        let mut memory = Memory::new();
        let input = GlobalPtr::<f32>::new(values(&mut memory, 1));
        launch.run(&mut memory, || unsafe { input.store(0, 1.0) }).findings
    });
}

#[test]
fn arithmetic_that_overflows() {
    caught(FindingKind::Panic, Launch::new("k", 1, 32), |launch| {
        launch
            .run(&mut Memory::new(), || {
                let many = i32::MAX - thread::thread_idx_x() as i32;
                assert!(many.checked_add(4).is_some(), "row number out of range");
            })
            .findings
    });
}
