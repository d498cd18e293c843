//! What a call brings beside Q, K and V: tensors that change the scores, and the lengths of the sequences.

use crate::error::{Error, Result};
use crate::problem::{Causal, DType, Problem};
use half::{bf16, f16};
use ndarray::ArrayView4;
use std::ops::Range;

/// A tensor that is added to the scores: `(batch or 1, heads or 1, seqlen_q or 1, seqlen_k or 1)`, in f32 or in the
/// type of Q. `-inf` is the same as a false mask.
///
/// ```
/// use flash_attention::{Bias, DType};
/// use ndarray::Array4;
/// let bias = Array4::from_shape_fn((1, 1, 3, 3), |(_, _, i, j)| if j <= i { 0.0 } else { f32::NEG_INFINITY });
/// let bias = Bias::F32(bias.view());
/// assert_eq!((bias.dtype(), bias.dim()), (DType::F32, (1, 1, 3, 3)));
/// // The same for every batch entry and head: dimensions of 1 repeat.
/// assert_eq!(bias.at(5, 7, 0, 2), f32::NEG_INFINITY);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Bias<'a> {
    /// In f32, beside Q, K and V of any type.
    F32(ArrayView4<'a, f32>),
    /// In f16, beside f16 only.
    F16(ArrayView4<'a, f16>),
    /// In bf16, beside bf16 only.
    Bf16(ArrayView4<'a, bf16>),
}

impl Bias<'_> {
    /// The element type of the tensor.
    pub fn dtype(&self) -> DType {
        match self {
            Bias::F32(_) => DType::F32,
            Bias::F16(_) => DType::F16,
            Bias::Bf16(_) => DType::Bf16,
        }
    }

    /// The tensor's own shape, before it is broadcast.
    pub fn dim(&self) -> (usize, usize, usize, usize) {
        match self {
            Bias::F32(t) => t.dim(),
            Bias::F16(t) => t.dim(),
            Bias::Bf16(t) => t.dim(),
        }
    }

    /// What is added to the score of query row `i` and key `j`; dimensions of 1 hold for every index.
    pub fn at(&self, batch: usize, head: usize, i: usize, j: usize) -> f32 {
        let index = broadcast_index(self.dim(), (batch, head, i, j));
        match self {
            Bias::F32(t) => t[index],
            Bias::F16(t) => t[index].to_f32(),
            Bias::Bf16(t) => t[index].to_f32(),
        }
    }
}

/// Tensors and lengths of one call, beside the numbers of a [`Problem`]. All are optional; `Extras::default()` is the
/// plain dense call.
///
/// With cumulative lengths the tensors are packed, `(total, heads, head dim)`. The [`Problem`] then has `batch` 1 and
/// the totals as `seqlen_q` and `seqlen_k`, and the number of sequences is `cu_seqlens_q.len() - 1`.
///
/// ```
/// use flash_attention::{Attention, Device, Extras, Stream, Tensor};
/// // A padded batch of two sequences with 3 and 1 keys; what lies behind them may be anything.
/// let q = Tensor::from_slice(Device::Cpu, &[0.0f32; 2], [2, 1, 1, 1])?;
/// let k = Tensor::from_slice(Device::Cpu, &[0.0f32; 6], [2, 3, 1, 1])?;
/// let v = Tensor::from_slice(Device::Cpu, &[1.0f32, 2.0, 3.0, 7.0, f32::NAN, f32::NAN], [2, 3, 1, 1])?;
/// let extras = Extras { lengths_k: Some(&[3, 1]), ..Extras::default() };
/// let output = Attention::forward(&q, &k, &v).extras(extras).run(&Stream::new(Device::Cpu)?)?;
/// assert_eq!(output.o.to_vec()?, [2.0, 7.0]);
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// One slope for each query head: `s -= slope * |i + δ - j|`.
    pub alibi_slopes: Option<&'a [f32]>,
    /// Added to the scores. Not for packed tensors.
    pub bias: Option<Bias<'a>>,
    /// True where the query may attend to the key: `(batch or 1, heads or 1, seqlen_q or 1, seqlen_k or 1)`. Not for
    /// packed tensors.
    pub mask: Option<ArrayView4<'a, bool>>,
    /// One logit for each query head that only the denominator sees; neither scaled nor capped.
    pub sink: Option<&'a [f32]>,
    /// Rows of Q that count, for each batch entry of a padded tensor.
    pub lengths_q: Option<&'a [i32]>,
    /// Rows of K and V that count, for each batch entry of a padded tensor.
    pub lengths_k: Option<&'a [i32]>,
    /// Where each sequence begins in a packed Q, and where the last one ends.
    pub cu_seqlens_q: Option<&'a [i32]>,
    /// Where each sequence begins in packed K and V, and where the last one ends.
    pub cu_seqlens_k: Option<&'a [i32]>,
}

/// Where one sequence lies in the tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Batch index in the tensors: 0 where they are packed.
    pub batch: usize,
    /// Rows of Q and O.
    pub q: Range<usize>,
    /// Rows of K and V.
    pub k: Range<usize>,
}

impl Sequence {
    /// The offset δ of the masks, from the sequence's own lengths: key `j` lies on the diagonal of query row `i` where
    /// `j = i + δ`, both counted from the sequence's first row.
    ///
    /// ```
    /// use flash_attention::{Causal, extras::Sequence};
    /// let sequence = Sequence { batch: 0, q: 10..14, k: 20..30 };
    /// assert_eq!(sequence.diagonal(Causal::BottomRight), 6); // 10 keys, 4 queries.
    /// ```
    pub fn diagonal(&self, causal: Causal) -> i64 {
        match causal {
            Causal::TopLeft => 0,
            Causal::No | Causal::BottomRight => self.k.len() as i64 - self.q.len() as i64,
        }
    }
}

impl<'a> Extras<'a> {
    /// Whether the tensors are packed.
    pub fn is_packed(&self) -> bool {
        self.cu_seqlens_q.is_some() || self.cu_seqlens_k.is_some()
    }

    /// The sequences of the call, in order. [`Extras::check`] must have passed.
    ///
    /// ```
    /// use flash_attention::{DType, Extras, Problem};
    /// // Three sequences packed into 9 rows: 4, 0 and 5 of them.
    /// let problem = Problem::new(DType::F16, 1, 9, 1, 64);
    /// let cu = [0, 4, 4, 9];
    /// let extras = Extras { cu_seqlens_q: Some(&cu), cu_seqlens_k: Some(&cu), ..Extras::default() };
    /// extras.check(&problem)?;
    /// let rows: Vec<_> = extras.sequences(&problem).into_iter().map(|sequence| sequence.q).collect();
    /// assert_eq!(rows, [0..4, 4..4, 4..9]);
    /// # Ok::<(), flash_attention::Error>(())
    /// ```
    pub fn sequences(&self, problem: &Problem) -> Vec<Sequence> {
        if let (Some(cu_q), Some(cu_k)) = (self.cu_seqlens_q, self.cu_seqlens_k) {
            let part = |cu: &[i32], n: usize| cu[n] as usize..cu[n + 1] as usize;
            return (0..cu_q.len() - 1)
                .map(|n| Sequence { batch: 0, q: part(cu_q, n), k: part(cu_k, n) })
                .collect();
        }
        let length = |lengths: Option<&[i32]>, b: usize, all: usize| lengths.map_or(all, |l| l[b] as usize);
        (0..problem.batch)
            .map(|b| Sequence {
                batch: b,
                q: 0..length(self.lengths_q, b, problem.seqlen_q),
                k: 0..length(self.lengths_k, b, problem.seqlen_k),
            })
            .collect()
    }

    /// Everything about the extras that can be wrong beside `problem`.
    ///
    /// ```
    /// use flash_attention::{DType, Extras, Problem};
    /// let problem = Problem::new(DType::F16, 2, 128, 8, 64);
    /// let extras = Extras { lengths_k: Some(&[128, 129]), ..Extras::default() };
    /// let message = "lengths_k is 129, but must be 0 to 128, the tensor's sequence length; check the lengths";
    /// assert_eq!(extras.check(&problem).unwrap_err().to_string(), message);
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] names the argument, its value, the limit and the way out.
    pub fn check(&self, problem: &Problem) -> Result<()> {
        for (name, values) in [("alibi_slopes", self.alibi_slopes), ("sink", self.sink)] {
            let Some(values) = values else { continue };
            if values.len() != problem.heads {
                return Err(Error::invalid(
                    name,
                    format!("{} values", values.len()),
                    format!("there must be one for each of the {} query heads", problem.heads),
                    "give one value a head",
                ));
            }
        }
        if let Some(bias) = &self.bias {
            self.check_tensor("bias", bias.dim(), problem)?;
            if bias.dtype() != DType::F32 && bias.dtype() != problem.dtype {
                return Err(Error::invalid(
                    "bias",
                    bias.dtype().name(),
                    format!("must be f32 or the type of Q, {}", problem.dtype.name()),
                    "convert it to f32",
                ));
            }
        }
        if let Some(mask) = &self.mask {
            self.check_tensor("mask", mask.dim(), problem)?;
        }
        for (name, lengths, limit) in
            [("lengths_q", self.lengths_q, problem.seqlen_q), ("lengths_k", self.lengths_k, problem.seqlen_k)]
        {
            if let Some(lengths) = lengths {
                self.check_lengths(name, lengths, limit, problem)?;
            }
        }
        self.check_packed(problem)
    }

    fn check_tensor(
        &self,
        name: &'static str,
        dim: (usize, usize, usize, usize),
        problem: &Problem,
    ) -> Result<()> {
        if self.is_packed() {
            return Err(Error::invalid(
                name,
                format!("{dim:?}"),
                "must be left out with cumulative lengths",
                "pad the sequences and use lengths_q and lengths_k",
            ));
        }
        let whole = (problem.batch, problem.heads, problem.seqlen_q, problem.seqlen_k);
        let fits = |mine: usize, all: usize| mine == all || mine == 1;
        if fits(dim.0, whole.0) && fits(dim.1, whole.1) && fits(dim.2, whole.2) && fits(dim.3, whole.3) {
            return Ok(());
        }
        Err(Error::invalid(
            name,
            format!("{dim:?}"),
            format!("must be (batch, heads, seqlen_q, seqlen_k) = {whole:?}, or 1 in any of them"),
            "reshape it or leave dimensions at 1 to repeat them",
        ))
    }

    fn check_lengths(
        &self,
        name: &'static str,
        lengths: &[i32],
        limit: usize,
        problem: &Problem,
    ) -> Result<()> {
        if self.is_packed() {
            return Err(Error::invalid(
                name,
                format!("{} values", lengths.len()),
                "must be left out with cumulative lengths",
                "give either cumulative lengths or lengths",
            ));
        }
        if lengths.len() != problem.batch {
            return Err(Error::invalid(
                name,
                format!("{} values", lengths.len()),
                format!("there must be one for each of the {} batch entries", problem.batch),
                "give one length a sequence",
            ));
        }
        match lengths.iter().find(|&&l| l < 0 || l as usize > limit) {
            Some(l) => Err(Error::invalid(
                name,
                l,
                format!("must be 0 to {limit}, the tensor's sequence length"),
                "check the lengths",
            )),
            None => Ok(()),
        }
    }

    fn check_packed(&self, problem: &Problem) -> Result<()> {
        let (cu_q, cu_k) = match (self.cu_seqlens_q, self.cu_seqlens_k) {
            (None, None) => return Ok(()),
            (Some(cu_q), Some(cu_k)) => (cu_q, cu_k),
            (Some(_), None) => return Err(missing_pair("cu_seqlens_k")),
            (None, Some(_)) => return Err(missing_pair("cu_seqlens_q")),
        };
        if problem.batch != 1 {
            return Err(Error::invalid(
                "batch",
                problem.batch,
                "must be 1 with cumulative lengths",
                "pack the sequences into one (total, heads, head dim) tensor",
            ));
        }
        if cu_q.len() != cu_k.len() {
            return Err(Error::invalid(
                "cu_seqlens_k",
                format!("{} values", cu_k.len()),
                format!("must be as long as cu_seqlens_q, {}", cu_q.len()),
                "give one more value than there are sequences to both",
            ));
        }
        check_cumulative("cu_seqlens_q", cu_q, problem.seqlen_q)?;
        check_cumulative("cu_seqlens_k", cu_k, problem.seqlen_k)
    }
}

fn missing_pair(name: &'static str) -> Error {
    Error::invalid(name, "left out", "must come with its partner", "give both cumulative lengths or none")
}

fn check_cumulative(name: &'static str, cu: &[i32], total: usize) -> Result<()> {
    let Some((&first, &last)) = cu.first().zip(cu.last()) else {
        return Err(Error::invalid(name, "empty", "must hold at least the 0", "begin it with 0"));
    };
    if first != 0 {
        return Err(Error::invalid(
            name,
            format!("{first} at its start"),
            "must begin with 0",
            "prepend a 0",
        ));
    }
    if let Some(n) = cu.windows(2).position(|pair| pair[1] < pair[0]) {
        return Err(Error::invalid(
            name,
            format!("{} after {}", cu[n + 1], cu[n]),
            "must never fall",
            "give the running sum of the lengths",
        ));
    }
    if last as usize > total {
        return Err(Error::invalid(
            name,
            format!("{last} at its end"),
            format!("must end at or before the tensor's {total} rows"),
            "check the lengths or the tensor's shape",
        ));
    }
    Ok(())
}

/// The index into a tensor of shape `dim` that is repeated along its dimensions of 1.
pub(crate) fn broadcast_index(
    dim: (usize, usize, usize, usize),
    index: (usize, usize, usize, usize),
) -> (usize, usize, usize, usize) {
    let pick = |n: usize, i: usize| if n == 1 { 0 } else { i };
    (pick(dim.0, index.0), pick(dim.1, index.1), pick(dim.2, index.2), pick(dim.3, index.3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::Array4;

    fn problem() -> Problem {
        Problem { seqlen_k: 7, ..Problem::new(DType::F16, 2, 5, 4, 64) }
    }

    fn message(extras: Extras<'_>, problem: Problem) -> String {
        extras.check(&problem).unwrap_err().to_string()
    }

    #[test]
    fn tensors_of_wrong_shape_are_refused_by_name() {
        assert_eq!(
            message(Extras { sink: Some(&[0.0; 3]), ..Default::default() }, problem()),
            "sink is 3 values, but there must be one for each of the 4 query heads; give one value a head"
        );
        assert!(
            message(Extras { alibi_slopes: Some(&[0.0; 5]), ..Default::default() }, problem())
                .starts_with("alibi_slopes is 5 values, but ")
        );
        let mask = Array4::from_elem((2, 4, 7, 5), true);
        assert_eq!(
            message(Extras { mask: Some(mask.view()), ..Default::default() }, problem()),
            "mask is (2, 4, 7, 5), but must be (batch, heads, seqlen_q, seqlen_k) = (2, 4, 5, 7), or 1 in any of \
             them; reshape it or leave dimensions at 1 to repeat them"
        );
        let bias = Array4::from_elem((1, 1, 1, 7), bf16::ZERO);
        assert_eq!(
            message(Extras { bias: Some(Bias::Bf16(bias.view())), ..Default::default() }, problem()),
            "bias is bf16, but must be f32 or the type of Q, f16; convert it to f32"
        );
    }

    #[test]
    fn lengths_outside_the_tensor_are_refused() {
        let with = |l| Extras { lengths_k: Some(l), ..Default::default() };
        assert_eq!(
            message(with(&[3, 8]), problem()),
            "lengths_k is 8, but must be 0 to 7, the tensor's sequence length; check the lengths"
        );
        assert!(message(with(&[-1, 2]), problem()).starts_with("lengths_k is -1, but must be 0 to 7"));
        assert!(message(with(&[1]), problem()).contains("one for each of the 2 batch entries"));
        assert!(with(&[0, 7]).check(&problem()).is_ok());
    }

    #[test]
    fn cumulative_lengths_must_rise_from_zero_and_stay_inside() {
        let packed = Problem { batch: 1, seqlen_q: 9, seqlen_k: 9, ..problem() };
        let with = |q, k| Extras { cu_seqlens_q: Some(q), cu_seqlens_k: Some(k), ..Default::default() };
        assert_eq!(
            message(with(&[0, 5, 4], &[0, 1, 2]), packed),
            "cu_seqlens_q is 4 after 5, but must never fall; give the running sum of the lengths"
        );
        assert!(message(with(&[1, 5], &[0, 1]), packed).contains("must begin with 0"));
        assert!(message(with(&[0, 5], &[0, 10]), packed).contains("before the tensor's 9 rows"));
        assert!(message(with(&[0, 5], &[0, 1, 2]), packed).contains("as long as cu_seqlens_q, 2"));
        assert!(message(with(&[], &[]), packed).contains("at least the 0"));
        assert!(message(with(&[0, 5], &[0, 5]), problem()).contains("batch is 2"));
        let alone = Extras { cu_seqlens_q: Some(&[0, 5]), ..Default::default() };
        assert!(message(alone, packed).starts_with("cu_seqlens_k is left out"));
        let mask = Array4::from_elem((1, 1, 1, 1), true);
        let both = Extras { mask: Some(mask.view()), ..with(&[0, 5], &[0, 5]) };
        assert!(message(both, packed).contains("must be left out with cumulative lengths"));
        assert!(with(&[0, 5, 5, 9], &[0, 0, 0, 0]).check(&packed).is_ok());
    }

    #[test]
    fn sequences_lie_where_the_lengths_say() {
        let padded = Extras { lengths_q: Some(&[0, 5]), lengths_k: Some(&[7, 2]), ..Default::default() };
        let parts = padded.sequences(&problem());
        assert_eq!(parts, [Sequence { batch: 0, q: 0..0, k: 0..7 }, Sequence { batch: 1, q: 0..5, k: 0..2 }]);
        assert_eq!(parts[1].diagonal(Causal::BottomRight), -3);
        assert_eq!(parts[1].diagonal(Causal::TopLeft), 0);
        let packed = Problem { batch: 1, seqlen_q: 9, seqlen_k: 9, ..problem() };
        let extras =
            Extras { cu_seqlens_q: Some(&[0, 4, 9]), cu_seqlens_k: Some(&[0, 1, 8]), ..Default::default() };
        assert_eq!(
            extras.sequences(&packed),
            [Sequence { batch: 0, q: 0..4, k: 0..1 }, Sequence { batch: 0, q: 4..9, k: 1..8 }]
        );
    }
}
