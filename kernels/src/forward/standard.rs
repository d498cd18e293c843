//! Standard attention, the yardstick of the other kernels: three launches that write the matrix of scores to memory
//! and read it back.
//!
//! The products are those of `tiled`, tile for tile, and blocks of keys that the mask hides are skipped alike. What
//! differs is where the scores live: here a matrix of f32 in global memory is written once ([`scores`]), read twice and
//! replaced by the weights ([`softmax`]), and read again ([`output`]). The memory that this takes and the time for the
//! way there and back are what the fused kernels save.

use crate::block_range::BlockRange;
use crate::config::standard_entries;
use crate::mask::{Causal, Mask};
use crate::params::StandardParams;
use crate::scheduler::QueryTile;
use crate::softmax::OnlineSoftmax;
use crate::tile::global_rows::GlobalRows;
use crate::tile::product::{multiply, multiply_transposed};
use crate::tile::register_tile::{RegisterTile, ThreadGrid};
use crate::tile::shared_tile::SharedTile;
use core::num::NonZeroU64;
use cuda_std::element::{Bf16, Element, F16};
use cuda_std::global::GlobalPtr;
use cuda_std::warp::{self, WARP_SIZE};
use cuda_std::{shared, thread};

/// Under the name that the entry table uses.
type F32 = f32;

/// The mask of a call. None is a causal one whose offset lets the first row see every key.
#[inline(always)]
fn mask(params: &StandardParams) -> Causal {
    Causal::new(params.forward.causal_offset)
}

/// The blocks of keys that the tile of query rows from `first_row` on needs.
#[inline(always)]
fn key_blocks(params: &StandardParams, first_row: u32, block_m: u32, block_n: u32) -> BlockRange {
    let (seqlen_q, seqlen_k) = (params.forward.seqlen_q as i32, params.forward.seqlen_k as i32);
    BlockRange::new(mask(params), first_row as i32, block_m as i32, block_n as i32, seqlen_q, seqlen_k)
}

/// This block's tile of query rows, the longest first where there is a mask.
#[inline(always)]
fn query_tile(params: &StandardParams) -> QueryTile {
    let masked = params.forward.causal_offset < params.forward.seqlen_k as i32;
    QueryTile::new(thread::block_idx_x(), &params.forward, masked)
}

/// The tile's head of the matrix of scores. Its rows reach to the end of their last block, so that whole blocks can be
/// written and read.
#[inline(always)]
fn score_rows(params: &StandardParams, tile: &QueryTile) -> GlobalRows<f32> {
    let (strides, rows) = (&params.scores_strides, params.forward.seqlen_q);
    GlobalRows::new(params.scores, strides, tile.batch, tile.head, rows, strides.seq as u32)
}

/// `S = Q K^T`, not scaled, for one block of query rows: every block of keys that any row of the tile sees, with -inf
/// where a row does not.
///
/// # Thread mapping
/// As `tiled`'s: a grid over the tile of `THREADS` threads, `BLOCK_N / COLUMNS` of which share `ROWS` rows.
///
/// # Safety
/// `THREADS` threads, one block a tile, the dynamic shared memory of the entry table, and addresses, shapes and strides
/// that the host has checked.
#[inline(always)]
pub unsafe fn scores<
    E: Element,
    const D: u32,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const THREADS: u32,
    const ROWS: usize,
    const COLUMNS: usize,
>(
    params: &StandardParams,
) {
    const { assert!(BLOCK_M / ROWS as u32 == THREADS / (BLOCK_N / COLUMNS as u32)) };
    let (forward, tile) = (&params.forward, query_tile(params));
    let (seqlen_q, seqlen_k, head_dim) = (forward.seqlen_q, forward.seqlen_k, forward.head_dim);
    let q = GlobalRows::<E>::new(forward.q, &forward.q_strides, tile.batch, tile.head, seqlen_q, head_dim);
    let kv_head = tile.kv_head(forward);
    let k = GlobalRows::<E>::new(forward.k, &forward.k_strides, tile.batch, kv_head, seqlen_k, head_dim);
    let s = score_rows(params, &tile);
    let first_row = tile.block * BLOCK_M;
    let (mask, blocks) = (mask(params), key_blocks(params, first_row, BLOCK_M, BLOCK_N));
    let grid = ThreadGrid::new(THREADS, BLOCK_N / COLUMNS as u32);
    let memory = shared::dynamic_shared_mem();
    let q_smem = SharedTile::<D>::new(memory);
    let k_smem = SharedTile::<D>::new(memory.offset(SharedTile::<D>::len(BLOCK_M)));

    // SAFETY: the tile is not in use yet; the first barrier of the loop makes it visible.
    unsafe { q_smem.fill::<E, BLOCK_M, THREADS>(&q, first_row as i32) }
    for block in 0..blocks.end {
        let first_key = block as u32 * BLOCK_N;
        // SAFETY: the barrier at the end of the loop has freed the tile.
        unsafe { k_smem.fill::<E, BLOCK_N, THREADS>(&k, first_key as i32) }
        thread::sync_threads();

        let mut s_frag = RegisterTile::<ROWS, COLUMNS>::zero();
        // SAFETY: both tiles are visible.
        unsafe { multiply_transposed(&mut s_frag, q_smem, k_smem, head_dim, &grid) }
        if block >= blocks.full {
            s_frag.map(&grid, |i, j, s| {
                let (row, key) = ((first_row + i) as i32, (first_key + j) as i32);
                if mask.allows(row, key) && key < seqlen_k as i32 { s } else { f32::NEG_INFINITY }
            });
        }
        for i in 0..ROWS {
            for j in 0..COLUMNS {
                let (row, key) = ((first_row + grid.row(i)) as i32, first_key + grid.column(j));
                // SAFETY: the block lies in the matrix, and the element is this thread's alone.
                unsafe { s.store_one(row, key, s_frag.0[i][j]) }
            }
        }
        thread::sync_threads();
    }
}

/// `P = softmax(scale * S)` in the place of S, and LSE.
///
/// # Thread mapping
/// One warp a row, in the order of the matrix; a lane takes quads of neighbouring keys.
///
/// # Safety
/// `THREADS` threads, enough blocks for all rows, the scores of this call, and an LSE of its shape.
#[inline(always)]
pub unsafe fn softmax<const BLOCK_M: u32, const BLOCK_N: u32, const THREADS: u32>(params: &StandardParams) {
    /// Quads of a lane that are in flight at once.
    const QUADS: usize = 4;
    const STEP: u32 = QUADS as u32 * WARP_SIZE * 4;

    let forward = &params.forward;
    let rows_of_block = u64::from(THREADS / WARP_SIZE);
    let row =
        u64::from(thread::block_idx_x()) * rows_of_block + u64::from(thread::thread_idx_x() / WARP_SIZE);
    // Zero rows are no launch; the type spares the device the panic path of the division.
    let rows_of_head = NonZeroU64::new(u64::from(forward.seqlen_q)).unwrap_or(NonZeroU64::MIN);
    if row >= rows_of_head.get() * u64::from(forward.heads) * u64::from(forward.batch) {
        return;
    }
    let first_row = (row % rows_of_head) as u32 / BLOCK_M * BLOCK_M;
    let columns = key_blocks(params, first_row, BLOCK_M, BLOCK_N).end as u32 * BLOCK_N;
    let s = GlobalPtr::<f32>::new(params.scores).offset(row as i64 * params.scores_strides.seq);
    let s = s.cast::<[f32; 4]>();
    let column = |step: u32, quad: usize| step * STEP + (quad as u32 * WARP_SIZE + warp::lane_id()) * 4;

    // Maximum and sum, over the row as far as its tile has scores.
    let mut softmax = OnlineSoftmax::<1>::new(forward.scale, WARP_SIZE);
    for step in 0..columns.div_ceil(STEP) {
        let mut s_frag = RegisterTile::<1, { QUADS * 4 }>([[f32::NEG_INFINITY; QUADS * 4]]);
        for quad in 0..QUADS {
            let column = column(step, quad);
            if column < columns {
                // SAFETY: the scores of the row, which the launch before has written up to here.
                let values = unsafe { s.load(i64::from(column / 4)) };
                for i in 0..4 {
                    s_frag.0[0][4 * quad + i] = values[i];
                }
            }
        }
        softmax.update(&mut s_frag);
    }
    let (factor, lse) = softmax.finish(0);
    if forward.lse != 0 && warp::lane_id() == 0 {
        // SAFETY: LSE is contiguous in the order of the rows, and this one is the warp's alone.
        unsafe { GlobalPtr::<f32>::new(forward.lse).store(row as i64, lse) }
    }

    // The weights: each lane replaces what it has read.
    for step in 0..columns.div_ceil(STEP) {
        for quad in 0..QUADS {
            let column = column(step, quad);
            if column < columns {
                // SAFETY: as above; the quad is this lane's alone.
                unsafe {
                    let values = s.load(i64::from(column / 4));
                    let weights = [0, 1, 2, 3].map(|i| softmax.weight_in_row(0, values[i]) * factor);
                    s.store(i64::from(column / 4), weights);
                }
            }
        }
    }
}

/// `O = P V` for one block of query rows.
///
/// # Thread mapping
/// As `tiled`'s: the threads that share a row have `OUT` columns of it each.
///
/// # Safety
/// As [`scores`], and the weights of this call.
#[inline(always)]
pub unsafe fn output<
    E: Element,
    const D: u32,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const THREADS: u32,
    const ROWS: usize,
    const OUT: usize,
>(
    params: &StandardParams,
) {
    const { assert!(BLOCK_M / ROWS as u32 == THREADS / (D / OUT as u32)) };
    let (forward, tile) = (&params.forward, query_tile(params));
    let (seqlen_q, seqlen_k, head_dim_v) = (forward.seqlen_q, forward.seqlen_k, forward.head_dim_v);
    let kv_head = tile.kv_head(forward);
    let v = GlobalRows::<E>::new(forward.v, &forward.v_strides, tile.batch, kv_head, seqlen_k, head_dim_v);
    let o = GlobalRows::<E>::new(forward.o, &forward.o_strides, tile.batch, tile.head, seqlen_q, head_dim_v);
    let p = score_rows(params, &tile);
    let first_row = tile.block * BLOCK_M;
    let blocks = key_blocks(params, first_row, BLOCK_M, BLOCK_N);
    let grid = ThreadGrid::new(THREADS, D / OUT as u32);
    let memory = shared::dynamic_shared_mem();
    let p_smem = SharedTile::<BLOCK_N>::new(memory);
    let v_smem = SharedTile::<D>::new(memory.offset(SharedTile::<BLOCK_N>::len(BLOCK_M)));

    let mut o_frag = RegisterTile::<ROWS, OUT>::zero();
    for block in 0..blocks.end {
        let first_key = block as u32 * BLOCK_N;
        // SAFETY: the barrier at the end of the loop has freed both tiles.
        unsafe {
            p_smem.fill::<f32, BLOCK_M, THREADS>(&p.columns_from(first_key), first_row as i32);
            v_smem.fill::<E, BLOCK_N, THREADS>(&v, first_key as i32);
        }
        thread::sync_threads();
        let keys = (seqlen_k - first_key).min(BLOCK_N);
        // SAFETY: both tiles are visible.
        unsafe { multiply(&mut o_frag, p_smem, v_smem, keys, &grid) }
        thread::sync_threads();
    }
    for i in 0..ROWS {
        let row = (first_row + grid.row(i)) as i32;
        for j in 0..OUT / 4 {
            let quad = [0, 1, 2, 3].map(|column| o_frag.0[i][4 * j + column]);
            // SAFETY: rows and columns belong to this thread alone.
            unsafe { o.store(row, grid.quad(j), quad) }
        }
    }
}

macro_rules! define {
    (
        tiles { $($scores:ident $output:ident: $dtype:ident $d:literal $block_m:literal $block_n:literal $threads:literal $width:literal;)* }
        softmax { $($softmax:ident: $softmax_m:literal $softmax_n:literal $softmax_threads:literal;)* }
    ) => {
        $(
            /// Entry of [`scores`]; see there for what it expects.
            ///
            /// # Safety
            /// As [`scores`].
            #[cuda_std::kernel(threads = $threads)]
            pub unsafe fn $scores(params: StandardParams) {
                // SAFETY: as the caller promises.
                unsafe {
                    scores::<$dtype, $d, $block_m, $block_n, $threads,
                        { $block_m * $width / $threads }, { $block_n / $width }>(&params)
                }
            }

            /// Entry of [`output`]; see there for what it expects.
            ///
            /// # Safety
            /// As [`output`].
            #[cuda_std::kernel(threads = $threads)]
            pub unsafe fn $output(params: StandardParams) {
                // SAFETY: as the caller promises.
                unsafe {
                    output::<$dtype, $d, $block_m, $block_n, $threads,
                        { $block_m * $width / $threads }, { $d / $width }>(&params)
                }
            }
        )*
        $(
            /// Entry of [`softmax`]; see there for what it expects.
            ///
            /// # Safety
            /// As [`softmax`].
            #[cuda_std::kernel(threads = $softmax_threads)]
            pub unsafe fn $softmax(params: StandardParams) {
                // SAFETY: as the caller promises.
                unsafe { softmax::<$softmax_m, $softmax_n, $softmax_threads>(&params) }
            }
        )*

        /// The entries by name, for the simulated device.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const FUNCTIONS: &[(&str, unsafe fn(StandardParams))] = &[
            $((stringify!($scores), $scores), (stringify!($output), $output),)*
            $((stringify!($softmax), $softmax)),*
        ];
    };
}

standard_entries!(define);
