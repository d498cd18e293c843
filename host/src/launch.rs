//! From a plan to work in a stream: grid, block, shared memory and the one parameter struct.

pub(crate) mod standard;

use crate::device;
use crate::error::{Error, Result};
use crate::heuristics::{blocks_of_rows, heads_per_group};
use crate::layout;
use crate::module::{Context, check, driver_functions};
use crate::plan::{Alignment, Entry, Family, Packing, Plan, PlanOptions};
use crate::problem::{Causal, Problem, Strides};
use flash_attention_driver as driver;
use flash_attention_driver::{Functions, LaunchConfig};
use flash_attention_kernels::params::{self, ForwardParams, Sm80Params, Sm90Params, TensorMap, TileOrder};
use std::ffi::c_void;

/// A `CUstream` (the same as `cudaStream_t`) of anyone's making; null is the default stream.
pub type RawStream = *mut c_void;

/// Device addresses of one call's tensors. Shapes and strides are the [`Problem`]'s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Of Q.
    pub q: u64,
    /// Of K.
    pub k: u64,
    /// Of V.
    pub v: u64,
    /// Of O.
    pub o: u64,
    /// Of LSE, contiguous f32 `(batch, heads, seqlen_q)`, or 0 where it is not wanted.
    pub lse: u64,
}

/// Puts one attention forward into `stream`, in the context that is current on this thread.
///
/// `kernel` names the family; where it is left out the variable `FLASH_ATTENTION_KERNEL` can, or else the plan chooses.
/// The call returns before the work is done. The first call that needs a kernel loads it; after that a call
/// allocates nothing, loads nothing and waits for nothing. It can be captured in a graph.
///
/// The family `standard` keeps its scores in a workspace of the context
/// ([`Plan::workspace_bytes`](crate::Plan::workspace_bytes)): its first call allocates that, a call that needs a larger
/// one waits for the last and allocates again, and a captured call that would have to is an error. Its calls in
/// different streams run one after the other.
///
/// ```no_run
/// use flash_attention::launch::{self, Addresses, RawStream};
/// use flash_attention::{Causal, DType, Problem};
/// # let (q, k, v, o): (u64, u64, u64, u64) = (0, 0, 0, 0);
/// # let stream: RawStream = std::ptr::null_mut();
/// let problem = Problem { causal: Causal::BottomRight, ..Problem::new(DType::Bf16, 2, 1024, 16, 128) };
/// let addresses = Addresses { q, k, v, o, lse: 0 };
/// // SAFETY: whoever owns the four tensors keeps them until `stream` is done; the context is current.
/// unsafe { launch::forward(&problem, &addresses, None, stream)? };
/// # Ok::<(), flash_attention::Error>(())
/// ```
///
/// # Errors
/// Everything that can be known to be wrong is an error before anything is launched, and the outputs are untouched
/// then.
///
/// # Safety
/// - Each address is memory that kernels of the current context can read (Q, K, V) or write (O, LSE), as far as the
///   problem's shape and strides reach, until `stream` has run the work; nobody writes the inputs or touches the
///   outputs in between.
/// - `stream` is null or a stream of the current context.
/// - Where the call is captured: the memory is there for as long as the graph may be launched, and for each launch the
///   same holds as for a call; of all instances of the graph at most one runs at a time (they share this launch's
///   work counter), and, if the family is `standard`, no other call of that family in this context at the same time
///   (they share the workspace).
pub unsafe fn forward(
    problem: &Problem,
    addresses: &Addresses,
    kernel: Option<Family>,
    stream: RawStream,
) -> Result<()> {
    problem.check()?;
    layout::check(problem, addresses)?;
    let kernel = match kernel {
        Some(family) => Some(family),
        None => device::kernel_override()?,
    };
    let context = Context::current(driver_functions()?)?;
    // SAFETY: the caller's promises.
    unsafe { forward_in(context, problem, addresses, kernel, stream) }
}

/// [`forward`] in a context whose state is known; problem and layout are checked.
///
/// # Safety
/// As for [`forward`]; `context` is the current one.
pub(crate) unsafe fn forward_in(
    context: &Context,
    problem: &Problem,
    addresses: &Addresses,
    kernel: Option<Family>,
    stream: RawStream,
) -> Result<()> {
    let &Addresses { q, k, v, o, .. } = addresses;
    let plan =
        Plan::new(problem, context.gpu(), &PlanOptions { kernel, alignment: Alignment::of(q, k, v, o) })?;
    tracing::debug!(%plan, "planned");
    // SAFETY: the caller's promises.
    unsafe { run(context, &plan, problem, addresses, stream) }
}

/// Launches what `plan` chose.
///
/// # Safety
/// As for [`forward_in`].
unsafe fn run(
    context: &Context,
    plan: &Plan,
    problem: &Problem,
    addresses: &Addresses,
    stream: RawStream,
) -> Result<()> {
    if problem.batch == 0 || problem.seqlen_q == 0 {
        return Ok(());
    }
    let Plan { entry, packing, .. } = plan;
    let tiles = tiles(entry, *packing, problem)?;
    match entry.family {
        // SAFETY: the caller's promises.
        Family::Standard => unsafe { standard::run(context, entry, problem, addresses, stream) },
        Family::Tiled => {
            let mut params = forward_params(entry, *packing, problem, addresses);
            // SAFETY: the entry takes one ForwardParams and the memory is as the caller promises.
            unsafe { submit(context, entry, tiles, (&raw mut params).cast(), stream) }
        }
        Family::Sm80 => {
            let mut params = sm80_params(plan, problem, addresses);
            // SAFETY: the entry takes one Sm80Params and the memory is as the caller promises.
            unsafe { submit(context, entry, tiles, (&raw mut params).cast(), stream) }
        }
        Family::Sm90 => {
            let grid = tiles.min(context.gpu().multiprocessors);
            // A block that has one tile only needs nobody to hand out a second.
            let work_counter =
                if tiles > grid { context.counters()?.take(context.driver(), stream)? } else { 0 };
            let encode = |shape: &MapShape| tensor_map(context.driver(), shape);
            let mut params = sm90_params(plan, problem, addresses, work_counter, encode)?;
            // SAFETY: the entry takes one Sm90Params, the counter is this launch's, and the memory is as the caller
            // promises.
            unsafe { submit(context, entry, grid, (&raw mut params).cast(), stream) }
        }
    }
}

/// Tiles of query rows of the whole call, one for each block of a plain grid.
pub(crate) fn tiles(entry: &Entry, packing: Packing, problem: &Problem) -> Result<u32> {
    // Heads that share a tile are counted one by one as well: their number is a launch parameter.
    let heads = problem.batch as u128 * problem.heads as u128;
    if heads > i32::MAX as u128 {
        return Err(Error::invalid("batch * heads", heads, "must be at most 2147483647", "split the batch"));
    }
    let tiles = blocks_of_rows(problem.seqlen_q, packing, entry) as u128
        * (problem.heads / packing.heads() as usize) as u128
        * problem.batch as u128;
    u32::try_from(tiles).ok().filter(|&tiles| tiles <= i32::MAX as u32).ok_or_else(|| {
        Error::invalid(
            "batch * heads * seqlen_q",
            format!("{tiles} tiles"),
            "a launch has at most 2147483647",
            "split the batch",
        )
    })
}

/// The launch parameters of every family.
pub(crate) fn forward_params(
    entry: &Entry,
    packing: Packing,
    problem: &Problem,
    addresses: &Addresses,
) -> ForwardParams {
    let strides = |strides: Strides| params::Strides {
        batch: strides.batch as i64,
        seq: strides.seq as i64,
        head: strides.head as i64,
    };
    ForwardParams {
        q: addresses.q,
        k: addresses.k,
        v: addresses.v,
        o: addresses.o,
        lse: addresses.lse,
        q_strides: strides(problem.q),
        k_strides: strides(problem.k),
        v_strides: strides(problem.v),
        o_strides: strides(problem.o),
        batch: problem.batch as u32,
        seqlen_q: problem.seqlen_q as u32,
        seqlen_k: problem.seqlen_k as u32,
        heads: problem.heads as u32,
        kv_heads: problem.kv_heads as u32,
        head_dim: problem.head_dim as u32,
        head_dim_v: problem.head_dim_v as u32,
        scale: problem.scale,
        // Lengths are below 2^31, so their difference fits.
        causal_offset: if problem.causal == Causal::No { 0 } else { problem.diagonal() as i32 },
        blocks_m: blocks_of_rows(problem.seqlen_q, packing, entry) as u32,
    }
}

/// The launch parameters of the family `sm80`.
pub(crate) fn sm80_params(plan: &Plan, problem: &Problem, addresses: &Addresses) -> Sm80Params {
    let forward = forward_params(&plan.entry, plan.packing, problem, addresses);
    Sm80Params { forward, order: tile_order(plan.packing, problem, &forward) }
}

/// The order of the tiles of a call, where heads that share a tile are one.
fn tile_order(packing: Packing, problem: &Problem, forward: &ForwardParams) -> TileOrder {
    let &ForwardParams { blocks_m, heads, kv_heads, batch, .. } = forward;
    let heads = heads / packing.heads();
    let heads_per_group = heads_per_group(&Problem { heads: heads as usize, ..*problem }, blocks_m);
    TileOrder::new(blocks_m, heads, kv_heads, batch, heads_per_group)
}

/// A dimension of a tensor outside of its rows.
struct Outer {
    extent: usize,
    /// Elements from one entry to the next.
    stride: usize,
    /// Entries in a box.
    in_box: u32,
}

/// A 16-bit tensor as a tensor map describes it, innermost dimension first, in boxes of 64 columns with the 128-byte
/// swizzle. The inner extent is the true one, so that columns past it arrive as zeros and never as the next head's.
pub(crate) struct MapShape {
    pub address: u64,
    rank: usize,
    dims: [u64; 5],
    strides: [u64; 4],
    boxes: [u32; 5],
}

impl MapShape {
    const ELEMENT_BYTES: usize = 2;

    fn new<const OUTER: usize>(address: u64, columns: usize, outer: [Outer; OUTER]) -> Self {
        let mut shape = MapShape {
            address,
            rank: OUTER + 1,
            dims: [columns as u64; 5],
            // The stride of a dimension with one entry is never used, but has to be a valid one.
            strides: [16 * columns as u64; 4],
            boxes: [64; 5],
        };
        for (i, Outer { extent, stride, in_box }) in outer.into_iter().enumerate() {
            (shape.dims[i + 1], shape.boxes[i + 1]) = (extent as u64, in_box);
            if extent > 1 {
                shape.strides[i] = (stride * Self::ELEMENT_BYTES) as u64;
            }
        }
        shape
    }

    /// Entries of each dimension.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.rank]
    }

    /// In bytes, from the second dimension on.
    pub fn strides(&self) -> &[u64] {
        &self.strides[..self.rank - 1]
    }

    /// Entries of a box in each dimension.
    pub fn boxes(&self) -> &[u32] {
        &self.boxes[..self.rank]
    }
}

/// The launch parameters of the family `sm90`, with the tensor maps of whoever `encode`s them.
pub(crate) fn sm90_params(
    plan: &Plan,
    problem: &Problem,
    addresses: &Addresses,
    work_counter: u64,
    encode: impl Fn(&MapShape) -> Result<TensorMap>,
) -> Result<Sm90Params> {
    // A warpgroup loads and multiplies 64 rows of Q.
    const Q_ROWS: u32 = 64;
    let &Plan { entry, packing, .. } = plan;
    let &Problem { batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, head_dim_v, q, k, v, .. } = problem;
    let forward = forward_params(&entry, packing, problem, addresses);
    // Heads that share a tile are one head of the map and of the order of tiles.
    let shared = packing.heads() as usize;
    let groups = heads / shared;
    let outer = |extent, stride, in_box| Outer { extent, stride, in_box };
    let q_map = MapShape::new(
        forward.q,
        head_dim,
        [
            outer(shared, q.head, 1 << packing.shift()),
            outer(seqlen_q, q.seq, packing.query(Q_ROWS)),
            outer(groups, shared * q.head, 1),
            outer(batch, q.batch, 1),
        ],
    );
    let of_keys = |address, columns, strides: Strides| {
        let rows = outer(seqlen_k, strides.seq, entry.block_n);
        let outer = [rows, outer(kv_heads, strides.head, 1), outer(batch, strides.batch, 1)];
        encode(&MapShape::new(address, columns, outer))
    };
    Ok(Sm90Params {
        q_map: encode(&q_map)?,
        k_map: of_keys(forward.k, head_dim, k)?,
        v_map: of_keys(forward.v, head_dim_v, v)?,
        forward,
        work_counter,
        order: tile_order(packing, problem, &forward),
        packing,
    })
}

/// The map as the driver encodes it.
fn tensor_map(driver: &Functions, shape: &MapShape) -> Result<TensorMap> {
    /// The driver writes maps to addresses aligned to 64 only.
    #[repr(align(64))]
    struct Aligned([u64; 16]);

    let mut map = Aligned([0; 16]);
    let element_strides = [1u32; 5];
    // SAFETY: as many dimensions and strides as it says, and the map's address is aligned as the driver asks.
    let code = unsafe {
        (driver.cuTensorMapEncodeTiled)(
            &mut map.0,
            driver::TENSOR_MAP_UINT16,
            shape.dims().len() as u32,
            shape.address,
            shape.dims().as_ptr(),
            shape.strides().as_ptr(),
            shape.boxes().as_ptr(),
            element_strides.as_ptr(),
            driver::TENSOR_MAP_INTERLEAVE_NONE,
            driver::TENSOR_MAP_SWIZZLE_128B,
            driver::TENSOR_MAP_L2_PROMOTION_256B,
            driver::TENSOR_MAP_FILL_ZEROS,
        )
    };
    check(driver, "cuTensorMapEncodeTiled", code)?;
    Ok(TensorMap(map.0))
}

/// Launches `entry` on `grid` blocks.
///
/// # Safety
/// `params` points to the entry's parameter struct, and what it says is true.
unsafe fn submit(
    context: &Context,
    entry: &Entry,
    grid: u32,
    params: *mut c_void,
    stream: RawStream,
) -> Result<()> {
    let kernel = context.kernel(entry)?;
    let config = LaunchConfig {
        grid: [grid, 1, 1],
        block: [entry.threads, 1, 1],
        shared_bytes: entry.shared_bytes,
        stream,
        attributes: std::ptr::null(),
        attribute_count: 0,
    };
    let mut arguments = [params];
    // SAFETY: the kernel is loaded in this context and its one parameter is as the caller promises.
    let code = unsafe {
        (context.driver().cuLaunchKernelEx)(
            &config,
            kernel.function(),
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    check(context.driver(), "cuLaunchKernelEx", code)?;
    tracing::debug!(kernel = entry.name, grid, threads = entry.threads, "launched");
    Ok(())
}

#[cfg(test)]
mod tests;
