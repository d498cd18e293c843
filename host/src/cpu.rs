//! The CPU device: the whole contract of docs/semantics.md, tile by tile, in memory that grows with the sequence only.
//!
//! A tile is some query rows of one key head. It runs the online softmax over blocks of keys with whatever vectors
//! the CPU has; rayon spreads the tiles over the threads. Arithmetic is f32 whatever the element type.
//! A row's result depends on that row's inputs only: not on the batch, on other rows or on the number of threads.

mod bounds;
mod check;
mod dispatch;
mod math;
mod simd;
#[cfg(test)]
mod tests;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::element::Element;
use crate::error::Result;
use crate::extras::{Bias, Extras, Sequence, broadcast_index};
use crate::problem::{DType, Problem, Strides};
use bounds::Bounds;
use dispatch::InstructionSet;
use half::{bf16, f16};
use ndarray::{ArrayView1, ArrayView4, s};
use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;
use tile::{PANEL_VECTORS, Row, Shape, Source, Tile};

/// Most query rows of a tile: enough that loading a block of keys costs little, few enough that the tile
/// stays in the second-level cache.
const MAX_ROWS: usize = 192;

/// Attention forward on this machine's CPU.
///
/// `q`, `k`, `v` and `out` begin at the first element of their tensors, `problem` has the strides; `lse`, where it is
/// wanted, is `(batch, heads, seqlen_q)`, contiguous. Rows past a sequence's length are neither read nor written.
///
/// ```
/// use flash_attention::{Causal, DType, Extras, Problem, cpu};
/// let problem = Problem { causal: Causal::BottomRight, ..Problem::new(DType::F32, 1, 2, 1, 1) };
/// let (q, v) = ([0.0f32, 0.0], [1.0, 3.0]);
/// let (mut o, mut lse) = ([0.0; 2], [0.0; 2]);
/// cpu::forward(&problem, &q, &q, &v, &Extras::default(), &mut o, Some(&mut lse))?;
/// assert_eq!((o, lse[0]), ([1.0, 2.0], 0.0));
/// # Ok::<(), flash_attention::Error>(())
/// ```
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) where the numbers, the extras and the slices do not fit together; nothing is written then.
pub fn forward<T: Element>(
    problem: &Problem,
    q: &[T],
    k: &[T],
    v: &[T],
    extras: &Extras<'_>,
    out: &mut [T],
    lse: Option<&mut [f32]>,
) -> Result<()> {
    forward_with(InstructionSet::best(), problem, q, k, v, extras, out, lse)
}

/// As [`forward`], for tensors whose element type is known at run time only: each slice is the tensor's memory.
///
/// ```
/// use flash_attention::{DType, Extras, Problem, cpu};
/// // The type is known at run time only, as when tensors come from a file.
/// let problem = Problem::new(DType::F32, 1, 1, 1, 4);
/// let (values, mut o) = ([1.0f32, 2.0, 3.0, 4.0], [0.0f32; 4]);
/// // SAFETY: an f32 is four bytes, and any four bytes are an f32.
/// let (bytes, o_bytes) = unsafe { (values.align_to::<u8>().1, o.align_to_mut::<u8>().1) };
/// cpu::forward_bytes(&problem, bytes, bytes, bytes, &Extras::default(), o_bytes, None)?;
/// assert_eq!(o, values); // One key: its weight is 1.
/// # Ok::<(), flash_attention::Error>(())
/// ```
///
/// # Errors
/// As [`forward`], and where a slice is not aligned to its element type.
pub fn forward_bytes(
    problem: &Problem,
    q: &[u8],
    k: &[u8],
    v: &[u8],
    extras: &Extras<'_>,
    out: &mut [u8],
    lse: Option<&mut [f32]>,
) -> Result<()> {
    /// # Safety
    /// Every bit pattern must be a value of `T`.
    unsafe fn typed<T: Element>(
        problem: &Problem,
        [q, k, v]: [&[u8]; 3],
        extras: &Extras<'_>,
        out: &mut [u8],
        lse: Option<&mut [f32]>,
    ) -> Result<()> {
        let view = |name, bytes| {
            // SAFETY: the caller's promise.
            let (before, elements, after) = unsafe { <[u8]>::align_to::<T>(bytes) };
            check::whole_elements(name, before.len(), after.len(), size_of::<T>())?;
            Ok(elements)
        };
        let (q, k, v) = (view("q", q)?, view("k", k)?, view("v", v)?);
        // SAFETY: the caller's promise.
        let (before, out, after) = unsafe { out.align_to_mut::<T>() };
        check::whole_elements("out", before.len(), after.len(), size_of::<T>())?;
        forward(problem, q, k, v, extras, out, lse)
    }
    // SAFETY: the three types take any bit pattern.
    unsafe {
        match problem.dtype {
            DType::F16 => typed::<f16>(problem, [q, k, v], extras, out, lse),
            DType::Bf16 => typed::<bf16>(problem, [q, k, v], extras, out, lse),
            DType::F32 => typed::<f32>(problem, [q, k, v], extras, out, lse),
        }
    }
}

/// The instruction set that [`forward`] uses on this machine: `portable`, `avx2` or `avx512`.
///
/// ```
/// let known = ["portable", "avx2", "avx512"];
/// assert!(known.contains(&flash_attention::cpu::instruction_set()));
/// ```
pub fn instruction_set() -> &'static str {
    InstructionSet::best().name()
}

#[allow(clippy::too_many_arguments, reason = "the arguments of `forward` and one more")]
fn forward_with<T: Element>(
    set: InstructionSet,
    problem: &Problem,
    q: &[T],
    k: &[T],
    v: &[T],
    extras: &Extras<'_>,
    out: &mut [T],
    lse: Option<&mut [f32]>,
) -> Result<()> {
    check::call(problem, [q, k, v], extras, out, lse.as_deref())?;
    // A power of two goes into Q, where it costs nothing and rounds nothing: huge products of huge vectors then stay
    // in range wherever the scaled score does.
    let early = (0.5f32).powi((-problem.scale.log2().floor()).clamp(0.0, 126.0) as i32);
    let shape = Shape {
        head_dim: problem.head_dim,
        head_dim_v: problem.head_dim_v,
        scale: problem.scale / early,
        softcap: problem.softcap,
        alibi: extras.alibi_slopes.is_some(),
        addends: extras.bias.is_some() || extras.mask.is_some(),
    };
    let outputs = Outputs::new(out, lse);
    let sequences = extras.sequences(problem);
    let tasks = tasks(problem, &sequences, set);
    tasks.par_iter().for_each(|task| {
        let sequence = &sequences[task.sequence];
        let head =
            Head { problem, extras, q, k, v, early, sequence, kv_head: task.kv_head, outputs: &outputs };
        let rows = head.rows(task.rows.clone());
        set.run(Tile { shape, rows: &rows, source: &head });
    });
    Ok(())
}

/// A tile's place in the call.
struct Task {
    sequence: usize,
    kv_head: usize,
    /// Rows of all query heads of the key head, one head after the other.
    rows: Range<usize>,
}

/// Cuts the call into tiles. A tile crosses from one query head to the next of the same key head only where the
/// sequence is shorter than a panel.
fn tasks(problem: &Problem, sequences: &[Sequence], set: InstructionSet) -> Vec<Task> {
    let group = problem.heads / problem.kv_heads;
    let panel = PANEL_VECTORS * set.lanes();
    let panels: usize =
        sequences.iter().map(|s| (s.q.len() * group).div_ceil(panel) * problem.kv_heads).sum();
    // Four tiles a thread even out what masks make uneven.
    let panels_of_tile = (panels / (4 * rayon::current_num_threads())).clamp(1, MAX_ROWS / panel);
    let tile = panels_of_tile * panel;
    let mut tasks = Vec::new();
    for (n, sequence) in sequences.iter().enumerate() {
        let len = sequence.q.len();
        let part = if len < panel { len * group } else { len };
        for kv_head in 0..problem.kv_heads {
            for begin in (0..len * group).step_by(part.max(1)) {
                tasks.extend((begin..begin + part).step_by(tile).map(|first| Task {
                    sequence: n,
                    kv_head,
                    rows: first..(first + tile).min(begin + part),
                }));
            }
        }
    }
    tasks
}

/// One key head of one sequence, with the query heads that read it.
struct Head<'a, 'e, T> {
    problem: &'a Problem,
    extras: &'a Extras<'e>,
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    /// The scale's power of two.
    early: f32,
    sequence: &'a Sequence,
    kv_head: usize,
    outputs: &'a Outputs<'a, T>,
}

impl<T: Element> Head<'_, '_, T> {
    /// The rows of a task.
    fn rows(&self, range: Range<usize>) -> Vec<Row> {
        let bounds = Bounds::new(self.problem, self.sequence);
        let len = self.sequence.q.len();
        let group = self.problem.heads / self.problem.kv_heads;
        range
            .map(|n| {
                let (head, i) = (self.kv_head * group + n / len, n % len);
                Row {
                    head,
                    i,
                    keys: bounds.row(i),
                    center: bounds.center(i),
                    slope: self.extras.alibi_slopes.map_or(0.0, |slopes| slopes[head]),
                    sink: self.extras.sink.map_or(f32::NEG_INFINITY, |sink| sink[head]),
                }
            })
            .collect()
    }

    /// Where a row of a tensor begins.
    fn at(&self, strides: &Strides, row: usize, head: usize) -> usize {
        self.sequence.batch * strides.batch + row * strides.seq + head * strides.head
    }

    fn load(
        &self,
        from: &[T],
        strides: &Strides,
        block: Range<usize>,
        dim: usize,
        stride: usize,
        to: &mut [f32],
    ) {
        for (j, to) in block.zip(to.chunks_exact_mut(stride)) {
            let first = self.at(strides, self.sequence.k.start + j, self.kv_head);
            T::widen(&from[first..first + dim], &mut to[..dim]);
        }
    }
}

impl<T: Element> Source for Head<'_, '_, T> {
    fn query(&self, row: &Row, to: &mut [f32]) {
        let first = self.at(&self.problem.q, self.sequence.q.start + row.i, row.head);
        T::widen(&self.q[first..first + to.len()], to);
        to.iter_mut().for_each(|x| *x *= self.early);
    }

    fn keys(&self, block: Range<usize>, to: &mut [f32]) {
        let d = self.problem.head_dim;
        self.load(self.k, &self.problem.k, block, d, d, to);
    }

    fn values(&self, block: Range<usize>, stride: usize, to: &mut [f32]) {
        self.load(self.v, &self.problem.v, block, self.problem.head_dim_v, stride, to);
    }

    fn addends(&self, row: &Row, block: Range<usize>, stride: usize, to: &mut [f32]) -> bool {
        let at = (self.sequence.batch, row.head, row.i);
        let mask = self.extras.mask.map(|mask| Along::new(mask, at));
        let allowed = |j: usize| mask.as_ref().is_none_or(|mask| mask.at(j));
        let mut any = false;
        let mut fill = |addend: &dyn Fn(usize) -> f32| {
            for (n, j) in block.clone().enumerate() {
                let x = if allowed(j) { addend(j) } else { f32::NEG_INFINITY };
                any |= x != f32::NEG_INFINITY && row.keys.contains(&j);
                to[n * stride] = x;
            }
        };
        match self.extras.bias {
            None => fill(&|_| 0.0),
            Some(Bias::F32(bias)) => {
                let bias = Along::new(bias, at);
                fill(&|j| bias.at(j));
            }
            Some(Bias::F16(bias)) => {
                let bias = Along::new(bias, at);
                fill(&|j| bias.at(j).to_f32());
            }
            Some(Bias::Bf16(bias)) => {
                let bias = Along::new(bias, at);
                fill(&|j| bias.at(j).to_f32());
            }
        }
        any
    }

    fn store(&self, row: &Row, o: &[f32], lse: f32) {
        let i = self.sequence.q.start + row.i;
        let p = self.problem;
        let lse_at = (self.sequence.batch * p.heads + row.head) * p.seqlen_q + i;
        self.outputs.store(self.at(&p.o, i, row.head), o, lse_at, lse);
    }
}

/// One query row of a tensor that is repeated along its dimensions of 1.
struct Along<'a, X>(ArrayView1<'a, X>);

impl<'a, X: Copy> Along<'a, X> {
    fn new(tensor: ArrayView4<'a, X>, (batch, head, i): (usize, usize, usize)) -> Self {
        let (batch, head, i, _) = broadcast_index(tensor.dim(), (batch, head, i, 0));
        Along(tensor.slice_move(s![batch, head, i, ..]))
    }

    fn at(&self, j: usize) -> X {
        self.0[if self.0.len() == 1 { 0 } else { j }]
    }
}

/// O and LSE, written by many threads at once.
struct Outputs<'a, T> {
    o: *mut T,
    o_len: usize,
    lse: Option<(*mut f32, usize)>,
    borrowed: PhantomData<(&'a mut [T], &'a mut [f32])>,
}

// SAFETY: every row is stored by the one task that has it, and rows share no element: `check::call` saw to O, and the
// index of LSE names batch entry, head and row.
unsafe impl<T: Send> Sync for Outputs<'_, T> {}

impl<'a, T: Element> Outputs<'a, T> {
    fn new(out: &'a mut [T], lse: Option<&'a mut [f32]>) -> Self {
        Outputs {
            o: out.as_mut_ptr(),
            o_len: out.len(),
            lse: lse.map(|lse| (lse.as_mut_ptr(), lse.len())),
            borrowed: PhantomData,
        }
    }

    /// Stores a row of O that begins at element `first`, and its LSE as element `row`.
    fn store(&self, first: usize, o: &[f32], row: usize, lse: f32) {
        assert!(first + o.len() <= self.o_len);
        // SAFETY: inside the slice, and nobody else's row.
        T::narrow(o, unsafe { std::slice::from_raw_parts_mut(self.o.add(first), o.len()) });
        if let Some((all, len)) = self.lse {
            assert!(row < len);
            // SAFETY: as above.
            unsafe { *all.add(row) = lse };
        }
    }
}
