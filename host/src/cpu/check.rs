//! What must hold before anything is written.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::extras::Extras;
use crate::launch::Addresses;
use crate::layout;
use crate::problem::{Problem, Strides};

/// Everything about one call.
pub(super) fn call<T: Element>(
    problem: &Problem,
    [q, k, v]: [&[T]; 3],
    extras: &Extras<'_>,
    out: &[T],
    lse: Option<&[f32]>,
) -> Result<()> {
    problem.check()?;
    extras.check(problem)?;
    if T::DTYPE != problem.dtype {
        return Err(Error::invalid(
            "dtype",
            T::DTYPE.name(),
            format!("the problem says {}", problem.dtype.name()),
            "make the tensors and the problem agree",
        ));
    }
    let p = problem;
    let query = [p.batch, p.seqlen_q, p.heads];
    let key = [p.batch, p.seqlen_k, p.kv_heads];
    covers("q", q.len(), query, &p.q, p.head_dim)?;
    covers("k", k.len(), key, &p.k, p.head_dim)?;
    covers("v", v.len(), key, &p.v, p.head_dim_v)?;
    covers("out", out.len(), query, &p.o, p.head_dim_v)?;
    let address = |tensor: &[T]| tensor.as_ptr() as u64;
    let lse_address = lse.map_or(0, |lse| lse.as_ptr() as u64);
    let [q, k, v, o] = [q, k, v, out].map(address);
    layout::check(problem, &Addresses { q, k, v, o, lse: lse_address })?;
    let rows = p.batch.saturating_mul(p.heads).saturating_mul(p.seqlen_q);
    match lse {
        Some(lse) if lse.len() < rows => Err(Error::invalid(
            "lse",
            format!("{} values", lse.len()),
            format!("(batch, heads, seqlen_q) takes {rows}"),
            "give one value for each row and head",
        )),
        _ => Ok(()),
    }
}

/// The bytes of a tensor are elements and nothing else.
pub(super) fn whole_elements(name: &'static str, before: usize, after: usize, size: usize) -> Result<()> {
    if before == 0 && after == 0 {
        return Ok(());
    }
    Err(Error::invalid(
        name,
        format!("{before} bytes before and {after} bytes after whole elements"),
        format!("must be aligned to its {size}-byte elements and hold whole ones only"),
        "take the slice from a buffer of the element type",
    ))
}

/// The slice reaches to the last element of its tensor.
fn covers(name: &'static str, len: usize, sizes: [usize; 3], strides: &Strides, dim: usize) -> Result<()> {
    let needed = match sizes.contains(&0) {
        true => Some(0),
        false => dims(sizes, strides)
            .into_iter()
            .try_fold(dim, |sum, (n, stride)| sum.checked_add((n - 1).checked_mul(stride)?)),
    };
    if needed.is_some_and(|needed| needed <= len) {
        return Ok(());
    }
    let needed = needed.map_or("more than memory has".to_owned(), |n| n.to_string());
    Err(Error::invalid(
        name,
        format!("{len} elements"),
        format!("shape {sizes:?} x {dim} with strides {strides:?} takes {needed}"),
        "give the whole tensor or mend the strides",
    ))
}

fn dims([batch, seq, head]: [usize; 3], strides: &Strides) -> Vec<(usize, usize)> {
    vec![(batch, strides.batch), (seq, strides.seq), (head, strides.head)]
}
