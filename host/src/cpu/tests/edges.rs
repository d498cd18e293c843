//! Single cases that random calls are unlikely to hit.

use super::*;

pub(super) fn wish() -> Wish {
    Wish {
        batch: 2,
        seqlen_q: 70,
        seqlen_k: 230,
        kv_heads: 2,
        group: 2,
        dims: (6, 5),
        layouts: [0; 4],
        scale: 1.3,
        causal: Causal::BottomRight,
        window: (Some(150), None),
        softcap: None,
        alibi: true,
        sink: false,
        bias: None,
        own_bias: false,
        mask: None,
        lengths: 0,
        seed: 7,
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Query rows `rows` of batch entry 1 alone, head 3 of the four, against the same bits of the whole call.
#[test]
fn a_row_alone_has_the_bits_that_it_has_in_the_whole_call() {
    let case = Case::<f32>::new(&Wish { causal: Causal::No, window: (None, None), alibi: false, ..wish() });
    let p = case.problem;
    for set in InstructionSet::all() {
        let (out, lse) = case.run(set);
        for rows in [0..1, 3..5, 0..70, 10..63] {
            let alone = Problem {
                batch: 1,
                seqlen_q: rows.len(),
                heads: 1,
                kv_heads: 1,
                o: Strides::bshd(rows.len(), 1, p.head_dim_v),
                ..p
            };
            let q = &case.q.data[p.q.batch + rows.start * p.q.seq + 3 * p.q.head..];
            let k = &case.k.data[p.k.batch + p.k.head..];
            let v = &case.v.data[p.v.batch + p.v.head..];
            let mut o = vec![0.0; rows.len() * p.head_dim_v];
            let mut l = vec![0.0; rows.len()];
            forward_with(set, &alone, q, k, v, &Extras::default(), &mut o, Some(&mut l)).unwrap();
            for (n, i) in rows.enumerate() {
                let first = p.o.batch + i * p.o.seq + 3 * p.o.head;
                let d = p.head_dim_v;
                assert_eq!(
                    bits(&o[n * d..(n + 1) * d]),
                    bits(&out[first..first + d]),
                    "{} row {i}",
                    set.name()
                );
                assert_eq!(l[n].to_bits(), lse[(4 + 3) * p.seqlen_q + i].to_bits());
            }
        }
    }
}

#[test]
fn one_thread_and_many_give_the_same_bits() {
    let case = Case::<f32>::new(&wish());
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (out, lse) = pool.install(|| case.run(InstructionSet::best()));
        (bits(&out), bits(&lse))
    };
    assert_eq!(with(1), with(5));
}

#[test]
fn huge_scores_and_values_stay_in_range() {
    let mut case = Case::<f32>::new(&Wish { alibi: false, ..wish() });
    case.q.data.iter_mut().chain(&mut case.k.data).for_each(|x| *x *= 1e15);
    case.assert_right();

    // Sums of such values leave the range before they are divided.
    let mut case = Case::<f32>::new(&wish());
    case.v.data.iter_mut().for_each(|x| *x *= 1.5e38);
    for set in InstructionSet::all() {
        let (out, lse) = case.run(set);
        assert!(out.iter().chain(&lse).all(|x| x.is_finite()), "{}", set.name());
        let mut small = Case::<f32>::new(&wish());
        small.v.data.iter_mut().for_each(|x| *x *= 1.5e38 * (0.5f32).powi(64));
        let (expected, _) = small.run(set);
        for (x, y) in out.iter().zip(&expected) {
            let y = y * (2.0f32).powi(64);
            assert!((x - y).abs() <= 1e-5 * 1.5e38, "{x:e} is not {y:e}");
        }
    }
}

#[test]
fn a_nan_score_spoils_its_row_only_and_only_where_it_is_allowed() {
    let mut case = Case::<f32>::new(&wish());
    let p = case.problem;
    case.q.data[5 * p.q.seq + 3] = f32::NAN;
    // Row 69 alone sees the last key.
    case.k.data[229 * p.k.seq + p.k.head] = f32::from_bits(0x7fc0_0001);
    for set in InstructionSet::all() {
        let (out, lse) = case.run(set);
        for b in 0..2 {
            for h in 0..4 {
                for i in 0..70 {
                    let spoiled = b == 0 && ((h, i) == (0, 5) || (h >= 2 && i == 69));
                    let first = b * p.o.batch + i * p.o.seq + h * p.o.head;
                    let row = &out[first..first + p.head_dim_v];
                    assert!(row.iter().all(|x| x.is_nan() == spoiled), "{} {b} {h} {i}", set.name());
                    assert_eq!(lse[(b * 4 + h) * 70 + i].is_nan(), spoiled);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_right_is_refused_and_nothing_written() {
    let case = Case::<f32>::new(&wish());
    let mut out = vec![UNTOUCHED; case.o_len];
    let (q, k, v) = (&case.q.data[..], &case.k.data[..], &case.v.data[..]);
    let extras = case.extras();
    let mut refused = |problem: &Problem, k: &[f32], lse: Option<&mut [f32]>| {
        let message = forward(problem, q, k, v, &extras, &mut out, lse).unwrap_err().to_string();
        assert!(out.iter().all(|&x| x == UNTOUCHED));
        message
    };
    let p = case.problem;
    let message = refused(&p, &k[1..], None);
    assert!(message.starts_with("k is 16559 elements, but shape [2, 230, 2] x 18 with strides"), "{message}");
    let message = refused(&p, k, Some(&mut [0.0; 5]));
    assert!(message.starts_with("lse is 5 values, but (batch, heads, seqlen_q) takes 560"), "{message}");
    let overlapping = Problem { o: Strides { seq: 1, ..p.o }, ..p };
    assert!(refused(&overlapping, k, None).contains("no two of its rows may share memory"));
    let half = Problem { dtype: DType::F16, head_dim: 16, head_dim_v: 8, ..p };
    assert!(refused(&half, k, None).starts_with("dtype is f32, but the problem says f16"));
    let mut bytes = [0u8; 64];
    let problem = Problem::new(DType::F32, 1, 1, 1, 1);
    let skewed = bytes.as_ptr().align_offset(4) + 1;
    let message =
        forward_bytes(&problem, &[0; 4], &[0; 4], &[0; 4], &Extras::default(), &mut bytes[skewed..], None)
            .unwrap_err()
            .to_string();
    assert!(message.contains("must be aligned to its 4-byte elements"), "{message}");
}
