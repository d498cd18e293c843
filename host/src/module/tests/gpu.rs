//! Loading with a real driver on a real GPU. The path of these tests holds `gpu::`, by which a pack's script runs them.

use super::*;
use crate::device::{Entered, Gpu};
use crate::launch::{Addresses, forward_in};
use crate::plan::Family;
use crate::problem::{DType, Problem};
use crate::reference::{Rows, all_rows};
use crate::{Device, Extras, Stream, Tensor, check as right, plain, reference};
use half::bf16;
use ndarray::{ArrayView3, ArrayView4};
use std::process::Command;
use std::time::{Duration, Instant};

/// What one kernel may take to load where the driver has cached nothing.
const COLD_LOAD: Duration = Duration::from_millis(20);
/// In the environment of the process that measures it.
const COLD: &str = "FLASH_ATTENTION_TEST_COLD_LOAD";

/// The GPU with its context current; `None`, said loudly, where there is none.
fn gpu() -> Option<(&'static Gpu, Entered)> {
    match Gpu::get(0) {
        Ok(gpu) => Some((gpu, gpu.enter().unwrap())),
        Err(why) => {
            eprintln!("SKIPPED, this test needs a GPU: {why}");
            None
        }
    }
}

/// The kernels for exactly this GPU that the build has machine code for.
fn own_kernels(context: &Context) -> Vec<&'static Entry> {
    let own: Vec<_> = flash_attention_kernels::config::entries()
        .filter(|entry| context.own_cubin(entry).is_some())
        .collect();
    if own.is_empty() {
        eprintln!("SKIPPED: this build has no machine code for a GPU of {:?}", context.gpu().capability);
    }
    own
}

/// In a process of its own: nothing is loaded there yet, and the driver's cache is off.
#[test]
fn a_kernel_loads_within_20_ms_without_the_drivers_cache() {
    if std::env::var_os(COLD).is_some() {
        let (gpu, _entered) = gpu().expect("the parent has seen it");
        let context = Context::new(gpu.driver(), EMBEDDED).unwrap();
        for entry in own_kernels(&context) {
            let start = Instant::now();
            context.kernel(entry).unwrap();
            let time = start.elapsed();
            println!("{:32} {:6.2} ms", entry.name, time.as_secs_f64() * 1e3);
            assert!(time < COLD_LOAD, "{} took {time:?}", entry.name);
        }
        return;
    }
    let Some((gpu, _entered)) = gpu() else { return };
    if own_kernels(gpu.state()).is_empty() {
        return;
    }
    let path = concat!(module_path!(), "::a_kernel_loads_within_20_ms_without_the_drivers_cache");
    let (_, path) = path.split_once("::").expect("the crate's name comes first");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", path])
        .envs([(COLD, "1"), ("CUDA_CACHE_DISABLE", "1")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && said.contains(" ms"), "{}", child.status);
}

/// Machine code that a driver cannot take: with nothing in the header behind its mark, and without the mark.
const DAMAGED: [Source; 2] = [
    Source { cubin: |name| damaged(name, 4..64), ..EMBEDDED },
    Source { cubin: |name| damaged(name, 0..4), ..EMBEDDED },
];

fn damaged(name: &str, bytes: std::ops::Range<usize>) -> Option<Vec<u8>> {
    let mut cubin = embedded::cubin(name)?;
    cubin[bytes].fill(0);
    Some(cubin)
}

#[test]
fn a_damaged_cubin_gives_way_to_the_ptx_and_right_results() {
    let Some((gpu, _entered)) = gpu() else { return };
    if own_kernels(gpu.state()).is_empty() {
        return;
    }
    let (shape, lse_shape) = ([2, 200, 4, 64], [2, 4, 200, 1]);
    let problem = Problem::new(DType::Bf16, shape[0], shape[1], shape[2], shape[3]);
    let device = Device::Cuda(0);
    let values = |seed: u32| -> Vec<bf16> {
        let value = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 16) as f32 / 16384.0 - 2.0;
        (0..shape.iter().product::<usize>() as u32).map(|i| bf16::from_f32(value(i))).collect()
    };
    let inputs = [1, 77_777, 123_456_789].map(values);
    let [q, k, v] = inputs.each_ref().map(|values| Tensor::from_slice(device, values, shape).unwrap());
    for source in DAMAGED {
        let stream = Stream::new(device).unwrap();
        let context = Context::new(gpu.driver(), source).unwrap();
        let mut o = Tensor::<bf16>::zeros(device, shape).unwrap();
        let mut lse = Tensor::<f32>::zeros(device, lse_shape).unwrap();
        let addresses = Addresses {
            q: q.view().address(),
            k: k.view().address(),
            v: v.view().address(),
            o: o.view_mut().address(),
            lse: lse.view_mut().address(),
        };
        let said = listen(|| {
            // SAFETY: the tensors live and are of the problem's shape; the context is the current one's.
            unsafe { forward_in(&context, &problem, &addresses, Some(Family::Sm90), stream.raw()) }.unwrap();
            stream.synchronize().unwrap();
        });
        println!("{}", said.join("\n"));
        assert!(said[0].starts_with("WARN message=the driver refuses the cubin"), "{said:?}");
        assert!(said[1].contains("from=\"PTX\""), "{said:?}");

        let extras = Extras::default();
        let rows = all_rows(&problem, &extras);
        let (o, lse) = (o.to_vec().unwrap(), lse.to_vec().unwrap());
        let view = |values| ArrayView4::from_shape(shape, values).unwrap();
        let [q, k, v] = inputs.each_ref().map(|values| view(values));
        let truth = reference::forward(&problem, q, k, v, &extras, &rows).unwrap();
        let plain = plain::forward(&problem, q, k, v, &extras, &rows).unwrap();
        let lse = ArrayView3::from_shape((2, 4, 200), &lse).unwrap();
        let run = Rows::gather(view(&o), Some(lse), &rows);
        let report = right::check(problem.dtype, &run, &truth, &plain);
        assert!(report.ok(), "{}", report.failures.join("\n"));
    }
}
