//! One problem with its tensors, run on the simulated device and held against the f64 reference.

use flash_attention::reference::{self, Rows, all_rows};
use flash_attention::sim::{self, Options, Outcome};
use flash_attention::{Causal, DType, Element, Extras, Family, Problem, Strides, check, plain};
use half::{bf16, f16};
use ndarray::{ArrayView, ArrayView3, ArrayView4, Ix4, ShapeBuilder};

/// How the tensors lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    /// `(batch, sequence, head, dim)`, contiguous.
    Bshd,
    /// `(batch, head, sequence, dim)`, contiguous.
    Bhsd,
    /// Rows, heads and batch entries with gaps between them; the gaps hold NaN and may not be read or written.
    Gaps,
}

/// A problem to run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub dtype: DType,
    pub batch: usize,
    /// Lengths of queries and keys.
    pub lengths: (usize, usize),
    /// Query and key heads.
    pub heads: (usize, usize),
    /// Columns of Q and K, and of V and O.
    pub dims: (usize, usize),
    pub causal: Causal,
    pub layout: Layout,
    /// What the elements of Q and K are multiplied with.
    pub magnitude: f32,
    /// The first column of every row of Q and of K; the others are then small integers, so that every score is exact
    /// and lies close to the two's product.
    pub offset: Option<(f32, f32)>,
    /// Rows of Q and of K that are NaN.
    pub nan_rows: Option<(usize, usize)>,
}

impl Case {
    pub fn new(dtype: DType, lengths: (usize, usize), d: usize) -> Self {
        Case {
            dtype,
            batch: 1,
            lengths,
            heads: (1, 1),
            dims: (d, d),
            causal: Causal::No,
            layout: Layout::Bshd,
            magnitude: 1.0,
            offset: None,
            nan_rows: None,
        }
    }

    fn problem(&self) -> Problem {
        let ((s_q, s_k), (h, h_k), (d, d_v)) = (self.lengths, self.heads, self.dims);
        let strides = |s: usize, h: usize, d: usize| match self.layout {
            Layout::Bshd => Strides::bshd(s, h, d),
            Layout::Bhsd => Strides::bhsd(s, h, d),
            Layout::Gaps => {
                let (head, gap) = (d + 8, 16);
                Strides { head, seq: h * head + gap, batch: s * (h * head + gap) + 3 * gap }
            }
        };
        let mut problem = Problem::new(self.dtype, self.batch, s_q, h, d);
        (problem.seqlen_k, problem.kv_heads, problem.head_dim_v) = (s_k, h_k, d_v);
        problem.causal = self.causal;
        (problem.q, problem.o) = (strides(s_q, h, d), strides(s_q, h, d_v));
        (problem.k, problem.v) = (strides(s_k, h_k, d), strides(s_k, h_k, d_v));
        problem
    }

    /// Runs the case; gives all that is wrong with it.
    pub fn faults(&self, kernel: Family, options: &Options) -> Vec<String> {
        let options = Options { kernel: Some(kernel), ..*options };
        match self.dtype {
            DType::F16 => self.faults_of::<f16>(&options),
            DType::Bf16 => self.faults_of::<bf16>(&options),
            DType::F32 => self.faults_of::<f32>(&options),
        }
    }

    /// The bits of O and LSE, with the key heads as they are or with a copy of its own for every query head. For the layout
    /// `Bshd`.
    pub fn bits<T: Element>(&self, kernel: Family, own_key_heads: bool) -> (Vec<u32>, Vec<u32>) {
        let copied = if own_key_heads { self.heads.0 / self.heads.1 } else { 1 };
        let problem = Case { heads: (self.heads.0, self.heads.1 * copied), ..*self }.problem();
        let ((s_q, s_k), (h, h_k), (d, d_v)) = (self.lengths, self.heads, self.dims);
        let dims = |s, h, d| [self.batch, s, h, d];
        let q = tensor::<T>(dims(s_q, h, d), problem.q, 1, self.magnitude, None);
        let of_keys = |d, seed| {
            let values =
                tensor::<T>(dims(s_k, h_k, d), Strides::bshd(s_k, h_k, d), seed, self.magnitude, None);
            values.chunks(d).flat_map(|row| row.repeat(copied)).collect::<Vec<T>>()
        };
        let options = Options { kernel: Some(kernel), ..Options::default() };
        let Outcome { o, lse, plan, .. } =
            sim::forward(&problem, &q, &of_keys(d, 2), &of_keys(d_v, 3), &options).expect("a valid problem");
        assert_eq!(plan.packing.heads() > 1, !own_key_heads, "{plan}");
        (o.iter().map(|x| x.to_f32().to_bits()).collect(), lse.iter().copied().map(f32::to_bits).collect())
    }

    fn faults_of<T: Element>(&self, options: &Options) -> Vec<String> {
        let problem = self.problem();
        let ((s_q, s_k), (h, h_k), (d, d_v)) = (self.lengths, self.heads, self.dims);
        let dims = |s, h, d| [self.batch, s, h, d];
        let (q_nan, k_nan) = self.nan_rows.unzip();
        let mut q = tensor::<T>(dims(s_q, h, d), problem.q, 1, self.magnitude, q_nan);
        let mut k = tensor::<T>(dims(s_k, h_k, d), problem.k, 2, self.magnitude, k_nan);
        let v = tensor::<T>(dims(s_k, h_k, d_v), problem.v, 3, 1.0, None);
        if let Some((of_q, of_k)) = self.offset {
            shift(&mut q, dims(s_q, h, d), problem.q, of_q);
            shift(&mut k, dims(s_k, h_k, d), problem.k, of_k);
        }
        let outcome = match sim::forward(&problem, &q, &k, &v, options) {
            Ok(outcome) => outcome,
            Err(error) => return vec![error.to_string()],
        };
        let mut faults: Vec<String> = outcome.report.findings.iter().map(ToString::to_string).collect();
        let (q, k, v) = (
            view(&q, dims(s_q, h, d), problem.q),
            view(&k, dims(s_k, h_k, d), problem.k),
            view(&v, dims(s_k, h_k, d_v), problem.v),
        );
        let extras = Extras::default();
        let index = all_rows(&problem, &extras);
        let truth = reference::forward(&problem, q, k, v, &extras, &index).expect("a valid problem");
        let plain = plain::forward(&problem, q, k, v, &extras, &index).expect("a valid problem");
        let Outcome { o, lse, .. } = &outcome;
        let lse = ArrayView3::from_shape((self.batch, h, s_q), lse).expect("LSE's shape");
        let rows = Rows::gather(view(o, dims(s_q, h, d_v), problem.o), Some(lse), &index);
        faults.extend(check::check(self.dtype, &rows, &truth, &plain).failures);
        faults
    }
}

/// Rounds every element to an integer and puts `first` into each row's first column.
fn shift<T: Element>(values: &mut [T], [batch, seqlen, heads, d]: [usize; 4], strides: Strides, first: f32) {
    for b in 0..batch {
        for i in 0..seqlen {
            for h in 0..heads {
                let row = b * strides.batch + i * strides.seq + h * strides.head;
                for value in &mut values[row..row + d] {
                    *value = T::from_f32(value.to_f32().round());
                }
                values[row] = T::from_f32(first);
            }
        }
    }
}

/// Values in -1.5 ..= 1.5 in the rows, NaN in between.
fn tensor<T: Element>(
    [batch, seqlen, heads, d]: [usize; 4],
    strides: Strides,
    seed: u64,
    magnitude: f32,
    nan_row: Option<usize>,
) -> Vec<T> {
    let last = |n: usize, stride: usize| n.saturating_sub(1) * stride;
    let len = last(batch, strides.batch) + last(seqlen, strides.seq) + last(heads, strides.head) + d;
    let mut values = vec![T::from_f32(f32::NAN); len];
    let mut state = seed;
    for b in 0..batch {
        for i in 0..seqlen {
            for h in 0..heads {
                let row = b * strides.batch + i * strides.seq + h * strides.head;
                for value in &mut values[row..row + d] {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let x = (state >> 40) as f32 / (1 << 24) as f32 * 3.0 - 1.5;
                    *value = T::from_f32(if nan_row == Some(i) { f32::NAN } else { x * magnitude });
                }
            }
        }
    }
    values
}

fn view<T>(values: &[T], dims: [usize; 4], s: Strides) -> ArrayView4<'_, T> {
    let shape = Ix4(dims[0], dims[1], dims[2], dims[3]);
    let view = if dims.contains(&0) {
        ArrayView::from_shape(shape, &values[..0])
    } else {
        ArrayView::from_shape(shape.strides(Ix4(s.batch, s.seq, s.head, 1)), values)
    };
    view.expect("the view of a tensor")
}
