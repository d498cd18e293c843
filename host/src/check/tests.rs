use super::*;
use crate::element::Element;
use crate::problem::{Causal, Problem};
use crate::reference::{RowInput, RowOutput, all_rows, each_row};
use crate::{Extras, plain, reference};
use half::{bf16, f16};
use ndarray::{Array2, Array4};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// Made-up truth, and a plain run that is the truth rounded to `T`.
fn runs<T: Element>() -> (Rows, Rows) {
    let index: Vec<RowIndex> =
        (0..96).map(|n| RowIndex { batch: n / 48, head: n / 24 % 2, row: n % 24 }).collect();
    let o = Array2::from_shape_fn((96, 32), |(i, c)| ((i * 37 + c * 101 + i * c) as f64).sin());
    let lse = (0..96).map(|i| 3.0 + (i as f64).cos()).collect();
    let truth = Rows { index, o, lse: Some(lse) };
    let plain = Rows { o: truth.o.mapv(|x| f64::from(T::from_f32(x as f32).to_f32())), ..truth.clone() };
    (truth, plain)
}

fn failures_after<T: Element>(spoil: impl FnOnce(&mut Rows)) -> Vec<String> {
    let (truth, plain) = runs::<T>();
    let mut run = plain.clone();
    spoil(&mut run);
    check(T::DTYPE, &run, &truth, &plain).failures
}

#[test]
fn the_plain_run_and_the_truth_itself_are_right() {
    assert!(failures_after::<f16>(|_| ()).is_empty());
    let (truth, plain) = runs::<f32>();
    assert!(check(DType::F32, &truth, &truth, &plain).ok());
}

#[test]
fn a_fault_in_the_truth_makes_no_room_for_itself() {
    let (mut truth, plain) = runs::<f16>();
    let known = errors(&plain, &truth);
    truth.o[(4, 4)] += 1.0;
    assert!(check(DType::F16, &plain, &truth, &plain).ok());
    assert!(!judge(DType::F16, &plain, &truth, known).ok());
}

#[test]
fn swapped_rows_are_found() {
    let failures = failures_after::<bf16>(|run| {
        let (a, b) = (run.o.row(4).to_owned(), run.o.row(70).to_owned());
        run.o.row_mut(4).assign(&b);
        run.o.row_mut(70).assign(&a);
    });
    assert!(failures.iter().any(|f| f.starts_with("worst row (batch ")), "{failures:?}");
}

#[test]
fn one_element_off_is_found_with_its_place_and_values() {
    let (truth, plain) = runs::<f16>();
    let mut run = plain.clone();
    run.o[(50, 7)] += 0.01;
    let report = check(DType::F16, &run, &truth, &plain);
    assert_eq!(report.run.worst.unwrap().place.to_string(), "O at batch 1, row 2, head 0, column 7");
    let last = report.failures.last().unwrap();
    assert!(last.starts_with("worst element is off by 1."), "{last}");
    assert!(last.contains(&format!("where the reference has {}", truth.o[(50, 7)])), "{last}");
}

#[test]
fn a_scale_error_of_one_unit_in_the_last_place_is_found() {
    for (dtype, failures) in [
        (DType::F16, failures_after::<f16>(|run| run.o *= 1.0 + (0.5f64).powi(10))),
        (DType::Bf16, failures_after::<bf16>(|run| run.o *= 1.0 + (0.5f64).powi(7))),
    ] {
        assert!(failures.iter().any(|f| f.starts_with("relative error")), "{dtype:?} {failures:?}");
    }
    assert!(!failures_after::<f32>(|run| run.o *= 1.0 + 2e-6).is_empty());
}

#[test]
fn nan_and_infinity_must_stand_in_the_same_places() {
    let failures = failures_after::<f16>(|run| run.o[(3, 0)] = f64::NAN);
    assert!(failures[0].starts_with("O at batch 0, row 3, head 0, column 0: NaN, where"), "{failures:?}");

    let (mut truth, mut plain) = runs::<f16>();
    for rows in [&mut truth, &mut plain] {
        rows.o.row_mut(5).fill(0.0);
        rows.lse.as_mut().unwrap()[5] = f64::NEG_INFINITY;
        rows.o.row_mut(6).fill(f64::NAN);
        rows.lse.as_mut().unwrap()[6] = f64::NAN;
    }
    assert!(check(DType::F16, &plain, &truth, &plain).ok());
    let mut run = plain.clone();
    run.lse.as_mut().unwrap()[5] = -1e30;
    let failures = check(DType::F16, &run, &truth, &plain).failures;
    assert_eq!(failures, ["LSE at batch 0, row 5, head 0: -1e30, where the reference has -inf"]);
    let mut run = plain.clone();
    run.o[(6, 9)] = 0.5;
    let failures = check(DType::F16, &run, &truth, &plain).failures;
    assert_eq!(failures, ["O at batch 0, row 6, head 0, column 9: 0.5, where the reference has NaN"]);
    let mut run = plain.clone();
    run.o[(5, 1)] = 1e-2;
    assert!(!check(DType::F16, &run, &truth, &plain).ok());
}

#[test]
fn lse_is_held_to_a_relative_bound() {
    assert!(failures_after::<f16>(|run| run.lse.as_mut().unwrap()[8] += 1e-4).is_empty());
    let failures = failures_after::<f16>(|run| run.lse.as_mut().unwrap()[8] += 6e-4);
    assert!(failures[0].starts_with("LSE at batch 0, row 8, head 0"), "{failures:?}");
    assert!(failures[0].ends_with("allowed is 1e-4 * max(1, |lse|)"), "{failures:?}");
    assert!(failures_after::<f16>(|run| run.lse = None).is_empty());
}

#[test]
fn a_small_row_alone_is_not_judged_by_chance_but_still_judged() {
    let (mut truth, mut plain) = runs::<f16>();
    truth.o.row_mut(9).fill(1e-9);
    plain.o.row_mut(9).fill(1e-9);
    let mut run = plain.clone();
    run.o.row_mut(9).fill(3e-9);
    assert!(check(DType::F16, &run, &truth, &plain).ok());
    run.o.row_mut(9).fill(0.01);
    assert!(!check(DType::F16, &run, &truth, &plain).ok());
}

/// One row as the kernels compute it: blocks of keys, weights rounded to the type before they are normalised, the
/// output rescaled where the maximum grows.
fn online<T: Element>(problem: &Problem, row: &RowInput<'_, '_>, block: usize) -> RowOutput {
    let (mut max, mut sum, mut o) = (f32::NEG_INFINITY, 0.0f32, vec![0.0f32; problem.head_dim_v]);
    let keys: Vec<usize> = (0..row.keys()).filter(|&j| row.allows(j)).collect();
    for keys in keys.chunks(block) {
        let dot = |j: usize| row.q.iter().zip(row.k(j)).fold(0.0f32, |sum, (q, k)| q.mul_add(*k, sum));
        let scores: Vec<f32> = keys.iter().map(|&j| problem.scale * dot(j)).collect();
        let new_max = scores.iter().copied().fold(max, f32::max);
        let rescale = (max - new_max).exp();
        sum *= rescale;
        o.iter_mut().for_each(|o| *o *= rescale);
        for (&j, s) in keys.iter().zip(&scores) {
            let weight = (s - new_max).exp();
            sum += weight;
            let rounded = T::from_f32(weight).to_f32();
            o.iter_mut().zip(row.v(j)).for_each(|(o, v)| *o = rounded.mul_add(*v, *o));
        }
        max = new_max;
    }
    let round = |x: f32| f64::from(T::from_f32(x).to_f32());
    let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
    RowOutput { o: o.iter().map(|x| round(x * inverse)).collect(), lse: f64::from(max + sum.ln()) }
}

/// Random problems of all sizes, with inputs times `gain`: none may fail, however small and odd.
fn kernels_pass<T: Element>(gain: f32) {
    let mut rng = SmallRng::seed_from_u64(11);
    for case in 0..18 {
        let d = 8 * rng.random_range(1..9);
        let problem = Problem {
            seqlen_k: rng.random_range(1..300),
            causal: [Causal::No, Causal::BottomRight, Causal::TopLeft][case % 3],
            ..Problem::new(T::DTYPE, 1, rng.random_range(1..40), rng.random_range(1..3), d)
        };
        let mut tensor = |s, gain: f32| {
            Array4::from_shape_simple_fn((1, s, problem.heads, d), || {
                let x: f32 = StandardNormal.sample(&mut rng);
                T::from_f32(gain * x)
            })
        };
        let q = tensor(problem.seqlen_q, gain);
        let (k, v) = (tensor(problem.seqlen_k, 1.0), tensor(problem.seqlen_k, 1.0));
        let extras = Extras::default();
        let rows = all_rows(&problem, &extras);
        let (q, k, v) = (q.view(), k.view(), v.view());
        let truth = reference::forward(&problem, q, k, v, &extras, &rows).unwrap();
        let plain = plain::forward(&problem, q, k, v, &extras, &rows).unwrap();
        let kernel =
            each_row(&problem, q, k, v, &extras, &rows, |row| online::<T>(&problem, row, 64)).unwrap();
        let report = check(T::DTYPE, &kernel, &truth, &plain);
        assert!(report.ok(), "{problem:?}: {:?}", report.failures);
    }
}

#[test]
fn the_arithmetic_of_a_kernel_passes_in_every_type() {
    for gain in [0.1, 1.0, 8.0] {
        kernels_pass::<f16>(gain);
        kernels_pass::<bf16>(gain);
        kernels_pass::<f32>(gain);
    }
}
