//! One call of attention on the GPU: inputs made up from a seed, NaN around everything, and the judgement.

use flash_attention::plan::{Alignment, PlanOptions};
use flash_attention::reference::{Rows, sample_rows};
use flash_attention::{
    Attention, Causal, Element, Error, Extras, Family, GpuProperties, Plan, Problem, Stream, Strides, Tensor,
    check, plain, reference,
};
use ndarray::{Array3, Array4};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

/// What to run. Shapes and strides are the problem's.
#[derive(Clone)]
pub struct Case {
    pub problem: Problem,
    /// None for the plan's choice.
    pub family: Option<Family>,
    /// Elements between the start of the memory and that of each tensor.
    pub offset: usize,
    pub seed: u64,
}

/// The tensors of a case in host memory, each with NaN wherever no element lies.
pub struct Inputs<T> {
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
}

/// What the GPU wrote: O in the problem's layout with all that lies around it, and LSE.
pub struct Outputs<T> {
    pub o: Vec<T>,
    pub lse: Vec<f32>,
}

type Dims = (usize, usize, usize, usize);

impl Case {
    /// Two sequences, four query heads, two key heads; rows with a gap of 16 bytes behind each head's columns.
    pub fn new(
        family: Option<Family>,
        dtype: flash_attention::DType,
        lengths: (usize, usize),
        dims: (usize, usize),
    ) -> Self {
        let mut problem = Problem::new(dtype, 2, lengths.0, 4, dims.0);
        (problem.seqlen_k, problem.kv_heads, problem.head_dim_v) = (lengths.1, 2, dims.1);
        let mut case = Case { problem, family, offset: 0, seed: 1 };
        let gap = 16 / dtype.size();
        let round = |d: usize| d.next_multiple_of(gap) + gap;
        let bshd = |s: usize, h: usize, d: usize| Strides::bshd(s, h, round(d));
        let p = &mut case.problem;
        p.q = bshd(p.seqlen_q, p.heads, p.head_dim);
        p.k = bshd(p.seqlen_k, p.kv_heads, p.head_dim);
        p.v = bshd(p.seqlen_k, p.kv_heads, p.head_dim_v);
        p.o = bshd(p.seqlen_q, p.heads, p.head_dim_v);
        case
    }

    pub fn causal(mut self, causal: Causal) -> Self {
        self.problem.causal = causal;
        self
    }

    fn dims(&self) -> [Dims; 4] {
        let p = &self.problem;
        [
            (p.batch, p.seqlen_q, p.heads, p.head_dim),
            (p.batch, p.seqlen_k, p.kv_heads, p.head_dim),
            (p.batch, p.seqlen_k, p.kv_heads, p.head_dim_v),
            (p.batch, p.seqlen_q, p.heads, p.head_dim_v),
        ]
    }

    fn strides(&self) -> [Strides; 4] {
        [self.problem.q, self.problem.k, self.problem.v, self.problem.o]
    }

    /// Normal numbers in every element, NaN in between.
    pub fn inputs<T: Element>(&self) -> Inputs<T> {
        let mut random = StdRng::seed_from_u64(self.seed);
        let mut make = |n: usize| {
            let mut memory = vec![T::from_f32(f32::NAN); self.memory(n)];
            for at in self.elements(n) {
                memory[at] = T::from_f32(random.sample(StandardNormal));
            }
            memory
        };
        Inputs { q: make(0), k: make(1), v: make(2) }
    }

    /// Why the family cannot run the case, if it cannot.
    pub fn refusal(&self, gpu: &GpuProperties) -> Option<Error> {
        let address = (self.offset * self.problem.dtype.size()) as u64;
        let alignment = Alignment::of(address, address, address, address);
        Plan::new(&self.problem, gpu, &PlanOptions { kernel: self.family, alignment }).err()
    }

    /// Runs the case on NaN-filled outputs.
    pub fn run<T: Element>(&self, stream: &Stream, inputs: &Inputs<T>) -> Outputs<T> {
        let device = stream.device();
        let flat = |values: &[T]| Tensor::from_slice(device, values, [1, 1, 1, values.len()]).unwrap();
        let (q, k, v) = (flat(&inputs.q), flat(&inputs.k), flat(&inputs.v));
        let mut o = flat(&vec![T::from_f32(f32::NAN); self.memory(3)]);
        let p = &self.problem;
        let lse_shape = [p.batch, p.heads, p.seqlen_q, 1];
        let nan = vec![f32::NAN; lse_shape.iter().product()];
        let mut lse = Tensor::from_slice(device, &nan, lse_shape).unwrap();

        let [q_shape, k_shape, v_shape, o_shape] = self.dims().map(|(b, s, h, d)| [b, s, h, d]);
        let mut attention = Attention::forward(
            q.view().window(self.offset, q_shape, p.q).unwrap(),
            k.view().window(self.offset, k_shape, p.k).unwrap(),
            v.view().window(self.offset, v_shape, p.v).unwrap(),
        )
        .causal(p.causal)
        .scale(p.scale);
        if let Some(family) = self.family {
            attention = attention.kernel(family);
        }
        let o_view = o.view_mut().window(self.offset, o_shape, p.o).unwrap();
        attention
            .run_into(stream, o_view, Some(lse.view_mut()))
            .unwrap_or_else(|why| panic!("{self}: {why}"));
        stream.synchronize().unwrap_or_else(|why| panic!("{self}: {why}"));
        Outputs { o: o.to_vec().unwrap(), lse: lse.to_vec().unwrap() }
    }

    /// Runs the case and holds it against the reference. What lies around O must be as it was.
    pub fn verify<T: Element>(&self, stream: &Stream, inputs: &Inputs<T>) {
        let outputs = self.run(stream, inputs);
        self.judge(inputs, &outputs);
    }

    /// Holds outputs against the reference.
    pub fn judge<T: Element>(&self, inputs: &Inputs<T>, outputs: &Outputs<T>) {
        let p = &self.problem;
        let (q, k, v) = (self.dense(0, &inputs.q), self.dense(1, &inputs.k), self.dense(2, &inputs.v));
        let (extras, o) = (Extras::default(), self.dense(3, &outputs.o));
        // All rows of the usual case; of large ones a choice, the first and the last of sequences among them.
        let rows = sample_rows(p, &extras, 4096, self.seed);
        let (q, k, v) = (q.view(), k.view(), v.view());
        let truth = reference::forward(p, q, k, v, &extras, &rows).unwrap();
        let plain = plain::forward(p, q, k, v, &extras, &rows).unwrap();
        let lse = Array3::from_shape_vec((p.batch, p.heads, p.seqlen_q), outputs.lse.clone()).unwrap();
        let run = Rows::gather(o.view(), Some(lse.view()), &rows);
        let report = check::check(p.dtype, &run, &truth, &plain);
        assert!(report.ok(), "{self}:\n{}", report.failures.join("\n"));

        let mut around = vec![true; outputs.o.len()];
        self.elements(3).for_each(|at| around[at] = false);
        let spoilt = around.iter().zip(&outputs.o).position(|(&around, x)| around && !x.to_f32().is_nan());
        assert_eq!(spoilt, None, "{self}: memory that is not O's was written");
    }

    /// Where tensor `n` has its elements, by index.
    pub fn elements(&self, n: usize) -> impl Iterator<Item = usize> + use<> {
        let ((b, s, h, d), strides, offset) = (self.dims()[n], self.strides()[n], self.offset);
        (0..b * s * h * d).map(move |i| {
            let (i, column) = (i / d, i % d);
            let (i, head) = (i / h, i % h);
            offset + i / s * strides.batch + i % s * strides.seq + head * strides.head + column
        })
    }

    /// Elements of the memory of tensor `n`: up to the last one and a little NaN behind.
    fn memory(&self, n: usize) -> usize {
        self.elements(n).max().map_or(self.offset, |last| last + 1) + 64
    }

    fn dense<T: Element>(&self, n: usize, memory: &[T]) -> Array4<T> {
        let values = self.elements(n).map(|at| memory[at]).collect();
        Array4::from_shape_vec(self.dims()[n], values).unwrap()
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let p = &self.problem;
        write!(
            f,
            "{} {}, batch {}, heads {}/{}, {} queries, {} keys, d {}/{}, {:?}",
            self.family.map_or("the plan's choice", Family::name),
            p.dtype.name(),
            p.batch,
            p.heads,
            p.kv_heads,
            p.seqlen_q,
            p.seqlen_k,
            p.head_dim,
            p.head_dim_v,
            p.causal
        )
    }
}
