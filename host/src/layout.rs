//! Where tensors lie in memory: null or misaligned addresses, and outputs that overlap.

use crate::error::{Error, Result};
use crate::launch::Addresses;
use crate::problem::{Problem, Strides};

/// The bytes that a tensor covers: rows of `row` bytes at `address`, repeated along the dimensions.
#[derive(Clone, Copy, Debug)]
struct Extent {
    name: &'static str,
    address: u64,
    row: u64,
    /// Batch, sequence and head: bytes from one to the next, and how many there are.
    dims: [(u64, u64); 3],
}

impl Extent {
    fn new(
        name: &'static str,
        address: u64,
        element: u64,
        strides: Strides,
        (batch, seqlen, heads, dim): (usize, usize, usize, usize),
    ) -> Result<Self> {
        let dims = [(strides.batch, batch), (strides.seq, seqlen), (strides.head, heads)];
        // Addresses are kept below 2^63, so that no sum of an address and a span wraps.
        let span = dims
            .iter()
            .map(|&(stride, n)| stride as u128 * n.saturating_sub(1) as u128)
            .fold(dim as u128, u128::saturating_add);
        if span.saturating_mul(element.into()).saturating_add(address.into()) > i64::MAX as u128 {
            return Err(Error::invalid(
                name,
                format!("a tensor of {span} elements"),
                "must end below address 2^63",
                "check its strides",
            ));
        }
        let bytes = |(stride, n): (usize, usize)| (stride.saturating_mul(element as usize) as u64, n as u64);
        Ok(Extent { name, address, row: dim as u64 * element, dims: dims.map(bytes) })
    }

    fn is_empty(&self) -> bool {
        self.row == 0 || self.dims.iter().any(|&(_, n)| n == 0)
    }

    /// Bytes from the first to behind the last of the rows along the dimensions in the set `inner`.
    fn span(&self, inner: usize) -> u64 {
        let along = |(at, &(stride, n)): (usize, &(u64, u64))| match inner >> at & 1 {
            1 if n > 1 => stride * (n - 1),
            _ => 0,
        };
        self.row + self.dims.iter().enumerate().map(along).sum::<u64>()
    }

    /// Whether two of the tensor's own rows may share a byte: sorted by stride, each dimension has to step over all of
    /// those before it.
    fn overlaps_itself(&self) -> bool {
        let mut dims = self.dims.map(|(stride, n)| if n > 1 { (stride, n) } else { (0, 1) });
        dims.sort_unstable();
        let mut span = self.row;
        for (stride, n) in dims.into_iter().filter(|&(_, n)| n > 1) {
            if stride < span {
                return true;
            }
            span += stride * (n - 1);
        }
        false
    }

    /// Whether the two tensors may share a byte.
    ///
    /// They do not where, for some choice of inner dimensions, everything outside repeats with a common period and
    /// the inner parts lie apart within it. That finds tensors that are interleaved in one buffer, such as the heads
    /// of a packed QKV projection. With all dimensions inside it is the plain comparison of two ranges.
    fn overlaps(&self, other: &Extent) -> bool {
        (0..8).all(|inner| {
            let outer = |extent: &Extent| {
                let dims = extent.dims.iter().enumerate();
                dims.filter(|&(at, &(_, n))| inner >> at & 1 == 0 && n > 1)
                    .fold(0, |period, (_, &(stride, _))| gcd(period, stride))
            };
            let period = gcd(outer(self), outer(other));
            let (mine, theirs) = (self.span(inner), other.span(inner));
            if period == 0 {
                return self.address < other.address + theirs && other.address < self.address + mine;
            }
            let ahead =
                (i128::from(other.address) - i128::from(self.address)).rem_euclid(period.into()) as u64;
            // Going round the period from my start: my part, then theirs, then mine again.
            ahead < mine || ahead + theirs > period
        })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Everything about the addresses of a checked problem that can be known to be wrong.
///
/// # Errors
/// [`Error::Invalid`] names the tensor, its address, the limit and the way out.
pub(crate) fn check(problem: &Problem, addresses: &Addresses) -> Result<()> {
    let &Problem { batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, head_dim_v, .. } = problem;
    if batch == 0 || seqlen_q == 0 {
        return Ok(());
    }
    let element = problem.dtype.size() as u64;
    let inputs = [
        Extent::new("q", addresses.q, element, problem.q, (batch, seqlen_q, heads, head_dim))?,
        Extent::new("k", addresses.k, element, problem.k, (batch, seqlen_k, kv_heads, head_dim))?,
        Extent::new("v", addresses.v, element, problem.v, (batch, seqlen_k, kv_heads, head_dim_v))?,
    ];
    let o = Extent::new("o", addresses.o, element, problem.o, (batch, seqlen_q, heads, head_dim_v))?;
    for extent in inputs.iter().chain([&o]).filter(|extent| !extent.is_empty()) {
        check_address(extent, element)?;
    }
    if o.overlaps_itself() {
        return Err(Error::invalid(
            "o",
            format!("a tensor with the strides {:?}", problem.o),
            "no two of its rows may share memory",
            "give the output strides that step over whole rows",
        ));
    }
    let contiguous = Strides { batch: heads * seqlen_q, seq: 1, head: seqlen_q };
    let lse = match addresses.lse {
        0 => None,
        address => Some(Extent::new("lse", address, 4, contiguous, (batch, seqlen_q, heads, 1))?),
    };
    if let Some(lse) = &lse {
        check_address(lse, 4)?;
        if lse.overlaps(&o) {
            return Err(overlap(lse, &o));
        }
    }
    for output in [Some(o), lse].iter().flatten() {
        if let Some(input) = inputs.iter().find(|input| !input.is_empty() && output.overlaps(input)) {
            return Err(overlap(output, input));
        }
    }
    Ok(())
}

fn check_address(extent: &Extent, element: u64) -> Result<()> {
    if extent.address == 0 {
        return Err(Error::invalid(
            extent.name,
            "a null address",
            "must point to device memory",
            "pass the tensor's address",
        ));
    }
    if !extent.address.is_multiple_of(element) {
        return Err(Error::invalid(
            extent.name,
            format!("at address {:#x}", extent.address),
            format!("must be aligned to its elements of {element} bytes"),
            "check the offset that was added to the address",
        ));
    }
    Ok(())
}

fn overlap(output: &Extent, other: &Extent) -> Error {
    Error::invalid(
        output.name,
        format!("at address {:#x}", output.address),
        format!("must not share memory with {} at {:#x}", other.name, other.address),
        "give the output memory of its own",
    )
}

#[cfg(test)]
mod tests;
