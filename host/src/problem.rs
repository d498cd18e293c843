//! What the caller wants, checked: shapes, strides, masks and modifiers of one call of attention forward.
//!
//! Tensors are `(batch, sequence, head, head dim)`; any strides, the last dimension contiguous. The meaning of every
//! field is docs/semantics.md's.

use crate::error::{Error, Result};
pub use flash_attention_kernels::config::DType;

/// Longest sequence: row numbers and mask offsets are 32-bit on the device, with room for a tile on top.
pub const MAX_SEQLEN: usize = (1 << 31) - 1024;
/// Largest head dimension.
pub const MAX_HEAD_DIM: usize = 256;

/// How a causal mask is aligned. Key `j` is allowed for query `i` where `j <= i + δ`.
///
/// ```text
/// 2 queries, 5 keys                     4 queries, 2 keys
///       BottomRight    TopLeft                BottomRight    TopLeft
///     j 0 1 2 3 4      0 1 2 3 4            j 0 1            0 1
/// i 0   x x x x .      x . . . .        i 0   . .            x .
/// i 1   x x x x x      x x . . .        i 1   . .            x x
///                                       i 2   x .            x x
///       δ = 3          δ = 0            i 3   x x            x x
///                                             δ = -2         δ = 0
/// ```
///
/// Rows without a key have O = 0 and LSE = -inf.
///
/// ```
/// use flash_attention::{Causal, DType, Problem};
/// let diagonal = |causal| Problem { seqlen_k: 10, causal, ..Problem::new(DType::F16, 1, 4, 1, 64) }.diagonal();
/// // Four queries, ten keys: which key does the first query stand at?
/// assert_eq!((diagonal(Causal::BottomRight), diagonal(Causal::TopLeft)), (6, 0));
/// assert_eq!(Causal::from(true), Causal::BottomRight);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Causal {
    /// No causal mask.
    #[default]
    No,
    /// δ = `seqlen_k - seqlen_q`: the last query sees the last key. FlashAttention since 2.1; what `causal(true)` means.
    BottomRight,
    /// δ = 0: the first query sees the first key. PyTorch's `is_causal`.
    TopLeft,
}

/// A sliding window: `i + δ - left <= j <= i + δ + right`, each side inclusive, `None` open. δ is that of [`Causal`],
/// also where there is no causal mask; with one, a key has to be inside of both.
///
/// ```text
/// 5 queries, 5 keys:  left 1, right 0    left 1, right 1    left open, right 1
///                   j 0 1 2 3 4          0 1 2 3 4          0 1 2 3 4
///               i 0   x . . . .          x x . . .          x x . . .
///               i 1   x x . . .          x x x . .          x x x . .
///               i 2   . x x . .          . x x x .          x x x x .
///               i 3   . . x x .          . . x x x          x x x x x
///               i 4   . . . x x          . . . x x          x x x x x
/// ```
///
/// ```
/// use flash_attention::Window;
/// // What a model calls a window of 4096: the row's own key and the 4095 before it.
/// let window = Window { left: Some(4096 - 1), right: Some(0) };
/// assert_ne!(window, Window::default()); // Open on both sides.
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// Keys to the left of the diagonal.
    pub left: Option<usize>,
    /// Keys to the right of the diagonal.
    pub right: Option<usize>,
}

/// Element strides of one tensor; the last dimension has stride 1.
///
/// ```
/// use flash_attention::Strides;
/// let (seqlen, heads, dim) = (100, 8, 64);
/// assert_eq!(Strides::bshd(seqlen, heads, dim), Strides { batch: 51200, seq: 512, head: 64 });
/// assert_eq!(Strides::bhsd(seqlen, heads, dim), Strides { batch: 51200, seq: 64, head: 6400 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// Elements from one batch entry to the next.
    pub batch: usize,
    /// Elements from one row of the sequence to the next.
    pub seq: usize,
    /// Elements from one head to the next.
    pub head: usize,
}

impl Strides {
    /// Contiguous `(batch, sequence, head, dim)`.
    pub const fn bshd(seqlen: usize, heads: usize, dim: usize) -> Self {
        Strides { batch: seqlen * heads * dim, seq: heads * dim, head: dim }
    }

    /// Contiguous `(batch, head, sequence, dim)`.
    pub const fn bhsd(seqlen: usize, heads: usize, dim: usize) -> Self {
        Strides { batch: seqlen * heads * dim, seq: dim, head: seqlen * dim }
    }
}

/// One call of attention forward: everything that decides what runs, and no memory.
///
/// ```
/// use flash_attention::{Causal, DType, Problem, Strides};
/// // 32 query heads share 8 key heads; one new token against a cache of 1000.
/// let problem = Problem {
///     seqlen_k: 1000,
///     kv_heads: 8,
///     k: Strides::bshd(1000, 8, 128),
///     v: Strides::bshd(1000, 8, 128),
///     causal: Causal::BottomRight,
///     ..Problem::new(DType::Bf16, 1, 1, 32, 128)
/// };
/// problem.check()?;
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Element type of Q, K, V and O.
    pub dtype: DType,
    /// Sequences.
    pub batch: usize,
    /// Query rows of a sequence.
    pub seqlen_q: usize,
    /// Key rows of a sequence.
    pub seqlen_k: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Columns of Q and K.
    pub head_dim: usize,
    /// Columns of V and O.
    pub head_dim_v: usize,
    /// Strides of Q.
    pub q: Strides,
    /// Strides of K.
    pub k: Strides,
    /// Strides of V.
    pub v: Strides,
    /// Strides of O.
    pub o: Strides,
    /// Factor on `q . k`, finite and positive.
    pub scale: f32,
    /// Causal mask.
    pub causal: Causal,
    /// Sliding window.
    pub window: Window,
    /// Cap `c` on the scores, `c * tanh(s / c)`; finite and positive.
    pub softcap: Option<f32>,
}

impl Problem {
    /// A dense problem with contiguous `(batch, sequence, head, dim)` tensors, no mask and the scale `1/sqrt(head_dim)`.
    pub fn new(dtype: DType, batch: usize, seqlen: usize, heads: usize, head_dim: usize) -> Self {
        let strides = Strides::bshd(seqlen, heads, head_dim);
        Problem {
            dtype,
            batch,
            seqlen_q: seqlen,
            seqlen_k: seqlen,
            heads,
            kv_heads: heads,
            head_dim,
            head_dim_v: head_dim,
            q: strides,
            k: strides,
            v: strides,
            o: strides,
            scale: default_scale(head_dim),
            causal: Causal::No,
            window: Window::default(),
            softcap: None,
        }
    }

    /// The offset δ of the masks: key `j` lies on the diagonal of query `i` where `j = i + δ`.
    ///
    /// ```
    /// use flash_attention::{DType, Problem};
    /// assert_eq!(Problem { seqlen_k: 10, ..Problem::new(DType::F16, 1, 4, 1, 64) }.diagonal(), 6);
    /// ```
    pub fn diagonal(&self) -> i64 {
        match self.causal {
            Causal::TopLeft => 0,
            _ => self.seqlen_k as i64 - self.seqlen_q as i64,
        }
    }

    /// The key head that query head `h` reads: neighbours share one.
    ///
    /// ```text
    /// heads = 6, kv_heads = 2:    query heads  0 1 2   3 4 5
    ///                             key heads      0       1
    /// ```
    ///
    /// ```
    /// use flash_attention::{DType, Problem};
    /// let problem = Problem { kv_heads: 2, ..Problem::new(DType::F16, 1, 128, 8, 64) };
    /// assert_eq!([0, 3, 4, 7].map(|head| problem.kv_head(head)), [0, 0, 1, 1]);
    /// ```
    pub fn kv_head(&self, h: usize) -> usize {
        h / (self.heads / self.kv_heads)
    }

    /// Floating-point operations of the two products over the allowed part of the score matrix:
    /// `2 * (head_dim + head_dim_v)` for each allowed pair.
    ///
    /// ```
    /// use flash_attention::{Causal, DType, Problem};
    /// let full = Problem::new(DType::F16, 2, 4, 8, 64);
    /// assert_eq!(full.flop(), 4.0 * (2 * 8 * 4 * 4 * 64) as f64);
    /// // 10 of 16 pairs lie on or below the diagonal.
    /// let causal = Problem { causal: Causal::BottomRight, ..full };
    /// assert_eq!(causal.flop() / full.flop(), 10.0 / 16.0);
    /// ```
    pub fn flop(&self) -> f64 {
        let delta = self.diagonal();
        let (s_q, s_k) = (self.seqlen_q as i64, self.seqlen_k as i64);
        let pairs: f64 = if self.causal == Causal::No && self.window == Window::default() {
            s_q as f64 * s_k as f64
        } else {
            (0..s_q)
                .map(|i| {
                    let right = match (self.causal, self.window.right) {
                        (Causal::No, None) => s_k - 1,
                        (Causal::No, Some(right)) => i + delta + right as i64,
                        (_, _) => i + delta,
                    };
                    let left = self.window.left.map_or(0, |left| i + delta - left as i64);
                    (right.min(s_k - 1) - left.max(0) + 1).max(0) as f64
                })
                .sum()
        };
        pairs * self.batch as f64 * self.heads as f64 * 2.0 * (self.head_dim + self.head_dim_v) as f64
    }

    /// Everything about the numbers alone that can never be right, whatever runs it.
    ///
    /// ```
    /// use flash_attention::{DType, Problem};
    /// let problem = Problem { kv_heads: 3, ..Problem::new(DType::F16, 1, 128, 8, 64) };
    /// let message = "heads is 8, but must be a multiple of kv_heads = 3; repeat or drop key heads until it is";
    /// assert_eq!(problem.check().unwrap_err().to_string(), message);
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] names the argument, its value, the limit and the way out.
    pub fn check(&self) -> Result<()> {
        let dims = [("head_dim", self.head_dim), ("head_dim_v", self.head_dim_v)];
        for (name, d) in dims {
            if d == 0 || d > MAX_HEAD_DIM {
                return Err(Error::invalid(
                    name,
                    d,
                    "must be 1 to 256",
                    "split the head or use another attention",
                ));
            }
            if self.dtype != DType::F32 && d % 8 != 0 {
                return Err(Error::invalid(
                    name,
                    d,
                    format!("must be a multiple of 8 for {}", self.dtype.name()),
                    "pad the head with zeros or use f32",
                ));
            }
        }
        for (name, h) in [("heads", self.heads), ("kv_heads", self.kv_heads)] {
            if h == 0 {
                return Err(Error::invalid(name, h, "must be at least 1", "check the tensor's shape"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::invalid(
                "heads",
                self.heads,
                format!("must be a multiple of kv_heads = {}", self.kv_heads),
                "repeat or drop key heads until it is",
            ));
        }
        for (name, s) in [("seqlen_q", self.seqlen_q), ("seqlen_k", self.seqlen_k)] {
            if s > MAX_SEQLEN {
                return Err(Error::invalid(
                    name,
                    s,
                    format!("must be at most {MAX_SEQLEN}"),
                    "split the sequence",
                ));
            }
        }
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(Error::invalid(
                "scale",
                self.scale,
                "must be finite and greater than 0",
                "leave it out for 1/sqrt(head_dim)",
            ));
        }
        if let Some(cap) = self.softcap
            && !(cap.is_finite() && cap > 0.0)
        {
            return Err(Error::invalid(
                "softcap",
                cap,
                "must be finite and greater than 0",
                "leave it out for no cap",
            ));
        }
        Ok(())
    }
}

/// `1/sqrt(head_dim)`.
///
/// ```
/// assert_eq!(flash_attention::problem::default_scale(64), 0.125);
/// ```
pub fn default_scale(head_dim: usize) -> f32 {
    (1.0 / (head_dim.max(1) as f64).sqrt()) as f32
}
