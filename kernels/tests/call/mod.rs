//! One call of attention on the simulated device, with what is right computed beside it in f64.

use cuda_std::element::{Bf16, Element, F16};
use cuda_std::sim::{Access, Launch, Memory};
use flash_attention_kernels::config::{self, Entry, Family, MaskKind};
use flash_attention_kernels::params::{ForwardParams, StandardParams, Strides};
use flash_attention_kernels::simulate::{self, Kernel};

/// How a tensor lies in memory; what is between its elements holds NaN and may not be touched.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// `(batch, sequence, head, dim)`, contiguous.
    Bshd,
    /// `(batch, head, sequence, dim)`, contiguous.
    Bhsd,
    /// As `Bshd`, with so many unused elements after each row of each head.
    Gaps {
        /// Unused elements.
        row: usize,
    },
}

/// Shape, layout and contents of a call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub dtype: &'static str,
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub seqlen_q: usize,
    pub seqlen_k: usize,
    pub head_dim: usize,
    pub head_dim_v: usize,
    pub causal: bool,
    pub top_left: bool,
    pub layout: Layout,
    /// Elements in front of each tensor, which decides about its alignment.
    pub first: usize,
    /// Size of the elements of Q and K.
    pub magnitude: f32,
    /// A row of Q, of every head, that starts with NaN.
    pub nan_query: Option<usize>,
    pub without_lse: bool,
    pub seed: u64,
}

impl Default for Call {
    fn default() -> Self {
        Call {
            dtype: "f32",
            batch: 1,
            heads: 1,
            kv_heads: 1,
            seqlen_q: 8,
            seqlen_k: 8,
            head_dim: 32,
            head_dim_v: 32,
            causal: false,
            top_left: false,
            layout: Layout::Bshd,
            first: 0,
            magnitude: 1.0,
            nan_query: None,
            without_lse: false,
            seed: 0,
        }
    }
}

/// What came out, `(batch, sequence, head, dim)` and `(batch, head, sequence)`.
pub struct Output {
    pub o: Vec<f32>,
    pub lse: Vec<f32>,
}

/// A tensor `(batch, sequence, head, dim)`: its values, rounded to the type, and where each lies.
struct Tensor {
    shape: [usize; 4],
    strides: Strides,
    elements: usize,
    values: Vec<f32>,
}

impl Tensor {
    fn new(call: &Call, shape: [usize; 4], salt: u64, magnitude: f32) -> Self {
        let [batch, seq, heads, dim] = shape;
        let (row, head) = match call.layout {
            Layout::Bshd => (heads * dim, dim),
            Layout::Bhsd => (dim, seq * dim),
            Layout::Gaps { row } => (heads * (dim + row), dim + row),
        };
        let of_batch = seq * heads * (dim + if let Layout::Gaps { row } = call.layout { row } else { 0 });
        let values = (0..batch * seq * heads * dim)
            .map(|i| rounded(call.dtype, magnitude * noise(salt * 1_000_003 + i as u64)))
            .collect();
        let strides = Strides { batch: of_batch as i64, seq: row as i64, head: head as i64 };
        Tensor { shape, strides, elements: call.first + batch * of_batch, values }
    }

    /// Index of each value's element in memory, in the order of the values.
    fn places(&self, first: usize) -> impl Iterator<Item = usize> {
        let ([batch, seq, heads, dim], s) = (self.shape, self.strides);
        (0..batch * seq * heads).flat_map(move |row| {
            let (b, i, h) = (row / heads / seq, row / heads % seq, row % heads);
            let start = first + b * s.batch as usize + i * s.seq as usize + h * s.head as usize;
            start..start + dim
        })
    }

    fn row(&self, b: usize, i: usize, h: usize) -> &[f32] {
        let [_, seq, heads, dim] = self.shape;
        &self.values[((b * seq + i) * heads + h) * dim..][..dim]
    }
}

/// Between -1 and 1, from a number.
fn noise(seed: u64) -> f32 {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678;
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn rounded(dtype: &str, value: f32) -> f32 {
    match dtype {
        "f32" => value,
        "f16" => F16::to_f32(F16::from_f32(value)),
        _ => Bf16::to_f32(Bf16::from_f32(value)),
    }
}

fn bits_of(dtype: &str, value: f32) -> u16 {
    if dtype == "f16" { F16::from_f32(value) } else { Bf16::from_f32(value) }
}

impl Call {
    fn tensors(&self) -> [Tensor; 4] {
        let &Call { batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, head_dim_v, magnitude, .. } = self;
        let mut q = Tensor::new(self, [batch, seqlen_q, heads, head_dim], 1, magnitude);
        if let Some(row) = self.nan_query {
            for head in 0..batch * heads {
                let row = (head / heads * seqlen_q + row) * heads + head % heads;
                q.values[row * head_dim] = f32::NAN;
            }
        }
        [
            q,
            Tensor::new(self, [batch, seqlen_k, kv_heads, head_dim], 2, magnitude),
            Tensor::new(self, [batch, seqlen_k, kv_heads, head_dim_v], 3, 1.0),
            Tensor::new(self, [batch, seqlen_q, heads, head_dim_v], 4, 0.0),
        ]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn offset(&self) -> i64 {
        if self.causal && !self.top_left { self.seqlen_k as i64 - self.seqlen_q as i64 } else { 0 }
    }

    /// The smallest entry of a family that holds the call.
    fn entry(&self, family: Family) -> Entry {
        let mask = if self.causal { MaskKind::Causal } else { MaskKind::Full };
        let fits = |e: &&Entry| {
            e.family == family
                && e.begins_call()
                && e.dtype.name() == self.dtype
                && e.mask.serves(mask)
                && e.head_dim as usize >= self.head_dim.max(self.head_dim_v)
        };
        *config::entries().filter(fits).min_by_key(|e| e.head_dim).expect("a kernel for the call")
    }

    /// Runs a family.
    pub fn run_as(&self, family: Family) -> Output {
        let entry = self.entry(family);
        self.run(|params, memory| {
            let forward = ForwardParams { blocks_m: params.seqlen_q.div_ceil(entry.block_m), ..params };
            let tiles = forward.blocks_m * params.heads * params.batch;
            match simulate::kernel(entry.name) {
                Some(Kernel::Tiled(kernel)) => {
                    // SAFETY: the simulated device checks what the kernel touches.
                    self.launch(&entry, tiles, memory, || unsafe { kernel(forward) });
                }
                Some(Kernel::Standard(_)) => self.launch_standard(&entry, forward, tiles, memory),
                _ => panic!("{} cannot be simulated", entry.name),
            }
        })
    }

    /// The three launches of `standard`.
    fn launch_standard(&self, scores: &Entry, forward: ForwardParams, tiles: u32, memory: &mut Memory) {
        let rows = (forward.batch * forward.heads * forward.seqlen_q) as usize;
        let pitch = forward.seqlen_k.next_multiple_of(scores.block_n) as i64;
        let head = pitch * i64::from(forward.seqlen_q);
        let params = StandardParams {
            // Without a mask the first row sees every key.
            forward: ForwardParams {
                causal_offset: if self.causal { forward.causal_offset } else { self.seqlen_k as i32 },
                ..forward
            },
            scores: memory.output::<f32>("scores", rows * pitch as usize),
            scores_strides: Strides { batch: head * i64::from(forward.heads), seq: pitch, head },
        };
        let [softmax, output] = config::standard_followers(scores).expect("the table is whole");
        let softmax_blocks = (rows as u32).div_ceil(softmax.threads / 32);
        for (entry, grid) in [(scores, tiles), (softmax, softmax_blocks), (output, tiles)] {
            let Some(Kernel::Standard(kernel)) = simulate::kernel(entry.name) else {
                panic!("{} cannot be simulated", entry.name)
            };
            // SAFETY: as above.
            self.launch(entry, grid, memory, || unsafe { kernel(params) });
        }
    }

    /// Runs one launch and expects no finding.
    fn launch(&self, entry: &Entry, grid: u32, memory: &mut Memory, kernel: impl Fn()) {
        Launch::new(entry.name, grid, entry.threads)
            .shared(entry.shared_bytes)
            .seed(self.seed)
            .run(memory, kernel)
            .expect_clean();
    }

    /// Puts the tensors into memory, calls `launches` and reads the output back.
    fn run(&self, launches: impl FnOnce(ForwardParams, &mut Memory)) -> Output {
        let mut memory = Memory::new();
        let [q, k, v, o] = self.tensors();
        let size = if self.dtype == "f32" { 4 } else { 2 };
        let upload = |memory: &mut Memory, name: &str, tensor: &Tensor| {
            let mut used = vec![false; tensor.elements];
            let mut values = vec![f32::NAN; tensor.elements];
            for (place, &value) in tensor.places(self.first).zip(&tensor.values) {
                (values[place], used[place]) = (value, true);
            }
            let address = if size == 4 {
                memory.upload(name, &values)
            } else {
                memory.upload(name, &values.iter().map(|&v| bits_of(self.dtype, v)).collect::<Vec<_>>())
            };
            for place in (0..tensor.elements).filter(|&place| !used[place]) {
                memory.forbid_read(address + (place * size) as u64, size as u64);
            }
            address + (self.first * size) as u64
        };
        let (q_at, k_at, v_at) =
            (upload(&mut memory, "q", &q), upload(&mut memory, "k", &k), upload(&mut memory, "v", &v));
        let o_base = memory.region("o", (o.elements * size) as u64, Access::Write);
        for place in o.places(self.first) {
            memory.allow_write(o_base + (place * size) as u64, size as u64);
        }
        let rows = self.batch * self.heads * self.seqlen_q;
        let lse_at = memory.output::<f32>("lse", rows);
        let params = ForwardParams {
            q: q_at,
            k: k_at,
            v: v_at,
            o: o_base + (self.first * size) as u64,
            lse: if self.without_lse { 0 } else { lse_at },
            q_strides: q.strides,
            k_strides: k.strides,
            v_strides: v.strides,
            o_strides: o.strides,
            batch: self.batch as u32,
            seqlen_q: self.seqlen_q as u32,
            seqlen_k: self.seqlen_k as u32,
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            head_dim_v: self.head_dim_v as u32,
            scale: self.scale(),
            causal_offset: self.offset() as i32,
            blocks_m: 0,
        };
        if rows > 0 {
            launches(params, &mut memory);
        }
        let all: Vec<f32> = if size == 4 {
            memory.read(o_base, o.elements)
        } else {
            let to_f32 = if self.dtype == "f16" { F16::to_f32 } else { Bf16::to_f32 };
            memory.read::<u16>(o_base, o.elements).into_iter().map(to_f32).collect()
        };
        Output {
            o: o.places(self.first).map(|place| all[place]).collect(),
            lse: if self.without_lse { Vec::new() } else { memory.read(lse_at, rows) },
        }
    }

    /// Holds an output against the truth in f64.
    #[track_caller]
    pub fn check(&self, output: &Output) {
        let [q, k, v, _] = self.tensors();
        // Rounding of the type, of the exponential and of sums; scores of size x are only known to x * 2^-24.
        let unit: f64 = match self.dtype {
            "f32" => 2e-5,
            "f16" => 1e-3,
            _ => 8e-3,
        };
        for row in 0..self.batch * self.heads * self.seqlen_q {
            let (b, h, i) =
                (row / self.seqlen_q / self.heads, row / self.seqlen_q % self.heads, row % self.seqlen_q);
            let kv_head = h / (self.heads / self.kv_heads);
            let end = (if self.causal { i as i64 + self.offset() + 1 } else { i64::MAX })
                .clamp(0, self.seqlen_k as i64) as usize;
            let scores: Vec<f64> = (0..end)
                .map(|j| {
                    let dot: f64 = q
                        .row(b, i, h)
                        .iter()
                        .zip(k.row(b, j, kv_head))
                        .map(|(x, y)| f64::from(*x) * f64::from(*y))
                        .sum();
                    dot * f64::from(self.scale())
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            let lse = if end == 0 { f64::NEG_INFINITY } else { max + sum.ln() };
            for c in 0..self.head_dim_v {
                let weighted: f64 = (0..end)
                    .map(|j| (scores[j] - max).exp() / sum * f64::from(v.row(b, j, kv_head)[c]))
                    .sum();
                let got =
                    f64::from(output.o[((b * self.seqlen_q + i) * self.heads + h) * self.head_dim_v + c]);
                let same = (got - weighted).abs() <= unit || got.is_nan() && weighted.is_nan();
                assert!(
                    same,
                    "{self:?}: row {i} of head {h} of batch {b}, column {c}: {got}, not {weighted}"
                );
            }
            if let Some(&got) = output.lse.get(row) {
                let got = f64::from(got);
                let same = got == lse
                    || (got - lse).abs() <= 1e-4 * lse.abs().max(1.0)
                    || got.is_nan() && lse.is_nan();
                assert!(same, "{self:?}: LSE of row {i} of head {h} of batch {b}: {got}, not {lse}");
            }
        }
    }
}
