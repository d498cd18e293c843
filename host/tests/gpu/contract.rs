//! The promises of docs/semantics.md beside plain shapes, for every family that can run the case.

use super::case::{Case, Inputs};
use super::{FAMILIES, gpu, typed};
use flash_attention::{Attention, Causal, DType, Element, Strides, Tensor};
use half::bf16;

/// The case in every family, where the family can run it.
fn in_families(
    make: impl Fn(Option<flash_attention::Family>) -> Case,
    test: impl Fn(&Case, &flash_attention::Stream),
) {
    let Some(gpu) = gpu() else { return };
    let mut ran = 0;
    for family in FAMILIES.map(Some).into_iter().chain([None]) {
        let case = make(family);
        match case.refusal(&gpu.properties) {
            Some(why) => eprintln!("NOT RUN: {why}"),
            None => {
                test(&case, &gpu.stream);
                ran += 1;
            }
        }
    }
    // One at least beside the plan's own choice.
    assert!(ran > 1, "no family ran this");
}

fn bf16_case(family: Option<flash_attention::Family>) -> Case {
    Case::new(family, DType::Bf16, (200, 260), (64, 64)).causal(Causal::BottomRight)
}

#[test]
fn broadcast_keys_and_values() {
    let make = |family| {
        let mut case = bf16_case(family);
        (case.problem.k.batch, case.problem.v.batch, case.problem.q.head) = (0, 0, 0);
        case
    };
    in_families(make, |case, stream| case.verify::<bf16>(stream, &case.inputs()));
}

#[test]
fn addresses_and_strides_that_suit_no_wide_copy() {
    fn verify<T: Element>(case: &Case, stream: &flash_attention::Stream) {
        case.verify::<T>(stream, &case.inputs());
    }
    for dtype in super::DTYPES {
        let make = |family| {
            let mut case = Case::new(family, dtype, (70, 90), (40, 40));
            case.offset = 3;
            // Odd numbers that step over whole rows, as an output's have to.
            let odd = |s: usize, h: usize| {
                let (head, seq) = (43, h * 43 + 1);
                Strides { batch: s * seq + 5, seq, head }
            };
            let p = &mut case.problem;
            (p.q, p.o, p.k, p.v) = (odd(70, 4), odd(70, 4), odd(90, 2), odd(90, 2));
            case
        };
        in_families(make, |case, stream| typed!(case.problem.dtype, verify(case, stream)));
    }
}

#[test]
fn empty_batches_and_sequences() {
    let Some(gpu) = gpu() else { return };
    let stream = &gpu.stream;
    for (batch, seqlen_q) in [(0, 64), (2, 0)] {
        let q = Tensor::<f32>::zeros(stream.device(), [batch, seqlen_q, 2, 64]).unwrap();
        let k = Tensor::<f32>::zeros(stream.device(), [batch, 16, 2, 64]).unwrap();
        let output = Attention::forward(&q, &k, &k).run(stream).unwrap();
        assert!(output.o.to_vec().unwrap().is_empty() && output.lse.to_vec().unwrap().is_empty());
    }
}

#[test]
fn the_same_bits_in_every_run_and_at_every_place_of_the_batch() {
    let make = |family| {
        let mut case = bf16_case(family);
        case.problem.batch = 5;
        case
    };
    in_families(make, |case, stream| {
        let mut inputs = case.inputs::<bf16>();
        // Sequence 3 becomes a copy of sequence 0.
        let p = &case.problem;
        for (memory, strides) in [(&mut inputs.q, p.q), (&mut inputs.k, p.k), (&mut inputs.v, p.v)] {
            memory.copy_within(..strides.batch, 3 * strides.batch);
        }
        let bits = |o: &[bf16]| o.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let first = case.run(stream, &inputs);
        for _ in 0..3 {
            let again = case.run(stream, &inputs);
            assert!(
                bits(&first.o) == bits(&again.o) && first.lse == again.lse,
                "{case}: another run, other bits"
            );
        }
        let place = |n: usize| bits(&first.o[n * p.o.batch..][..p.o.batch]);
        assert!(place(0) == place(3), "{case}: another place in the batch, other bits");
        // Alone, with one group of heads.
        let mut alone = case.clone();
        (alone.problem.batch, alone.problem.heads, alone.problem.kv_heads) = (1, 2, 1);
        let single = alone.run(stream, &inputs);
        for row in 0..p.seqlen_q {
            for head in 0..2 {
                let at = row * p.o.seq + head * p.o.head;
                let (here, there) = (&single.o[at..][..p.head_dim_v], &first.o[at..][..p.head_dim_v]);
                assert!(bits(here) == bits(there), "{case}: alone, other bits in row {row}");
            }
        }
    });
}

#[test]
fn a_nan_key_spoils_the_rows_that_see_it_and_no_other() {
    for nan_key in [0, 100, 259] {
        in_families(bf16_case, |case, stream| {
            let mut inputs = case.inputs::<bf16>();
            let p = &case.problem;
            inputs.k[p.k.batch + nan_key * p.k.seq + 5] = bf16::NAN;
            // The reference has NaN in the same places.
            case.verify(stream, &inputs);
        });
    }
}

#[test]
fn large_scores_of_f32_stay_finite() {
    let make = |family| Case::new(family, DType::F32, (64, 64), (64, 64));
    in_families(make, |case, stream| {
        let mut inputs = case.inputs::<f32>();
        for memory in [&mut inputs.q, &mut inputs.k] {
            memory.iter_mut().for_each(|x| *x *= 1e14);
        }
        let outputs = case.run(stream, &inputs);
        for at in case.elements(3) {
            assert!(outputs.o[at].is_finite(), "{case}: {} at {at}", outputs.o[at]);
        }
        assert!(outputs.lse.iter().all(|lse| lse.is_finite()), "{case}");
    });
}

/// Exact scores close together, so far from 0 that scale and maximum may no longer be folded into one fma.
#[test]
fn large_scores_of_half_types_are_right() {
    fn verify<T: Element>(case: &Case, stream: &flash_attention::Stream, of_k: f32) {
        let mut inputs = case.inputs::<T>();
        for (n, memory, first) in [(0, &mut inputs.q, 448.0), (1, &mut inputs.k, of_k)] {
            for (i, at) in case.elements(n).enumerate() {
                let small = (2.0 * memory[at].to_f32()).round();
                memory[at] = T::from_f32(if i % case.problem.head_dim == 0 { first } else { small });
            }
        }
        case.verify(stream, &inputs);
    }
    for dtype in [DType::F16, DType::Bf16] {
        for of_k in [1792.0, -1792.0] {
            let make = |family| Case::new(family, dtype, (200, 260), (64, 64)).causal(Causal::BottomRight);
            in_families(make, |case, stream| typed!(case.problem.dtype, verify(case, stream, of_k)));
        }
    }
}

#[test]
fn without_lse_the_output_is_the_same() {
    let Some(gpu) = gpu() else { return };
    let stream = &gpu.stream;
    for family in FAMILIES {
        let case = Case::new(Some(family), DType::Bf16, (100, 100), (64, 64));
        if let Some(why) = case.refusal(&gpu.properties) {
            eprintln!("NOT RUN: {why}");
            continue;
        }
        let Inputs { q, .. } = case.inputs::<bf16>();
        let dense: Vec<bf16> = case.elements(0).map(|at| q[at]).collect();
        let q = Tensor::from_slice(stream.device(), &dense, [2, 100, 4, 64]).unwrap();
        let attention = Attention::forward(&q, &q, &q).kernel(family);
        let with = attention.run(stream).unwrap();
        let mut o = Tensor::zeros(stream.device(), [2, 100, 4, 64]).unwrap();
        attention.run_into(stream, &mut o, None).unwrap();
        assert_eq!(with.o.to_vec().unwrap(), o.to_vec().unwrap(), "{case}");
    }
}
