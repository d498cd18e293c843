use super::*;
use crate::counting_allocator::allocations;
use crate::problem::{DType, Strides};
use crate::reference::{Rows, all_rows};
use crate::{check, plain, reference};
use half::f16;
use ndarray::{Array3, Array4};

const SHAPE: Shape = [2, 20, 4, 16];

fn values(shape: Shape, seed: usize) -> Vec<f16> {
    (0..shape.iter().product()).map(|i| f16::from_f32(((i * 37 + seed) as f32).sin())).collect()
}

fn tensor(shape: Shape, seed: usize) -> Tensor<f16> {
    Tensor::from_slice(Device::Cpu, &values(shape, seed), shape).unwrap()
}

/// The call's error in words.
fn message(build: impl FnOnce(Attention<'_, f16>) -> Attention<'_, f16>) -> String {
    let (q, kv) = (tensor(SHAPE, 0), tensor(SHAPE, 1));
    let stream = Stream::new(Device::Cpu).unwrap();
    build(Attention::forward(&q, &kv, &kv)).run(&stream).unwrap_err().to_string()
}

#[test]
fn handles_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Attention<'_, f32>>();
}

#[test]
fn the_cpu_device_gives_what_the_reference_does() {
    let (q, k, v) = (tensor(SHAPE, 0), tensor([2, 30, 2, 16], 1), tensor([2, 30, 2, 24], 2));
    let stream = Stream::new(Device::Cpu).unwrap();
    let attention = Attention::forward(&q, &k, &v).causal(true).scale(0.3);
    let output = attention.run(&stream).unwrap();
    assert_eq!((output.o.shape(), output.lse.shape()), ([2, 20, 4, 24], [2, 4, 20, 1]));
    let problem = attention.problem().unwrap();
    assert_eq!((problem.dtype, problem.causal, problem.scale), (DType::F16, Causal::BottomRight, 0.3));

    let array = |t: &Tensor<f16>| Array4::from_shape_vec(t.shape(), t.to_vec().unwrap()).unwrap();
    let (extras, (q, k, v)) = (Extras::default(), (array(&q), array(&k), array(&v)));
    let rows = all_rows(&problem, &extras);
    let truth = reference::forward(&problem, q.view(), k.view(), v.view(), &extras, &rows).unwrap();
    let plain = plain::forward(&problem, q.view(), k.view(), v.view(), &extras, &rows).unwrap();
    let lse = Array3::from_shape_vec((2, 4, 20), output.lse.to_vec().unwrap()).unwrap();
    let run = Rows::gather(array(&output.o).view(), Some(lse.view()), &rows);
    assert_eq!(check::check(DType::F16, &run, &truth, &plain).failures, [""; 0]);
}

#[test]
fn outputs_go_where_the_caller_wants_them() {
    let (q, kv) = (tensor(SHAPE, 0), tensor(SHAPE, 1));
    let stream = Stream::new(Device::Cpu).unwrap();
    let attention = Attention::forward(&q, &kv, &kv);
    let expected = attention.run(&stream).unwrap();
    // (batch, head, sequence, dim) with a gap of 8 behind each row, 3 elements into the memory.
    let [batch, seqlen, heads, dim] = SHAPE;
    let strides = Strides::bhsd(seqlen, heads, dim + 8);
    let mut memory = vec![f16::NAN; 3 + batch * seqlen * heads * (dim + 8)];
    let whole = TensorViewMut::from_slice(&mut memory, [1, 1, 1, 3]).unwrap();
    let window = whole.window(3, SHAPE, strides).unwrap();
    attention.run_into(&stream, window, None).unwrap();
    let expected = expected.o.to_vec().unwrap();
    for (at, &value) in memory.iter().enumerate() {
        let inside = at.checked_sub(3).map(|at| (at / (dim + 8), at % (dim + 8)));
        match inside.filter(|&(_, column)| column < dim) {
            None => assert!(value.is_nan(), "element {at}"),
            Some((row, column)) => {
                let (b, h, i) = (row / seqlen / heads, row / seqlen % heads, row % seqlen);
                assert_eq!(value, expected[((b * seqlen + i) * heads + h) * dim + column]);
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let stream = Stream::new(Device::Cpu).unwrap();
    let run = |k: Shape, v: Shape| {
        let (q, k, v) = (tensor(SHAPE, 0), tensor(k, 1), tensor(v, 2));
        Attention::forward(&q, &k, &v).run(&stream).unwrap_err().to_string()
    };
    insta::assert_snapshot!(run([2, 30, 4, 8], [2, 30, 4, 16]), @"k is [2, 30, 4, 8], but it must be [2, 30, 4, 16] beside the shapes of Q and V; check the shapes");
    insta::assert_snapshot!(run([3, 30, 4, 16], [3, 30, 4, 16]), @"k is [3, 30, 4, 16], but it must be [2, 30, 4, 16] beside the shapes of Q and V; check the shapes");
    insta::assert_snapshot!(run([2, 30, 3, 16], [2, 30, 3, 16]), @"heads is 4, but must be a multiple of kv_heads = 3; repeat or drop key heads until it is");
    insta::assert_snapshot!(run([2, 30, 4, 16], [2, 30, 4, 12]), @"head_dim_v is 12, but must be a multiple of 8 for f16; pad the head with zeros or use f32");

    let (q, kv) = (tensor(SHAPE, 0), tensor(SHAPE, 1));
    let attention = Attention::forward(&q, &kv, &kv);
    let (mut o, mut lse) = (tensor([2, 20, 4, 8], 3), Tensor::zeros(Device::Cpu, [2, 20, 4, 1]).unwrap());
    let error = attention.run_into(&stream, &mut o, None).unwrap_err();
    insta::assert_snapshot!(error, @"o is [2, 20, 4, 8], but it must be [2, 20, 4, 16] beside the shapes of Q and V; check the shapes");
    let mut o = tensor(SHAPE, 3);
    let error = attention.run_into(&stream, &mut o, Some(lse.view_mut())).unwrap_err();
    insta::assert_snapshot!(error, @"lse is [2, 20, 4, 1], but it must be [2, 4, 20, 1] beside the shapes of Q; check the shapes");
    let mut memory = vec![0.0f32; 1000];
    let strides = Strides { batch: 100, seq: 21, head: 1 };
    let lse = TensorViewMut::from_slice(&mut memory, [2, 4, 20, 1]).unwrap().with_strides(strides).unwrap();
    let error = attention.run_into(&stream, &mut o, Some(lse)).unwrap_err();
    insta::assert_snapshot!(error, @"lse is a tensor with Strides { batch: 100, seq: 21, head: 1 }, but must be contiguous (batch, heads, seqlen_q); give it memory of its own");
    assert_eq!(o.to_vec().unwrap(), values(SHAPE, 3));
}

#[test]
fn numbers_that_cannot_be_right_are_named() {
    insta::assert_snapshot!(message(|a| a.scale(f32::NAN)), @"scale is NaN, but must be finite and greater than 0; leave it out for 1/sqrt(head_dim)");
    insta::assert_snapshot!(message(|a| a.softcap(0.0)), @"softcap is 0, but must be finite and greater than 0; leave it out for no cap");
    insta::assert_snapshot!(message(|a| a.kernel(Family::Sm90)), @"kernel is sm90, but the CPU device has no kernels to choose from; leave it out or use a GPU");
}

#[test]
fn memory_of_another_device_is_refused() {
    let kv = tensor(SHAPE, 1);
    // SAFETY: the call is refused before anything is read.
    let q = unsafe { TensorView::from_raw(0x1000, SHAPE) };
    let error = Attention::forward(q, &kv, &kv).run(&Stream::new(Device::Cpu).unwrap()).unwrap_err();
    insta::assert_snapshot!(error, @"q is device memory, but the stream is the CPU's; use a stream of the GPU");
}

#[test]
fn extras_on_a_gpu_name_the_way_out() {
    let (q, kv) = (tensor(SHAPE, 0), tensor(SHAPE, 1));
    let mut o = tensor(SHAPE, 2);
    let slopes = [0.5; 4];
    let extras = Extras { alibi_slopes: Some(&slopes), ..Extras::default() };
    let attention = Attention::forward(&q, &kv, &kv).extras(extras);
    // SAFETY: the call is refused before anything is launched.
    let error = unsafe { attention.run_on(std::ptr::null_mut(), o.view_mut(), None) }.unwrap_err();
    insta::assert_snapshot!(error, @"no GPU kernel takes ALiBi slopes yet; leave it out, or use the CPU device");
    assert!(attention.run_into(&Stream::new(Device::Cpu).unwrap(), &mut o, None).is_ok());
}

#[test]
fn checking_a_call_allocates_nothing() {
    let (q, kv) = (tensor(SHAPE, 0), tensor(SHAPE, 1));
    let mut o = tensor(SHAPE, 2);
    let attention = Attention::forward(&q, &kv, &kv).causal(true);
    let before = allocations();
    attention.checked(&o.view_mut(), None).unwrap();
    attention.only_plain().unwrap();
    assert_eq!(allocations(), before);
}
