//! Our kernels in cudarc's context, on cudarc's stream and memory, by raw handles.
//!
//! Needs only a driver at run time. Exit code 0 if the result is right, or if there is no GPU to try it on.

use std::error::Error;

use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut, sys};
use flash_attention::extras::Extras;
use flash_attention::launch::{self, Addresses};
use flash_attention::reference::{self, Rows};
use flash_attention::{Causal, DType, Problem, check, plain};
use half::bf16;
use ndarray::ArrayView4;

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: looks for libcuda and loads it.
    if !unsafe { sys::is_culib_present() } {
        eprintln!("SKIPPED: no NVIDIA driver found, so there is no GPU to launch on");
        return Ok(());
    }
    let mut problem = Problem::new(DType::Bf16, 2, 300, 4, 64);
    problem.causal = Causal::BottomRight;
    let shape = (problem.batch, problem.seqlen_q, problem.heads, problem.head_dim);
    let elements = shape.0 * shape.1 * shape.2 * shape.3;
    let [q, k, v] = [1.3, 0.7, 0.9].map(|step| -> Vec<bf16> {
        (0..elements).map(|i| bf16::from_f32((step * i as f32).sin())).collect()
    });

    // Everything that belongs to CUDA is cudarc's: context, stream, memory.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let (q_device, k_device, v_device) =
        (stream.clone_htod(&q)?, stream.clone_htod(&k)?, stream.clone_htod(&v)?);
    let mut o_device = stream.alloc_zeros::<bf16>(elements)?;
    context.bind_to_thread()?;
    {
        // The guards tell cudarc which stream uses the memory; they live until the launch is in it.
        let (q, _q) = q_device.device_ptr(&stream);
        let (k, _k) = k_device.device_ptr(&stream);
        let (v, _v) = v_device.device_ptr(&stream);
        let (o, _o) = o_device.device_ptr_mut(&stream);
        let addresses = Addresses { q, k, v, o, lse: 0 };
        // SAFETY: the memory is the current context's and as large as the problem says; cudarc keeps it until the
        // stream is done with it; the stream is the context's.
        unsafe { launch::forward(&problem, &addresses, None, stream.cu_stream().cast())? };
    }
    let o: Vec<bf16> = stream.clone_dtoh(&o_device)?;
    stream.synchronize()?;

    let [q, k, v, o] =
        [&q, &k, &v, &o].map(|x| ArrayView4::from_shape(shape, x).expect("as many as the shape"));
    let extras = Extras::default();
    let rows = reference::all_rows(&problem, &extras);
    let truth = reference::forward(&problem, q, k, v, &extras, &rows)?;
    let plain = plain::forward(&problem, q, k, v, &extras, &rows)?;
    let report = check::check(problem.dtype, &Rows::gather(o, None, &rows), &truth, &plain);
    println!(
        "{}: relative error {:.2e}, plain run {:.2e}",
        context.name()?,
        report.run.relative,
        report.plain.relative
    );
    match report.ok() {
        true => Ok(()),
        false => Err(report.failures.join("\n").into()),
    }
}
