use super::*;
use crate::problem::{Causal, DType, Window};
use crate::{Bias, Error, check, plain};
use half::f16;
use ndarray::{Array1, Array4, s};

/// Values in (-1, 1) that differ everywhere.
fn tensor(dim: (usize, usize, usize, usize), seed: f32) -> Array4<f32> {
    Array4::from_shape_fn(dim, |(b, s, h, d)| {
        let x = seed + b as f32 * 71.3 + s as f32 * 12.9898 + h as f32 * 37.7 + d as f32 * 78.233;
        (x.sin() * 43758.547).fract()
    })
}

struct Case {
    problem: Problem,
    q: Array4<f32>,
    k: Array4<f32>,
    v: Array4<f32>,
}

impl Case {
    fn new(problem: Problem) -> Self {
        let p = &problem;
        Case {
            q: tensor((p.batch, p.seqlen_q, p.heads, p.head_dim), 0.1),
            k: tensor((p.batch, p.seqlen_k, p.kv_heads, p.head_dim), 0.2),
            v: tensor((p.batch, p.seqlen_k, p.kv_heads, p.head_dim_v), 0.3),
            problem,
        }
    }

    fn small() -> Self {
        let dense = Problem::new(DType::F32, 2, 6, 4, 8);
        Case::new(Problem { seqlen_k: 9, kv_heads: 2, head_dim_v: 5, ..dense })
    }

    fn run(&self, extras: &Extras<'_>) -> Rows {
        let rows = all_rows(&self.problem, extras);
        forward(&self.problem, self.q.view(), self.k.view(), self.v.view(), extras, &rows).unwrap()
    }

    fn plain(&self, extras: &Extras<'_>) -> Rows {
        let rows = all_rows(&self.problem, extras);
        plain::forward(&self.problem, self.q.view(), self.k.view(), self.v.view(), extras, &rows).unwrap()
    }

    /// The scaled product, by its definition.
    fn product(&self, at: &RowIndex, j: usize) -> f64 {
        let q = self.q.slice(s![at.batch, at.row, at.head, ..]).mapv(f64::from);
        let k = self.k.slice(s![at.batch, j, self.problem.kv_head(at.head), ..]).mapv(f64::from);
        f64::from(self.problem.scale) * (&q * &k).sum()
    }

    fn value(&self, at: &RowIndex, j: usize) -> Array1<f64> {
        self.v.slice(s![at.batch, j, self.problem.kv_head(at.head), ..]).mapv(f64::from)
    }

    /// Every row by the two formulas of the contract, unguarded, over the keys and scores that `score` gives.
    fn assert_is(&self, rows: &Rows, score: impl Fn(&RowIndex, usize) -> Option<f64>) {
        for (n, at) in rows.index.iter().enumerate() {
            let weights: Vec<(usize, f64)> =
                (0..self.problem.seqlen_k).filter_map(|j| score(at, j).map(|s| (j, s.exp()))).collect();
            let sum: f64 = weights.iter().map(|(_, w)| w).sum();
            let mut o = Array1::zeros(self.problem.head_dim_v);
            for &(j, w) in &weights {
                o += &(self.value(at, j) * (w / sum));
            }
            assert!(same(lse(rows)[n], sum.ln()), "{at}: {} is not {}", lse(rows)[n], sum.ln());
            if weights.is_empty() {
                assert!(rows.o.row(n).iter().all(|&x| x == 0.0), "{at}");
            } else {
                assert!(close(rows, n, &o), "{at}: {} is not {o}", rows.o.row(n));
            }
        }
    }
}

fn lse(rows: &Rows) -> &[f64] {
    rows.lse.as_ref().unwrap()
}

fn same(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() < 1e-12 * b.abs().max(1.0)
}

fn close(rows: &Rows, n: usize, o: &Array1<f64>) -> bool {
    rows.o.row(n).iter().zip(o).all(|(&a, &b)| same(a, b))
}

#[test]
fn plain_scores_follow_the_two_formulas() {
    let case = Case::small();
    case.assert_is(&case.run(&Extras::default()), |at, j| Some(case.product(at, j)));
}

#[test]
fn one_key_gives_its_value_and_its_score() {
    let case = Case::new(Problem { seqlen_k: 1, ..Problem::new(DType::F32, 1, 3, 2, 8) });
    let rows = case.run(&Extras::default());
    for (n, at) in rows.index.iter().enumerate() {
        assert!(close(&rows, n, &case.value(at, 0)));
        assert!(same(lse(&rows)[n], case.product(at, 0)));
    }
}

#[test]
fn equal_logits_give_the_mean_and_ln_n() {
    let mut case = Case::small();
    case.q.fill(0.0);
    let rows = case.run(&Extras::default());
    for (n, at) in rows.index.iter().enumerate() {
        let sum = (0..9).fold(Array1::zeros(5), |sum, j| sum + case.value(at, j));
        assert!(close(&rows, n, &(sum / 9.0)));
        assert!(same(lse(&rows)[n], 9f64.ln()));
    }
}

#[test]
fn one_dominant_key_is_picked_exactly() {
    let mut case = Case::small();
    // Orthogonal keys times 1e4: every other weight is below exp(-1000).
    case.k = Array4::from_shape_fn((2, 9, 2, 8), |(_, j, _, d)| if j % 8 == d { 1e4 } else { 0.0 });
    case.q = Array4::from_shape_fn((2, 6, 4, 8), |(_, i, _, d)| if (i + 2) % 8 == d { 1.0 } else { 0.0 });
    let rows = case.run(&Extras::default());
    for (n, at) in rows.index.iter().enumerate() {
        assert!(close(&rows, n, &case.value(at, at.row + 2)));
        assert!(same(lse(&rows)[n], 1e4 * f64::from(case.problem.scale)));
    }
}

#[test]
fn huge_scores_stay_finite() {
    let mut case = Case::small();
    case.q.mapv_inplace(|x| x * 1e15);
    case.k.mapv_inplace(|x| x * 1e15);
    let rows = case.run(&Extras::default());
    assert!(rows.o.iter().chain(lse(&rows)).all(|x| x.is_finite()));
}

#[test]
fn causal_masks_in_both_alignments_and_windows_match_the_inequalities() {
    for (seqlen_q, seqlen_k) in [(6, 9), (9, 6), (5, 5), (4, 0), (0, 4)] {
        for causal in [Causal::No, Causal::BottomRight, Causal::TopLeft] {
            for (left, right) in [
                (None, None),
                (Some(2), None),
                (None, Some(1)),
                (Some(0), Some(0)),
                (Some(usize::MAX), Some(99)),
            ] {
                let problem = Problem {
                    seqlen_q,
                    seqlen_k,
                    causal,
                    window: Window { left, right },
                    ..Problem::new(DType::F32, 1, 0, 2, 8)
                };
                let case = Case::new(problem);
                let delta = if causal == Causal::TopLeft { 0 } else { seqlen_k as i128 - seqlen_q as i128 };
                case.assert_is(&case.run(&Extras::default()), |at, j| {
                    let (i, j_at) = (at.row as i128, j as i128);
                    let allowed = (causal == Causal::No || j_at <= i + delta)
                        && left.is_none_or(|left| j_at >= i + delta - left as i128)
                        && right.is_none_or(|right| j_at <= i + delta + right as i128);
                    allowed.then(|| case.product(at, j))
                });
            }
        }
    }
}

#[test]
fn rows_without_keys_are_zero_with_minus_infinity_or_the_sink() {
    let mut case = Case::small();
    (case.problem.seqlen_q, case.problem.seqlen_k, case.problem.causal) = (9, 6, Causal::BottomRight);
    case = Case::new(case.problem);
    let sink = [0.5, -1.0, 3.0, f32::NEG_INFINITY];
    for sink in [None, Some(&sink[..])] {
        let rows = case.run(&Extras { sink, ..Default::default() });
        for (n, at) in rows.index.iter().enumerate().filter(|(_, at)| at.row < 3) {
            assert!(rows.o.row(n).iter().all(|&x| x == 0.0));
            assert_eq!(lse(&rows)[n], sink.map_or(f64::NEG_INFINITY, |sink| sink[at.head].into()));
        }
    }
}

#[test]
fn sink_enters_the_denominator_only_unscaled_and_uncapped() {
    let mut case = Case::small();
    case.problem.softcap = Some(0.1);
    let without = case.run(&Extras::default());
    let sink = [0.5, -1.0, 3.0, 40.0];
    let with = case.run(&Extras { sink: Some(&sink), ..Default::default() });
    for (n, at) in with.index.iter().enumerate() {
        let sum = lse(&without)[n].exp() + f64::from(sink[at.head]).exp();
        assert!(same(lse(&with)[n], sum.ln()));
        assert!(close(&with, n, &(without.o.row(n).to_owned() * (lse(&without)[n].exp() / sum))));
    }
}

#[test]
fn softcap_alibi_bias_and_mask_change_scores_in_this_order() {
    let mut case = Case::small();
    case.problem.softcap = Some(0.7);
    case.problem.causal = Causal::BottomRight;
    let slopes = [0.5, 0.25, 0.125, 2.0];
    let bias = tensor((2, 1, 6, 9), 0.7);
    let mask = Array4::from_shape_fn((1, 4, 1, 9), |(_, h, _, j)| (h + j) % 3 != 0);
    let extras = Extras {
        alibi_slopes: Some(&slopes),
        bias: Some(Bias::F32(bias.view())),
        mask: Some(mask.view()),
        ..Default::default()
    };
    case.assert_is(&case.run(&extras), |at, j| {
        let diagonal = at.row as i64 + 3;
        if j as i64 > diagonal || (at.head + j) % 3 == 0 {
            return None;
        }
        let capped = f64::from(0.7f32) * (case.product(at, j) / f64::from(0.7f32)).tanh();
        let far = (diagonal - j as i64).abs() as f64;
        Some(capped - f64::from(slopes[at.head]) * far + f64::from(bias[(at.batch, 0, at.row, j)]))
    });
}

#[test]
fn softcap_saturates_at_any_finite_score() {
    let mut case = Case::small();
    case.q.fill(1e15);
    case.k.fill(1e15);
    case.problem.softcap = Some(5.0);
    let rows = case.run(&Extras::default());
    assert!(lse(&rows).iter().all(|&l| same(l, 5.0 + 9f64.ln())));
}

#[test]
fn minus_infinity_in_the_bias_is_a_false_mask() {
    let mut case = Case::small();
    case.k[(0, 3, 0, 0)] = f32::NAN;
    let mask = Array4::from_shape_fn((2, 4, 6, 9), |(b, h, i, j)| {
        i != 2 && (b, h / 2, j) != (0, 0, 3) && (b + h + i * 5 + j) % 4 != 0
    });
    let bias = mask.mapv(|allowed| if allowed { 0.0 } else { f32::NEG_INFINITY });
    let masked = case.run(&Extras { mask: Some(mask.view()), ..Default::default() });
    let biased = case.run(&Extras { bias: Some(Bias::F32(bias.view())), ..Default::default() });
    assert_eq!(masked, biased);
    assert!(lse(&masked).iter().all(|l| !l.is_nan()));
    assert_eq!(lse(&masked)[2], f64::NEG_INFINITY);
}

#[test]
fn a_shift_of_all_scores_moves_lse_and_nothing_else() {
    let case = Case::small();
    let bias = Array4::from_elem((1, 1, 1, 1), 123.5);
    let shifted = case.run(&Extras { bias: Some(Bias::F32(bias.view())), ..Default::default() });
    let plain = case.run(&Extras::default());
    for n in 0..plain.index.len() {
        assert!(same(lse(&shifted)[n], lse(&plain)[n] + 123.5));
        assert!(close(&shifted, n, &plain.o.row(n).to_owned()));
    }
}

#[test]
fn two_halves_of_the_keys_merge_by_their_lse() {
    let case = Case::small();
    let whole = case.run(&Extras::default());
    let part = |keys: std::ops::Range<usize>| {
        let problem = Problem { seqlen_k: keys.len(), ..case.problem };
        let (k, v) = (case.k.slice(s![.., keys.clone(), .., ..]), case.v.slice(s![.., keys, .., ..]));
        forward(&problem, case.q.view(), k, v, &Extras::default(), &whole.index).unwrap()
    };
    let (a, b) = (part(0..4), part(4..9));
    for n in 0..whole.index.len() {
        let (wa, wb) = (lse(&a)[n].exp(), lse(&b)[n].exp());
        assert!(same(lse(&whole)[n], (wa + wb).ln()));
        assert!(close(&whole, n, &((a.o.row(n).to_owned() * wa + b.o.row(n).to_owned() * wb) / (wa + wb))));
    }
}

#[test]
fn lengths_act_as_shorter_tensors_and_hide_what_lies_past_them() {
    let mut case = Case::small();
    case.problem.causal = Causal::BottomRight;
    let (lengths_q, lengths_k) = ([4, 6], [5, 0]);
    let extras = Extras { lengths_q: Some(&lengths_q), lengths_k: Some(&lengths_k), ..Default::default() };
    case.q.slice_mut(s![0, 4.., .., ..]).fill(f32::NAN);
    case.k.slice_mut(s![0, 5.., .., ..]).fill(f32::NAN);
    case.v.slice_mut(s![0, 5.., .., ..]).fill(f32::INFINITY);
    case.k.slice_mut(s![1, .., .., ..]).fill(f32::NAN);
    let rows = case.run(&extras);
    assert_eq!(rows.index.len(), 4 * (4 + 6));

    let short = Problem { batch: 1, seqlen_q: 4, seqlen_k: 5, ..case.problem };
    let first = all_rows(&short, &Extras::default());
    let (q, k, v) = (
        case.q.slice(s![..1, ..4, .., ..]),
        case.k.slice(s![..1, ..5, .., ..]),
        case.v.slice(s![..1, ..5, .., ..]),
    );
    let expected = forward(&short, q, k, v, &Extras::default(), &first).unwrap();
    assert_eq!(rows.o.slice(s![..16, ..]), expected.o);
    assert_eq!(lse(&rows)[..16], *lse(&expected));
    assert!(rows.o.slice(s![16.., ..]).iter().all(|&x| x == 0.0));
    assert!(lse(&rows)[16..].iter().all(|&l| l == f64::NEG_INFINITY));
}

#[test]
fn packed_sequences_act_as_separate_calls() {
    let problem = Problem {
        seqlen_k: 12,
        kv_heads: 1,
        causal: Causal::BottomRight,
        window: Window { left: Some(2), right: None },
        ..Problem::new(DType::F32, 1, 10, 2, 8)
    };
    let mut case = Case::new(problem);
    case.k.slice_mut(s![.., 11.., .., ..]).fill(f32::NAN);
    let (cu_q, cu_k) = ([0, 3, 3, 7], [0, 5, 9, 11]);
    let slopes = [0.5, 1.0];
    let shared = Extras { alibi_slopes: Some(&slopes), ..Default::default() };
    let extras = Extras { cu_seqlens_q: Some(&cu_q), cu_seqlens_k: Some(&cu_k), ..shared };
    let packed = case.run(&extras);
    assert_eq!(packed.index.len(), 2 * 7);
    let mut done = 0;
    for n in [0, 2] {
        let (q, k) = (cu_q[n] as usize..cu_q[n + 1] as usize, cu_k[n] as usize..cu_k[n + 1] as usize);
        let alone = Problem { seqlen_q: q.len(), seqlen_k: k.len(), ..problem };
        let rows = all_rows(&alone, &shared);
        let expected = forward(
            &alone,
            case.q.slice(s![.., q, .., ..]),
            case.k.slice(s![.., k.clone(), .., ..]),
            case.v.slice(s![.., k, .., ..]),
            &shared,
            &rows,
        )
        .unwrap();
        assert_eq!(packed.o.slice(s![done..done + rows.len(), ..]), expected.o);
        assert_eq!(lse(&packed)[done..done + rows.len()], *lse(&expected));
        done += rows.len();
    }
    assert_eq!(done, 14);
}

#[test]
fn a_nan_score_spoils_its_row_only_and_only_where_it_is_allowed() {
    let mut case = Case::new(Problem::new(DType::F32, 1, 5, 2, 8));
    case.problem.causal = Causal::TopLeft;
    case.q[(0, 1, 0, 3)] = f32::NAN;
    case.k[(0, 4, 1, 0)] = f32::NAN;
    for rows in [case.run(&Extras::default()), case.plain(&Extras::default())] {
        for (n, at) in rows.index.iter().enumerate() {
            let spoiled = (at.head, at.row) == (0, 1) || (at.head, at.row) == (1, 4);
            assert_eq!(lse(&rows)[n].is_nan(), spoiled, "{at}");
            assert!(rows.o.row(n).iter().all(|x| x.is_nan() == spoiled), "{at}");
        }
    }
    let mut only = Case::new(Problem::new(DType::F32, 1, 1, 1, 8));
    only.k[(0, 0, 0, 0)] = f32::NAN;
    assert!(lse(&only.run(&Extras::default()))[0].is_nan());
}

#[test]
fn the_plain_run_is_near_the_truth_under_every_option() {
    let mut case = Case::small();
    case.problem.softcap = Some(2.0);
    case.problem.window = Window { left: Some(3), right: Some(2) };
    let (slopes, sink) = ([0.5, 0.25, 0.125, 1.0], [0.0, 1.0, -2.0, 3.0]);
    let bias = tensor((1, 4, 6, 1), 0.9);
    let extras = Extras {
        alibi_slopes: Some(&slopes),
        sink: Some(&sink),
        bias: Some(Bias::F32(bias.view())),
        ..Default::default()
    };
    let (truth, plain) = (case.run(&extras), case.plain(&extras));
    let errors = check::errors(&plain, &truth);
    assert!(errors.relative < 5e-7 && errors.relative > 0.0, "{errors:?}");
    assert!(errors.lse_max_abs.unwrap() < 1e-6, "{errors:?}");
}

#[test]
fn sampled_rows_are_some_of_all_rows_and_have_the_same_values() {
    let case = Case::small();
    let extras = Extras::default();
    let all = case.run(&extras);
    let some = sample_rows(&case.problem, &extras, 20, 7);
    assert_eq!(some.len(), 20);
    assert!(some.is_sorted());
    let rows = forward(&case.problem, case.q.view(), case.k.view(), case.v.view(), &extras, &some).unwrap();
    for (n, at) in some.iter().enumerate() {
        let in_all = all.index.iter().position(|other| other == at).unwrap();
        assert_eq!(rows.o.row(n), all.o.row(in_all));
    }
    for end in [0, 5] {
        assert!(some.iter().any(|at| at.row == end));
    }
    assert_eq!(sample_rows(&case.problem, &extras, 1000, 7), all.index);
    assert_ne!(sample_rows(&case.problem, &extras, 20, 8), some);
}

#[test]
fn views_that_do_not_fit_the_problem_are_refused_by_name() {
    let case = Case::small();
    let extras = Extras::default();
    let run = |problem: &Problem, k: &Array4<f32>| -> Error {
        forward(problem, case.q.view(), k.view(), case.v.view(), &extras, &[]).unwrap_err()
    };
    assert_eq!(
        run(&case.problem, &tensor((2, 9, 4, 8), 0.0)).to_string(),
        "k is (2, 9, 4, 8), but the problem says (batch, sequence, heads, head dim) = (2, 9, 2, 8); make the \
         tensors and the problem agree"
    );
    let half = Problem { dtype: DType::F16, head_dim_v: 8, ..case.problem };
    assert!(run(&half, &case.k).to_string().starts_with("dtype is f32, but the problem says f16"));
    let heads = Problem { heads: 3, ..case.problem };
    assert!(
        run(&heads, &case.k).to_string().starts_with("heads is 3, but must be a multiple of kv_heads = 2")
    );
}

/// Two heads of a real model's first and last layer, with O and LSE computed elsewhere in f64.
#[test]
fn real_tensors_agree_with_results_computed_elsewhere() {
    for file in ["minilm-layer0.safetensors", "minilm-layer5.safetensors"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(file);
        let bytes = std::fs::read(path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let halves = |name| -> Array4<f16> {
            let data = tensors.tensor(name).unwrap().data();
            let values = data.chunks_exact(2).map(|x| f16::from_le_bytes([x[0], x[1]])).collect();
            let bhsd = Array4::from_shape_vec((1, 2, 512, 32), values).unwrap();
            bhsd.permuted_axes([0, 2, 1, 3])
        };
        let floats = |name| -> Vec<f32> {
            let data = tensors.tensor(name).unwrap().data();
            data.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
        };
        let (q, k, v) = (halves("q"), halves("k"), halves("v"));
        for (causal, o, lse) in
            [(Causal::No, "out", "lse"), (Causal::BottomRight, "out_causal", "lse_causal")]
        {
            let problem = Problem { causal, ..Problem::new(DType::F16, 1, 512, 2, 32) };
            let extras = Extras::default();
            let rows = sample_rows(&problem, &extras, 256, 1);
            let ours = forward(&problem, q.view(), k.view(), v.view(), &extras, &rows).unwrap();
            let o = Array4::from_shape_vec((1, 2, 512, 32), floats(o)).unwrap();
            let lse = ndarray::Array3::from_shape_vec((1, 2, 512), floats(lse)).unwrap();
            let theirs = Rows::gather(o.view().permuted_axes([0, 2, 1, 3]), Some(lse.view()), &rows);
            // The files hold f32, and their scale is rounded differently.
            let errors = check::errors(&theirs, &ours);
            assert!(errors.relative < 1e-6 && errors.max_abs < 1e-5, "{file} {causal:?}: {errors:?}");
            assert!(errors.lse_max_abs.unwrap() < 1e-5, "{file} {causal:?}: {errors:?}");
            assert_eq!(errors.misplaced, None);

            let plain = plain::forward(&problem, q.view(), k.view(), v.view(), &extras, &rows).unwrap();
            assert!(check::errors(&plain, &ours).relative < 1e-3);
        }
    }
}
