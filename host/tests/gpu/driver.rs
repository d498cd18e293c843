//! Contexts, streams, graphs, foreign handles, and the fixtures of real tensors.

use super::{FAMILIES, gpu, gpu_alone};
use flash_attention::reference::{Rows, sample_rows};
use flash_attention::{
    Attention, Causal, DType, Device, Extras, Family, Problem, Stream, Strides, Tensor, check, cuda, plain,
    reference,
};
use flash_attention_driver as driver;
use half::{bf16, f16};
use ndarray::{Array3, Array4};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

const SHAPE: [usize; 4] = [2, 300, 8, 64];

fn random(seed: u64, len: usize) -> Vec<bf16> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..len).map(|_| bf16::from_f32(random.sample(StandardNormal))).collect()
}

fn tensor(device: Device, seed: u64) -> Tensor<bf16> {
    Tensor::from_slice(device, &random(seed, SHAPE.iter().product()), SHAPE).unwrap()
}

fn current_context() -> driver::Context {
    let functions = driver::driver().unwrap();
    let mut context = std::ptr::null_mut();
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { (functions.cuCtxGetCurrent)(&mut context) }, driver::SUCCESS);
    context
}

/// The first GPU's primary context, current on this thread until this is dropped.
pub struct Current(&'static driver::Functions);

impl Current {
    pub fn primary(functions: &'static driver::Functions) -> Self {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: places for the answers. The context is kept to the end of the process, as the library keeps it.
        unsafe {
            assert_eq!((functions.cuDeviceGet)(&mut device, 0), driver::SUCCESS);
            assert_eq!((functions.cuDevicePrimaryCtxRetain)(&mut context, device), driver::SUCCESS);
            assert_eq!((functions.cuCtxPushCurrent)(context), driver::SUCCESS);
        }
        Current(functions)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: this thread pushed one context.
        unsafe { (self.0.cuCtxPopCurrent)(&mut popped) };
    }
}

#[test]
fn the_callers_context_stays_current_and_a_foreign_one_serves() {
    let Some(gpu) = gpu() else { return };
    let stream = &gpu.stream;
    let (q, kv) = (tensor(stream.device(), 1), tensor(stream.device(), 2));
    let expected = Attention::forward(&q, &kv, &kv).run(stream).unwrap().o.to_vec().unwrap();
    assert!(current_context().is_null(), "nothing was current before");

    // A context of cust's own, beside the primary one.
    cuda::cust::init(cuda::cust::CudaFlags::empty()).unwrap();
    let gpu = cuda::cust::device::Device::get_device(0).unwrap();
    let foreign = cuda::cust::context::legacy::Context::create_and_push(
        cuda::cust::context::legacy::ContextFlags::SCHED_AUTO,
        gpu,
    )
    .unwrap();
    let mine = current_context();
    assert!(!mine.is_null());
    let again = Attention::forward(&q, &kv, &kv).run(stream).unwrap().o.to_vec().unwrap();
    assert_eq!(again, expected);
    assert_eq!(current_context(), mine);

    // The same call in the foreign context, its stream and its memory.
    {
        use cuda::cust::memory::DeviceBuffer;
        use cuda::cust::stream::{Stream as CustStream, StreamFlags};
        let bits = |values: Vec<bf16>| values.into_iter().map(bf16::to_bits).collect::<Vec<u16>>();
        let q = DeviceBuffer::from_slice(&bits(q.to_vec().unwrap())).unwrap();
        let kv = DeviceBuffer::from_slice(&bits(kv.to_vec().unwrap())).unwrap();
        let mut o = DeviceBuffer::<u16>::zeroed(SHAPE.iter().product()).unwrap();
        let foreign_stream = CustStream::new(StreamFlags::DEFAULT, None).unwrap();
        // SAFETY: the buffers live until the stream is synchronised below, and nobody else uses them.
        unsafe {
            let (q, kv) = (cuda::view::<bf16, _>(&q, SHAPE).unwrap(), cuda::view(&kv, SHAPE).unwrap());
            let o = cuda::view_mut(&mut o, SHAPE).unwrap();
            Attention::forward(q, kv, kv).run_on(cuda::raw_stream(&foreign_stream), o, None).unwrap();
        }
        foreign_stream.synchronize().unwrap();
        assert_eq!(o.as_host_vec().unwrap(), bits(expected));
        assert_eq!(current_context(), mine);
    }
    drop(foreign);
}

#[test]
fn threads_and_streams_work_side_by_side() {
    let Some(gpu) = gpu() else { return };
    let stream = &gpu.stream;
    let device = stream.device();
    let (q, kv) = (tensor(device, 3), tensor(device, 4));
    let fastest = Attention::forward(&q, &kv, &kv).causal(true);
    // The calls of `standard` share one workspace.
    for attention in [fastest, fastest.kernel(Family::Standard)] {
        let expected = attention.run(stream).unwrap().o.to_vec().unwrap();
        let expected_of_own = {
            let own = tensor(device, 5);
            Attention::forward(&own, &kv, &kv).run(stream).unwrap().o.to_vec().unwrap()
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let stream = Stream::new(device).unwrap();
                    let outputs: Vec<_> = (0..20).map(|_| attention.run(&stream).unwrap()).collect();
                    // Inputs and outputs that nobody else has are dropped while the work may still be in the stream,
                    // and their memory goes to others at once.
                    let own = tensor(device, 5);
                    let unread = Attention::forward(&own, &kv, &kv).run(&stream).unwrap();
                    let last = Attention::forward(&own, &kv, &kv).run(&stream).unwrap();
                    drop(own);
                    drop(unread);
                    let _others = [tensor(device, 6), tensor(device, 7)];
                    assert!(last.o.to_vec().unwrap() == expected_of_own, "an input went before its launch");
                    for output in outputs {
                        assert!(
                            output.o.to_vec().unwrap() == expected,
                            "another result beside other streams"
                        );
                    }
                });
            }
        });
    }
}

#[test]
fn every_gpu_of_the_machine_serves_in_one_process() {
    let Some(_gpu) = gpu() else { return };
    let devices: Vec<Device> =
        (0..).map(Device::Cuda).take_while(|device| device.describe().is_ok()).collect();
    if devices.len() < 2 {
        eprintln!("NOT RUN: one GPU is all that there is");
        return;
    }
    let streams: Vec<Stream> = devices.iter().map(|&device| Stream::new(device).unwrap()).collect();
    let inputs: Vec<_> = devices.iter().map(|&device| (tensor(device, 1), tensor(device, 2))).collect();
    // All of them at work before the first result is read.
    let outputs: Vec<_> = inputs
        .iter()
        .zip(&streams)
        .map(|((q, kv), stream)| Attention::forward(q, kv, kv).causal(true).run(stream).unwrap())
        .collect();
    let first = outputs[0].o.to_vec().unwrap();
    for (&device, output) in devices.iter().zip(&outputs) {
        assert_eq!(output.o.device(), device);
        if device.describe() == devices[0].describe() {
            assert!(output.o.to_vec().unwrap() == first, "{device}: another GPU of the kind, other bits");
        }
    }
    let (q, kv) = &inputs[0];
    let error = Attention::forward(q, kv, kv).run(&streams[1]).unwrap_err().to_string();
    let message = "q is on cuda:0, but must be where the stream is, on cuda:1; copy the tensor or use a stream of \
                   its device";
    assert_eq!(error, message);
    assert!(current_context().is_null(), "nothing was current before");
}

#[test]
fn a_captured_graph_gives_the_same_each_time_it_runs() {
    let Some(gpu) = gpu_alone() else { return };
    let stream = &gpu.stream;
    let functions = driver::driver().unwrap();
    // The library leaves the thread as it found it, so the calls of this test need a context of their own accord.
    let _current = Current::primary(functions);
    let (q, kv) = (tensor(stream.device(), 6), tensor(stream.device(), 7));
    for family in FAMILIES {
        let attention = Attention::forward(&q, &kv, &kv).causal(true).kernel(family);
        let options = flash_attention::PlanOptions { kernel: Some(family), ..Default::default() };
        if let Err(why) = flash_attention::Plan::new(&attention.problem().unwrap(), &gpu.properties, &options)
        {
            eprintln!("NOT RUN: {why}");
            continue;
        }
        let mut o = Tensor::zeros(stream.device(), SHAPE).unwrap();
        let (mut graph, mut instance) = (std::ptr::null_mut(), std::ptr::null_mut());
        if family == Family::Standard {
            // Its workspace has to be there before the capture.
            attention.run(stream).unwrap();
        }
        // The first call of any other kind in the process may be the captured one.
        // SAFETY: the stream lives, and the handles are used as the driver gave them.
        unsafe {
            let begun = (functions.cuStreamBeginCapture)(stream.raw(), 1);
            assert_eq!(begun, driver::SUCCESS);
            attention.run_into(stream, &mut o, None).unwrap();
            assert_eq!((functions.cuStreamEndCapture)(stream.raw(), &mut graph), driver::SUCCESS);
            assert_eq!((functions.cuGraphInstantiate)(&mut instance, graph, 0), driver::SUCCESS);
        }
        assert!(o.to_vec().unwrap().iter().all(|x| x.to_f32() == 0.0), "capturing runs nothing");
        for _ in 0..5 {
            // SAFETY: the instance lives, and so do the tensors.
            assert_eq!(unsafe { (functions.cuGraphLaunch)(instance, stream.raw()) }, driver::SUCCESS);
        }
        let captured = o.to_vec().unwrap();
        assert!(captured == attention.run(stream).unwrap().o.to_vec().unwrap(), "{}", family.name());
        // SAFETY: each is destroyed once, and nothing runs.
        unsafe {
            assert_eq!((functions.cuGraphExecDestroy)(instance), driver::SUCCESS);
            assert_eq!((functions.cuGraphDestroy)(graph), driver::SUCCESS);
        }
    }
}

#[test]
fn time_is_the_devices() {
    let Some(gpu) = gpu() else { return };
    let stream = &gpu.stream;
    let q = tensor(stream.device(), 8);
    let attention = Attention::forward(&q, &q, &q);
    attention.run(stream).unwrap();
    let (_, time) = stream.time(|| attention.run(stream)).unwrap();
    assert!(time > std::time::Duration::ZERO && time < std::time::Duration::from_secs(1), "{time:?}");
}

/// Two heads of a real model's first and last layer, with O and LSE computed elsewhere in f64.
#[test]
fn real_tensors_agree_with_results_computed_elsewhere() {
    let Some(gpu) = gpu() else { return };
    let stream = &gpu.stream;
    for bytes in [
        include_bytes!("../fixtures/minilm-layer0.safetensors").as_slice(),
        include_bytes!("../fixtures/minilm-layer5.safetensors").as_slice(),
    ] {
        let tensors = safetensors::SafeTensors::deserialize(bytes).unwrap();
        let data = |name| tensors.tensor(name).unwrap().data().to_vec();
        let halves = |name| -> Vec<f16> {
            data(name).chunks_exact(2).map(|x| f16::from_le_bytes([x[0], x[1]])).collect()
        };
        let floats = |name| -> Vec<f32> {
            data(name).chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
        };
        let [q, k, v] = ["q", "k", "v"].map(halves);
        let strides = Strides::bhsd(512, 2, 32);
        let shape = [1, 512, 2, 32];
        let [q_gpu, k_gpu, v_gpu] =
            [&q, &k, &v].map(|values| Tensor::from_slice(stream.device(), values, shape).unwrap());
        let array = |values: &[f16]| {
            let bhsd = Array4::from_shape_vec((1, 2, 512, 32), values.to_vec()).unwrap();
            bhsd.permuted_axes([0, 2, 1, 3])
        };
        for family in FAMILIES {
            for (causal, o, lse) in
                [(Causal::No, "out", "lse"), (Causal::BottomRight, "out_causal", "lse_causal")]
            {
                let view = |t| Tensor::view(t).with_strides(strides).unwrap();
                let attention = Attention::forward(view(&q_gpu), view(&k_gpu), view(&v_gpu))
                    .causal(causal)
                    .kernel(family);
                let problem = Problem { causal, ..Problem::new(DType::F16, 1, 512, 2, 32) };
                let options = flash_attention::PlanOptions { kernel: Some(family), ..Default::default() };
                if let Err(why) = flash_attention::Plan::new(&problem, &gpu.properties, &options) {
                    eprintln!("NOT RUN: {why}");
                    continue;
                }
                let output = attention.run(stream).unwrap();
                let extras = Extras::default();
                let rows = sample_rows(&problem, &extras, 256, 1);
                let ours = Array4::from_shape_vec((1, 512, 2, 32), output.o.to_vec().unwrap()).unwrap();
                let our_lse = Array3::from_shape_vec((1, 2, 512), output.lse.to_vec().unwrap()).unwrap();
                let run = Rows::gather(ours.view(), Some(our_lse.view()), &rows);
                let theirs = Array4::from_shape_vec((1, 2, 512, 32), floats(o)).unwrap();
                let their_lse = Array3::from_shape_vec((1, 2, 512), floats(lse)).unwrap();
                let elsewhere =
                    Rows::gather(theirs.view().permuted_axes([0, 2, 1, 3]), Some(their_lse.view()), &rows);
                let (q, k, v) = (array(&q), array(&k), array(&v));
                let truth =
                    reference::forward(&problem, q.view(), k.view(), v.view(), &extras, &rows).unwrap();
                let plain = plain::forward(&problem, q.view(), k.view(), v.view(), &extras, &rows).unwrap();
                for truth in [truth, elsewhere] {
                    let report = check::check(DType::F16, &run, &truth, &plain);
                    assert!(report.ok(), "{} {causal:?}: {:?}", family.name(), report.failures);
                }
            }
        }
    }
}
