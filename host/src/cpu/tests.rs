mod edges;
mod modifiers;

use super::*;
use crate::problem::{Causal, Window};
use crate::reference::{Rows, all_rows};
use crate::{check, plain, reference};
use ndarray::{Array3, Array4};
use proptest::prelude::*;

/// Numbers that differ everywhere, in (-1, 1).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() + 1.0) * 0.5 * n as f32) as usize % n
    }
}

/// Everything that a call can ask for.
#[derive(Clone, Debug)]
struct Wish {
    batch: usize,
    seqlen_q: usize,
    seqlen_k: usize,
    kv_heads: usize,
    group: usize,
    dims: (usize, usize),
    layouts: [usize; 4],
    scale: f32,
    causal: Causal,
    window: (Option<usize>, Option<usize>),
    softcap: Option<f32>,
    alibi: bool,
    sink: bool,
    /// Which dimensions of the bias and the mask are whole.
    bias: Option<[bool; 4]>,
    /// Whether the bias is of the type of Q, else f32.
    own_bias: bool,
    mask: Option<[bool; 4]>,
    /// None, padded, packed.
    lengths: usize,
    seed: u64,
}

fn wishes() -> impl Strategy<Value = Wish> {
    let causal = prop_oneof![Just(Causal::No), Just(Causal::BottomRight), Just(Causal::TopLeft)];
    let side = || proptest::option::of(prop_oneof![0usize..150, Just(usize::MAX)]);
    let whole = || proptest::option::weighted(0.3, any::<[bool; 4]>());
    let sizes = (0usize..3, 0usize..90, 0usize..250, 1usize..3, 1usize..4, (1usize..20, 1usize..20));
    let scores =
        (causal, (side(), side()), proptest::option::weighted(0.3, 0.2f32..30.0), any::<[bool; 3]>());
    (sizes, scores, whole(), whole(), any::<[u8; 4]>(), 0usize..4, 0.01f32..1.5, any::<u64>()).prop_map(
        |(
            sizes,
            (causal, window, softcap, [alibi, sink, own_bias]),
            bias,
            mask,
            layouts,
            lengths,
            scale,
            seed,
        )| Wish {
            batch: sizes.0,
            seqlen_q: sizes.1,
            seqlen_k: sizes.2,
            kv_heads: sizes.3,
            group: sizes.4,
            dims: sizes.5,
            layouts: layouts.map(|x| usize::from(x) % 4),
            scale,
            causal,
            window,
            softcap,
            alibi,
            sink,
            bias,
            own_bias,
            mask,
            lengths: lengths.saturating_sub(1),
            seed,
        },
    )
}

type Dim = (usize, usize, usize, usize);

/// Strides of a layout, and the elements that it takes.
fn strides(layout: usize, (b, s, h, d): Dim) -> (Strides, usize) {
    let strides = match layout {
        0 => Strides::bshd(s, h, d),
        1 => Strides::bhsd(s, h, d),
        // Gaps everywhere.
        2 => Strides { head: d + 3, seq: h * (d + 3) + 1, batch: s * (h * (d + 3) + 1) + 5 },
        // Every batch entry the same.
        _ => Strides { batch: 0, seq: h * d, head: d },
    };
    let last = |n: usize, stride: usize| n.saturating_sub(1) * stride;
    (strides, last(b, strides.batch) + last(s, strides.seq) + last(h, strides.head) + d)
}

struct Tensor<T> {
    data: Vec<T>,
    strides: Strides,
    dim: Dim,
}

impl<T: Element> Tensor<T> {
    /// Numbers where a row counts, NaN wherever nobody may look.
    fn new(noise: &mut Noise, layout: usize, dim: Dim, counts: impl Fn(usize, usize) -> bool) -> Self {
        let (strides, len) = strides(layout, dim);
        let mut data = vec![T::from_f32(f32::NAN); len];
        for b in 0..dim.0 {
            for s in (0..dim.1).filter(|&s| counts(b, s)) {
                for h in 0..dim.2 {
                    let first = b * strides.batch + s * strides.seq + h * strides.head;
                    data[first..first + dim.3].fill_with(|| T::from_f32(2.0 * noise.next()));
                }
            }
        }
        Tensor { data, strides, dim }
    }

    fn array(&self) -> Array4<T> {
        let t = &self.strides;
        Array4::from_shape_fn(self.dim, |(b, s, h, d)| self.data[b * t.batch + s * t.seq + h * t.head + d])
    }
}

/// The memory of a [`Bias`].
enum OwnedBias {
    F32(Array4<f32>),
    F16(Array4<f16>),
    Bf16(Array4<bf16>),
}

impl OwnedBias {
    /// Of the type `dtype`, with the values rounded to it.
    fn new(dtype: DType, values: Array4<f32>) -> Self {
        match dtype {
            DType::F32 => OwnedBias::F32(values),
            DType::F16 => OwnedBias::F16(values.mapv(f16::from_f32)),
            DType::Bf16 => OwnedBias::Bf16(values.mapv(bf16::from_f32)),
        }
    }

    fn view(&self) -> Bias<'_> {
        match self {
            OwnedBias::F32(values) => Bias::F32(values.view()),
            OwnedBias::F16(values) => Bias::F16(values.view()),
            OwnedBias::Bf16(values) => Bias::Bf16(values.view()),
        }
    }
}

/// Owned tensors of a call.
struct Case<T> {
    problem: Problem,
    q: Tensor<T>,
    k: Tensor<T>,
    v: Tensor<T>,
    o_len: usize,
    alibi: Option<Vec<f32>>,
    sink: Option<Vec<f32>>,
    bias: Option<OwnedBias>,
    mask: Option<Array4<bool>>,
    lengths: [Option<Vec<i32>>; 4],
}

impl<T: Element> Case<T> {
    fn new(wish: &Wish) -> Self {
        let w = wish;
        let mut noise = Noise(w.seed);
        let unit = if T::DTYPE == DType::F32 { 3 } else { 8 };
        let (d, d_v) = (w.dims.0 * unit, w.dims.1 * unit);
        // One unit in the last place of a score of 50 moves a weight by 4e-6. In f32, where the rule's constant is a
        // quarter of that, chance would decide whether the plain run or the tested one is nearer to the truth.
        let scale = if T::DTYPE == DType::F32 { w.scale / (d as f32).sqrt() } else { w.scale };
        let (heads, packed) = (w.kv_heads * w.group, w.lengths == 2);
        let batch = if packed { 1 } else { w.batch };
        let mut lengths = [None, None, None, None];
        match w.lengths {
            1 => {
                lengths[0] = Some((0..batch).map(|_| noise.below(w.seqlen_q + 1) as i32).collect());
                lengths[1] = Some((0..batch).map(|_| noise.below(w.seqlen_k + 1) as i32).collect());
            }
            2 => {
                for (n, total) in [(2, w.seqlen_q), (3, w.seqlen_k)] {
                    let mut cu: Vec<i32> = (0..w.batch).map(|_| noise.below(total + 1) as i32).collect();
                    cu.push(0);
                    cu.sort();
                    lengths[n] = Some(cu);
                }
            }
            _ => {}
        }
        let end = |n: usize, b: usize, all: usize| match (&lengths[n], &lengths[n + 2]) {
            (Some(l), _) => l[b] as usize,
            (_, Some(cu)) => *cu.last().unwrap() as usize,
            _ => all,
        };
        // With one memory for all batch entries a row counts where it does for any.
        let counts = |n: usize, layout: usize, all: usize| {
            let ends: Vec<usize> = (0..batch).map(|b| end(n, b, all)).collect();
            let most = ends.iter().copied().max().unwrap_or(0);
            move |b: usize, s: usize| s < if layout == 3 { most } else { ends[b] }
        };
        let [lq, lk, lv, lo] = w.layouts;
        let q = Tensor::new(&mut noise, lq, (batch, w.seqlen_q, heads, d), counts(0, lq, w.seqlen_q));
        let k = Tensor::new(&mut noise, lk, (batch, w.seqlen_k, w.kv_heads, d), counts(1, lk, w.seqlen_k));
        let v = Tensor::new(&mut noise, lv, (batch, w.seqlen_k, w.kv_heads, d_v), counts(1, lv, w.seqlen_k));
        let (o, o_len) = strides(lo % 3, (batch, w.seqlen_q, heads, d_v));
        let problem = Problem {
            dtype: T::DTYPE,
            batch,
            seqlen_q: w.seqlen_q,
            seqlen_k: w.seqlen_k,
            heads,
            kv_heads: w.kv_heads,
            head_dim: d,
            head_dim_v: d_v,
            q: q.strides,
            k: k.strides,
            v: v.strides,
            o,
            scale,
            causal: w.causal,
            window: Window { left: w.window.0, right: w.window.1 },
            softcap: w.softcap,
        };
        let whole = (batch, heads, w.seqlen_q, w.seqlen_k);
        let dim = |[b, h, i, j]: [bool; 4]| {
            let pick = |flag: bool, n: usize| if flag { n } else { 1 };
            (pick(b, whole.0), pick(h, whole.1), pick(i, whole.2), pick(j, whole.3))
        };
        let mut per_head = |wanted: bool, factor: f32| {
            wanted.then(|| (0..heads).map(|_| factor * noise.next()).collect::<Vec<f32>>())
        };
        let alibi = per_head(w.alibi, 0.1);
        let mut sink = per_head(w.sink, 3.0);
        if let Some(sink) = &mut sink {
            sink[0] = f32::NEG_INFINITY;
        }
        Case {
            problem,
            q,
            k,
            v,
            o_len,
            alibi,
            sink,
            bias: w.bias.filter(|_| !packed).map(|flags| {
                let values = Array4::from_shape_fn(dim(flags), |_| match noise.below(5) {
                    0 => f32::NEG_INFINITY,
                    _ => 2.0 * noise.next(),
                });
                OwnedBias::new(if w.own_bias { T::DTYPE } else { DType::F32 }, values)
            }),
            mask: w.mask.filter(|_| !packed).map(|flags| {
                // Long runs of false, so that whole blocks are masked.
                Array4::from_shape_fn(dim(flags), |(_, h, i, j)| {
                    (i / 40 + j / 100 + h) % 2 == 0 && noise.below(4) > 0
                })
            }),
            lengths,
        }
    }

    fn extras(&self) -> Extras<'_> {
        let [lengths_q, lengths_k, cu_seqlens_q, cu_seqlens_k] =
            self.lengths.each_ref().map(|l| l.as_deref());
        Extras {
            alibi_slopes: self.alibi.as_deref(),
            bias: self.bias.as_ref().map(OwnedBias::view),
            mask: self.mask.as_ref().map(|mask| mask.view()),
            sink: self.sink.as_deref(),
            lengths_q,
            lengths_k,
            cu_seqlens_q,
            cu_seqlens_k,
        }
    }

    /// O as it lies in memory, and LSE.
    fn run(&self, set: InstructionSet) -> (Vec<T>, Vec<f32>) {
        let p = &self.problem;
        let mut out = vec![T::from_f32(UNTOUCHED); self.o_len];
        let mut lse = vec![UNTOUCHED; p.batch * p.heads * p.seqlen_q];
        let (q, k, v) = (&self.q.data, &self.k.data, &self.v.data);
        forward_with(set, p, q, k, v, &self.extras(), &mut out, Some(&mut lse)).unwrap();
        (out, lse)
    }

    /// The rows that the call writes; everything else must be as it was.
    fn rows(&self, (out, lse): &(Vec<T>, Vec<f32>)) -> Rows {
        let p = &self.problem;
        let index = all_rows(p, &self.extras());
        let dim = (p.batch, p.seqlen_q, p.heads, p.head_dim_v);
        let o = Tensor { data: out.clone(), strides: p.o, dim }.array();
        let lse = Array3::from_shape_vec((p.batch, p.heads, p.seqlen_q), lse.clone()).unwrap();
        let mut written = vec![false; out.len()];
        let mut written_lse = Array3::from_elem(lse.dim(), false);
        for at in &index {
            let first = at.batch * p.o.batch + at.row * p.o.seq + at.head * p.o.head;
            written[first..first + p.head_dim_v].fill(true);
            written_lse[(at.batch, at.head, at.row)] = true;
        }
        let untouched = |x: f32, written: bool| written || x == UNTOUCHED;
        assert!(
            out.iter().zip(&written).all(|(x, &w)| untouched(x.to_f32(), w)),
            "O outside its rows was written"
        );
        assert!(
            lse.iter().zip(&written_lse).all(|(&x, &w)| untouched(x, w)),
            "LSE outside its rows was written"
        );
        Rows::gather(o.view(), Some(lse.view()), &index)
    }

    /// Holds every instruction set to the rule of [`crate::check`].
    fn assert_right(&self) {
        let (p, extras) = (&self.problem, self.extras());
        let rows = all_rows(p, &extras);
        let (q, k, v) = (self.q.array(), self.k.array(), self.v.array());
        let truth = reference::forward(p, q.view(), k.view(), v.view(), &extras, &rows).unwrap();
        let plain = plain::forward(p, q.view(), k.view(), v.view(), &extras, &rows).unwrap();
        for set in InstructionSet::all() {
            let report = check::check(T::DTYPE, &self.rows(&self.run(set)), &truth, &plain);
            assert!(report.ok(), "{}: {:#?}", set.name(), report.failures);
        }
    }
}

const UNTOUCHED: f32 = 7.25;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_f32_call_is_right(wish in wishes()) {
        Case::<f32>::new(&wish).assert_right();
    }

    #[test]
    fn any_f16_call_is_right(wish in wishes()) {
        Case::<f16>::new(&wish).assert_right();
    }

    #[test]
    fn any_bf16_call_is_right(wish in wishes()) {
        Case::<bf16>::new(&wish).assert_right();
    }
}
