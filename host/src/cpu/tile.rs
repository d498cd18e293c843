//! One tile: some query rows of one key head, from Q to O, block of keys by block of keys.
//!
//! Everything is transposed: the lanes of a vector are query rows, so that maximum, sum and rescaling of the online
//! softmax are plain vector operations, and single elements of K and V are broadcast from where they lie. Q and O are
//! transposed once for the whole tile.
//!
//! A row's result does not depend on the tile that it is in: blocks of keys begin at multiples of [`BLOCK`], a row is
//! always the same chain of operations, and a block that it does not see changes nothing.

use super::bounds::Sight;
use super::dispatch::Task;
use super::math::{exp, tanh};
use super::simd::Simd;
use std::ops::Range;

/// Keys of a block.
pub(super) const BLOCK: usize = 96;
/// Vectors side by side in a panel of query rows; one where all rows fit into one vector.
pub(super) const PANEL_VECTORS: usize = 3;
/// What the rows of a register tile divide, for zeros behind the last key and the last column of V.
const ROUND_TO: usize = 8;

/// One query row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Query head.
    pub head: usize,
    /// Row of the sequence.
    pub i: usize,
    /// Keys that it may see, but for mask tensors.
    pub keys: Range<usize>,
    /// Key on its diagonal.
    pub center: i64,
    /// ALiBi slope.
    pub slope: f32,
    /// Logit that only the denominator sees; none is `-inf`.
    pub sink: f32,
}

/// What all rows of a call share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Columns of Q and K.
    pub head_dim: usize,
    /// Columns of V and O.
    pub head_dim_v: usize,
    /// What is left of the scale after Q had its part.
    pub scale: f32,
    /// Cap on the scores.
    pub softcap: Option<f32>,
    /// Whether rows have slopes.
    pub alibi: bool,
    /// Whether there is a bias or a mask tensor.
    pub addends: bool,
}

/// The tensors of one key head of one sequence, whatever their type and layout.
pub(super) trait Source {
    /// The row of Q with its part of the scale.
    fn query(&self, row: &Row, to: &mut [f32]);
    /// Rows of K, one after the other.
    fn keys(&self, block: Range<usize>, to: &mut [f32]);
    /// Rows of V, `stride` apart.
    fn values(&self, block: Range<usize>, stride: usize, to: &mut [f32]);
    /// What is added to the scores of the keys `block`, `-inf` where the key is masked, `stride` apart. False where
    /// the row sees none of them.
    fn addends(&self, row: &Row, block: Range<usize>, stride: usize, to: &mut [f32]) -> bool;
    /// Takes the finished row.
    fn store(&self, row: &Row, o: &[f32], lse: f32);
}

/// Computes the rows of one tile.
pub(super) struct Tile<'a> {
    /// What all rows share.
    pub shape: Shape,
    /// The rows.
    pub rows: &'a [Row],
    /// Their tensors.
    pub source: &'a dyn Source,
}

impl Task for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let overflowed = self.pass::<S>(simd, self.rows, 1.0);
        if !overflowed.is_empty() {
            // Unnormalised sums of huge values left the range, and the result need not.
            self.pass::<S>(simd, &overflowed, (0.5f32).powi(64));
        }
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn pass<S: Simd>(&self, simd: S, rows: &[Row], value_scale: f32) -> Vec<Row> {
        if rows.len() <= S::LANES {
            Run::<S, 1>::new(simd, self, rows, value_scale).run::<8>()
        } else if S::MANY_REGISTERS {
            Run::<S, PANEL_VECTORS>::new(simd, self, rows, value_scale).run::<8>()
        } else {
            Run::<S, PANEL_VECTORS>::new(simd, self, rows, value_scale).run::<4>()
        }
    }
}

/// `C` vectors of query rows.
type Lanes<S, const C: usize> = [<S as Simd>::Vector; C];

/// A tile at work. The rows are cut into panels of `C` vectors.
struct Run<'a, S: Simd, const C: usize> {
    simd: S,
    shape: Shape,
    source: &'a dyn Source,
    rows: &'a [Row],
    value_scale: f32,
    /// Columns of O with the zeros behind them.
    columns: usize,
    /// Q, transposed: `head_dim` lanes a panel.
    q: Vec<Lanes<S, C>>,
    /// O, transposed and not divided by its sum yet: `columns` lanes a panel.
    o: Vec<Lanes<S, C>>,
    /// Largest score so far, for each panel.
    max: Vec<Lanes<S, C>>,
    /// Sum of the weights so far, for each panel.
    sum: Vec<Lanes<S, C>>,
    /// Scores, then weights, of one panel and block.
    scores: Vec<Lanes<S, C>>,
    /// What is added to them.
    addends: Vec<Lanes<S, C>>,
    /// A block of K.
    k: Vec<f32>,
    /// A block of V.
    v: Vec<f32>,
}

impl<'a, S: Simd, const C: usize> Run<'a, S, C> {
    const WIDTH: usize = C * S::LANES;

    #[inline(always)]
    fn new(simd: S, tile: &Tile<'a>, rows: &'a [Row], value_scale: f32) -> Self {
        let shape = tile.shape;
        let columns = shape.head_dim_v.next_multiple_of(ROUND_TO);
        let panels = rows.len().div_ceil(Self::WIDTH);
        let filled = |n: usize, x: f32| vec![[simd.splat(x); C]; n];
        let mut run = Run {
            simd,
            shape,
            source: tile.source,
            rows,
            value_scale,
            columns,
            q: filled(panels * shape.head_dim, 0.0),
            o: filled(panels * columns, 0.0),
            max: filled(panels, f32::NEG_INFINITY),
            sum: filled(panels, 0.0),
            scores: filled(BLOCK, 0.0),
            addends: filled(if shape.addends { BLOCK } else { 0 }, 0.0),
            k: vec![0.0; BLOCK * shape.head_dim],
            v: vec![0.0; BLOCK * columns],
        };
        run.load_rows();
        run
    }

    /// Transposes Q, and lets the sinks be the first logits: a key without a value.
    fn load_rows(&mut self) {
        let mut query = vec![0.0; self.shape.head_dim];
        let (q, max, sum) =
            (S::lanes_mut(&mut self.q), S::lanes_mut(&mut self.max), S::lanes_mut(&mut self.sum));
        for (n, row) in self.rows.iter().enumerate() {
            let (panel, lane) = (n / Self::WIDTH, n % Self::WIDTH);
            self.source.query(row, &mut query);
            let first = panel * self.shape.head_dim * Self::WIDTH + lane;
            for (to, &x) in q[first..].iter_mut().step_by(Self::WIDTH).zip(&query) {
                *to = x;
            }
            if row.sink.is_finite() {
                (max[n], sum[n]) = (row.sink, 1.0);
            } else if row.sink != f32::NEG_INFINITY {
                sum[n] = f32::NAN;
            }
        }
    }

    /// All blocks of keys, with register tiles of `R` keys or columns. Gives back the rows whose sums left the range
    /// of f32.
    #[inline(always)]
    fn run<const R: usize>(mut self) -> Vec<Row> {
        let all = span(self.rows);
        for n in all.start / BLOCK..all.end.div_ceil(BLOCK) {
            let block = n * BLOCK..(n * BLOCK + BLOCK).min(all.end);
            let mut loaded = false;
            for (panel, rows) in self.rows.chunks(Self::WIDTH).enumerate() {
                let seen = block.start..block.end.min(span(rows).end);
                let sight = Sight::of(rows.iter().map(|row| row.keys.clone()), seen.clone());
                if sight == Sight::Nothing || (self.shape.addends && !self.load_addends(rows, &seen)) {
                    continue;
                }
                if !loaded {
                    self.load_block(&block);
                    loaded = true;
                }
                self.score::<R>(panel, seen.len());
                self.modify(rows, &seen, sight);
                let rescale = self.softmax(panel, seen.len());
                self.accumulate::<R>(panel, seen.len(), rescale);
            }
        }
        self.finish()
    }

    fn load_addends(&mut self, rows: &[Row], block: &Range<usize>) -> bool {
        let to = S::lanes_mut(&mut self.addends);
        let mut any = false;
        for (lane, row) in rows.iter().enumerate() {
            any |= self.source.addends(row, block.clone(), Self::WIDTH, &mut to[lane..]);
        }
        any
    }

    fn load_block(&mut self, block: &Range<usize>) {
        let (d, columns) = (self.shape.head_dim, self.columns);
        self.source.keys(block.clone(), &mut self.k[..block.len() * d]);
        // Keys that only fill up a register tile: whatever an earlier block left there is finite or not, but nobody
        // reads their scores.
        self.source.values(block.clone(), columns, &mut self.v[..block.len() * columns]);
        if self.value_scale != 1.0 {
            self.v.iter_mut().for_each(|x| *x *= self.value_scale);
        }
    }

    /// Scores of the first `keys` keys of the block: `K Q^T` times what is left of the scale.
    #[inline(always)]
    fn score<const R: usize>(&mut self, panel: usize, keys: usize) {
        let d = self.shape.head_dim;
        let q = &self.q[panel * d..(panel + 1) * d];
        let scale = self.simd.splat(self.shape.scale);
        for first in (0..keys).step_by(R) {
            let sums = product::<S, R, C>(self.simd, q, &self.k[first * d..(first + R) * d], d, 1);
            for (to, sum) in self.scores[first..first + R].iter_mut().zip(sums) {
                *to = sum.map(|x| self.simd.mul(x, scale));
            }
        }
    }

    /// Cap, ALiBi, bias and masks, in this order.
    #[inline(always)]
    fn modify(&mut self, rows: &[Row], block: &Range<usize>, sight: Sight) {
        let (simd, scores) = (self.simd, &mut self.scores[..block.len()]);
        let minus_infinity = simd.splat(f32::NEG_INFINITY);
        if let Some(cap) = self.shape.softcap {
            let cap = simd.splat(cap);
            for s in scores.iter_mut().flatten() {
                *s = simd.mul(cap, tanh(simd, simd.div(*s, cap)));
            }
        }
        if self.shape.alibi {
            let center = Self::gather(simd, rows, |row| (row.center - block.start as i64) as f32);
            let slope = Self::gather(simd, rows, |row| -row.slope);
            for (j, s) in scores.iter_mut().enumerate() {
                let j = simd.splat(j as f32);
                for c in 0..C {
                    let offset = simd.sub(center[c], j);
                    let distance = simd.max(offset, simd.sub(j, center[c]));
                    s[c] = simd.mul_add(slope[c], distance, s[c]);
                }
            }
        }
        if self.shape.addends {
            let finite = simd.splat(f32::MIN);
            for (s, addend) in scores.iter_mut().flatten().zip(self.addends.iter().flatten()) {
                *s = simd.select_less(*addend, finite, minus_infinity, simd.add(*s, *addend));
            }
        }
        if sight == Sight::Part {
            let within = |j: usize| j.clamp(block.start, block.end) - block.start;
            let begin = Self::gather(simd, rows, |row| within(row.keys.start) as f32);
            let end = Self::gather(simd, rows, |row| within(row.keys.end) as f32);
            for (j, s) in scores.iter_mut().enumerate() {
                let j = simd.splat(j as f32);
                for c in 0..C {
                    let before = simd.select_less(j, end[c], s[c], minus_infinity);
                    s[c] = simd.select_less(j, begin[c], minus_infinity, before);
                }
            }
        }
    }

    /// One value of each row of a panel; 0 in the lanes behind the last row.
    #[inline(always)]
    fn gather(simd: S, rows: &[Row], value: impl Fn(&Row) -> f32) -> Lanes<S, C> {
        let mut lanes = [[simd.splat(0.0); C]];
        for (to, row) in S::lanes_mut(&mut lanes).iter_mut().zip(rows) {
            *to = value(row);
        }
        lanes[0]
    }

    /// Makes weights of the scores and brings maximum and sum up to date. Gives back the factor on the sums so far.
    #[inline(always)]
    fn softmax(&mut self, panel: usize, keys: usize) -> Lanes<S, C> {
        let simd = self.simd;
        let scores = &mut self.scores[..keys];
        let old = self.max[panel];
        let mut max = old;
        for s in scores.iter() {
            for c in 0..C {
                // A NaN score leaves the maximum alone and gets to the sum as a weight.
                max[c] = simd.max(s[c], max[c]);
            }
        }
        self.max[panel] = max;
        // Before the first allowed key anything finite will do: all weights are 0 then, and -inf - -inf is NaN.
        let finite = simd.splat(f32::MIN);
        let shift = max.map(|m| simd.select_less(m, finite, simd.splat(0.0), m));
        let mut sum = [simd.splat(0.0); C];
        for s in scores.iter_mut() {
            for c in 0..C {
                s[c] = exp(simd, simd.sub(s[c], shift[c]));
                sum[c] = simd.add(sum[c], s[c]);
            }
        }
        let mut rescale = old;
        for c in 0..C {
            rescale[c] = exp(simd, simd.sub(old[c], shift[c]));
            self.sum[panel][c] = simd.mul_add(self.sum[panel][c], rescale[c], sum[c]);
        }
        rescale
    }

    /// `O^T = O^T * rescale + V^T P^T`. The block's own sum is made first: short chains of additions lose less.
    #[inline(always)]
    fn accumulate<const R: usize>(&mut self, panel: usize, keys: usize, rescale: Lanes<S, C>) {
        let columns = self.columns;
        let weights = &self.scores[..keys];
        let o = &mut self.o[panel * columns..(panel + 1) * columns];
        for (first, o) in o.chunks_exact_mut(R).enumerate() {
            let v = &self.v[first * R..(keys - 1) * columns + first * R + R];
            let sums = product::<S, R, C>(self.simd, weights, v, 1, columns);
            for (o, sum) in o.iter_mut().zip(sums) {
                for c in 0..C {
                    o[c] = self.simd.mul_add(o[c], rescale[c], sum[c]);
                }
            }
        }
    }

    /// Divides, and hands out the rows.
    fn finish(self) -> Vec<Row> {
        let (o, max, sum) = (S::lanes(&self.o), S::lanes(&self.max), S::lanes(&self.sum));
        let mut overflowed = Vec::new();
        let mut output = vec![0.0; self.shape.head_dim_v];
        for (n, row) in self.rows.iter().enumerate() {
            let first = n / Self::WIDTH * self.columns * Self::WIDTH + n % Self::WIDTH;
            let unnormalised = o[first..].iter().step_by(Self::WIDTH);
            // A row without keys is 0, not 0 / 0.
            let divisor = if sum[n] == 0.0 { 1.0 } else { sum[n] };
            for (to, &x) in output.iter_mut().zip(unnormalised) {
                // The 0 makes -0 the same 0 as that of a row whose empty blocks were skipped.
                *to = x / divisor / self.value_scale + 0.0;
            }
            if self.value_scale == 1.0 && !divisor.is_nan() && output.iter().any(|x| !x.is_finite()) {
                overflowed.push(row.clone());
            } else {
                self.source.store(row, &output, max[n] + sum[n].ln());
            }
        }
        overflowed
    }
}

/// The keys that any of the rows may see, and those between.
fn span(rows: &[Row]) -> Range<usize> {
    let seen = rows.iter().map(|row| &row.keys).filter(|keys| !keys.is_empty());
    let begin = seen.clone().map(|keys| keys.start).min().unwrap_or(0);
    begin..seen.map(|keys| keys.end).max().unwrap_or(0)
}

/// `R` times `C` vectors of sums over the steps `t`: `lanes[t][c] * scalars[t * step + r * row]`.
#[inline(always)]
fn product<S: Simd, const R: usize, const C: usize>(
    simd: S,
    lanes: &[Lanes<S, C>],
    scalars: &[f32],
    row: usize,
    step: usize,
) -> [Lanes<S, C>; R] {
    let mut sums = [[simd.splat(0.0); C]; R];
    assert!(lanes.is_empty() || (lanes.len() - 1) * step + (R - 1) * row < scalars.len());
    for (t, lane) in lanes.iter().enumerate() {
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the largest index was compared with the length above.
            let x = simd.splat(unsafe { *scalars.get_unchecked(t * step + r * row) });
            for c in 0..C {
                sums[c] = simd.mul_add(lane[c], x, sums[c]);
            }
        }
    }
    sums
}
