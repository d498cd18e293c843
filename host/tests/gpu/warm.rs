//! What a warm call costs the caller: no allocation, nothing loaded, no wait.

use super::{FAMILIES, gpu};
use counting_allocator::allocations;
use flash_attention::{Attention, Causal, Family, Plan, PlanOptions, Stream, Tensor};
use flash_attention_driver as driver;
use half::bf16;
use std::cell::RefCell;
use std::sync::OnceLock;

#[path = "../../src/counting_allocator.rs"]
mod counting_allocator;

thread_local! {
    /// Calls of the driver by this thread, while somebody counts them.
    static CALLS: RefCell<Option<Vec<&'static str>>> = const { RefCell::new(None) };
}

/// Has the driver's calls counted from now on; comes before the first use of the GPU.
pub fn watch_driver() {
    static WATCHED: OnceLock<bool> = OnceLock::new();
    let note = |call| {
        CALLS.with_borrow_mut(|calls| {
            if let Some(calls) = calls {
                calls.push(call);
            }
        });
    };
    assert!(*WATCHED.get_or_init(|| driver::watch(note)), "somebody used the driver without gpu()");
}

/// What `work` asks of the driver, and how often it allocates.
fn count(work: impl FnOnce()) -> (Vec<&'static str>, usize) {
    CALLS.set(Some(Vec::with_capacity(256)));
    let before = allocations();
    work();
    let allocated = allocations() - before;
    (CALLS.take().expect("set above"), allocated)
}

/// What a launch asks of the driver, apart from the context.
fn expected(family: Family) -> &'static [&'static str] {
    const MAP: &str = "cuTensorMapEncodeTiled";
    const LAUNCH: &str = "cuLaunchKernelEx";
    match family {
        // The device waits for an event, not the caller.
        Family::Standard => {
            &["cuStreamIsCapturing", "cuStreamWaitEvent", LAUNCH, LAUNCH, LAUNCH, "cuEventRecord"]
        }
        Family::Tiled | Family::Sm80 => &[LAUNCH],
        Family::Sm90 => &["cuStreamIsCapturing", MAP, MAP, MAP, LAUNCH],
    }
}

#[test]
fn counting_counts() {
    let (calls, allocations) = count(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!((calls, allocations), (vec![], 1));
}

#[test]
fn a_warm_call_allocates_loads_and_waits_for_nothing() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.stream.device();
    // More tiles than a GPU runs at once, so that persistent kernels need their counter.
    let shape = [4, 1024, 32, 64];
    let [q, k, v] = [1.0, 2.0, 3.0].map(|x| {
        let values = vec![bf16::from_f32(x); shape.iter().product()];
        Tensor::from_slice(device, &values, shape).unwrap()
    });
    let mut o = Tensor::<bf16>::zeros(device, shape).unwrap();
    let mut lse = Tensor::<f32>::zeros(device, [4, 32, 1024, 1]).unwrap();
    for kernel in FAMILIES.map(Some).into_iter().chain([None]) {
        let mut attention = Attention::forward(&q, &k, &v).causal(Causal::BottomRight);
        if let Some(family) = kernel {
            attention = attention.kernel(family);
        }
        let options = PlanOptions { kernel, ..PlanOptions::default() };
        let family = match Plan::new(&attention.problem().unwrap(), &gpu.properties, &options) {
            Ok(plan) => plan.entry.family,
            Err(why) => {
                eprintln!("NOT RUN: {why}");
                continue;
            }
        };
        let name = kernel.map_or("the plan's choice", Family::name);
        let mut call = |stream: &Stream| attention.run_into(stream, &mut o, Some(lse.view_mut())).unwrap();
        let (cold, _) = count(|| call(&gpu.stream));
        assert!(cold.contains(&"cuLaunchKernelEx"), "{name}: {cold:?}");
        let (warm, allocations) = count(|| call(&gpu.stream));
        let around = |calls: &[&'static str]| [&["cuCtxPushCurrent"], calls, &["cuCtxPopCurrent"]].concat();
        assert_eq!(warm, around(expected(family)), "{name}");
        assert_eq!(allocations, 0, "{name}");
        // In another stream too.
        let other = Stream::new(device).unwrap();
        assert_eq!(count(|| call(&other)), (around(expected(family)), 0), "{name}");

        // By raw handles, in the context that is current.
        let _current = super::driver::Current::primary(driver::driver().unwrap());
        let mut raw = || {
            // SAFETY: the tensors outlive the work, because dropping them waits.
            unsafe { attention.run_on(other.raw(), o.view_mut(), Some(lse.view_mut())) }.unwrap();
        };
        raw();
        let calls = [&["cuCtxGetCurrent", "cuCtxGetId"], expected(family)].concat();
        assert_eq!(count(raw), (calls, 0), "{name}");
    }
}
