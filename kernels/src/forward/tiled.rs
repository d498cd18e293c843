//! FlashAttention-2's forward on plain multiply-adds: the kernel to read beside the paper, and the one that takes
//! every element type, layout and head dimension.
//!
//! Line numbers are those of Algorithm 1 in "FlashAttention-2" (Dao, 2023). A block of threads owns one block `Q_i`
//! of query rows (the paper's outer loop, lines 3 and 16, is the grid) and walks over the blocks `K_j`, `V_j`. The
//! scores of a block exist in registers only; its weights pass through shared memory once, since every thread of a
//! row needs all of them for the second product.

use crate::block_range::BlockRange;
use crate::config::{MaskKind, tiled_entries};
use crate::mask::{self, Mask};
use crate::params::ForwardParams;
use crate::scheduler::QueryTile;
use crate::score_mod::{NoScoreMod, ScoreMod};
use crate::softmax::OnlineSoftmax;
use crate::tile::global_rows::GlobalRows;
use crate::tile::product::{multiply, multiply_transposed};
use crate::tile::register_tile::{RegisterTile, ThreadGrid};
use crate::tile::shared_tile::SharedTile;
use cuda_std::element::{Bf16, Element, F16};
use cuda_std::global::GlobalPtr;
use cuda_std::{register, shared, thread, warp};

/// Under the name that the entry table uses.
type F32 = f32;

/// A block's shared memory: one tile each of Q, K and V. The weights P take the place of K, which is of no use once
/// the scores exist.
struct SharedMemory<const D: u32, const BLOCK_N: u32> {
    q_smem: SharedTile<D>,
    v_smem: SharedTile<D>,
    k_smem: SharedTile<D>,
    p_smem: SharedTile<BLOCK_N>,
}

impl<const D: u32, const BLOCK_N: u32> SharedMemory<D, BLOCK_N> {
    #[inline(always)]
    fn new(block_m: u32) -> Self {
        let q = shared::dynamic_shared_mem();
        let v = q.offset(SharedTile::<D>::len(block_m));
        let k_or_p = v.offset(SharedTile::<D>::len(BLOCK_N));
        SharedMemory {
            q_smem: SharedTile::new(q),
            v_smem: SharedTile::new(v),
            k_smem: SharedTile::new(k_or_p),
            p_smem: SharedTile::new(k_or_p),
        }
    }
}

/// Attention forward for one block of query rows.
///
/// `D` is the tile's head dimension; smaller ones are filled up with zeros. A thread's fragments are `ROWS` query rows
/// by `COLUMNS` keys of the scores and by `OUT` columns of the output.
///
/// # Thread mapping
/// `THREADS` threads as a grid over the tile: the `BLOCK_N / COLUMNS` threads of a row share `ROWS` query rows and lie
/// in one warp; rows and columns of a thread are interleaved with its neighbours' ([`ThreadGrid`]).
///
/// # Safety
/// `THREADS` threads, one block a tile, the dynamic shared memory of the entry table, and addresses, shapes and strides
/// that the host has checked.
#[inline(always)]
pub unsafe fn forward<
    E: Element,
    M: Mask,
    S: ScoreMod,
    const D: u32,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const THREADS: u32,
    const ROWS: usize,
    const COLUMNS: usize,
    const OUT: usize,
>(
    params: &ForwardParams,
    score_mod: S,
) {
    const { assert!(D / OUT as u32 == BLOCK_N / COLUMNS as u32, "scores and output divide rows alike") };
    const { assert!(BLOCK_M / ROWS as u32 == THREADS / (BLOCK_N / COLUMNS as u32)) };

    // Lines 1 to 3: this block's share of the work.
    let &ForwardParams { seqlen_q, seqlen_k, head_dim, head_dim_v, .. } = params;
    let tile = QueryTile::new(thread::block_idx_x(), params, matches!(M::KIND, MaskKind::Causal));
    let (batch, head, kv_head) = (tile.batch, tile.head, tile.kv_head(params));
    let q = GlobalRows::<E>::new(params.q, &params.q_strides, batch, head, seqlen_q, head_dim);
    let k = GlobalRows::<E>::new(params.k, &params.k_strides, batch, kv_head, seqlen_k, head_dim);
    let v = GlobalRows::<E>::new(params.v, &params.v_strides, batch, kv_head, seqlen_k, head_dim_v);
    let o = GlobalRows::<E>::new(params.o, &params.o_strides, batch, head, seqlen_q, head_dim_v);
    let first_row = (tile.block * BLOCK_M) as i32;
    let mask = M::new(params.causal_offset);
    let blocks =
        BlockRange::new(mask, first_row, BLOCK_M as i32, BLOCK_N as i32, seqlen_q as i32, seqlen_k as i32);
    let grid = ThreadGrid::new(THREADS, BLOCK_N / COLUMNS as u32);
    let SharedMemory { q_smem, k_smem, v_smem, p_smem } = SharedMemory::<D, BLOCK_N>::new(BLOCK_M);

    // Line 4: load Q_i. The first barrier of the mainloop makes it visible.
    // SAFETY: the tile is not in use yet.
    unsafe { q_smem.fill::<E, BLOCK_M, THREADS>(&q, first_row) }
    // Line 5: O_i = 0, l_i = 0, m_i = -inf.
    let mut o_frag = RegisterTile::<ROWS, OUT>::zero();
    let mut softmax = OnlineSoftmax::<ROWS>::new(if S::IDENTITY { params.scale } else { 1.0 }, grid.width);

    // Line 6: over the blocks of keys that any row of this tile sees.
    for block in 0..blocks.end {
        let first_key = block * BLOCK_N as i32;
        // Line 7: load K_j and V_j.
        // SAFETY: the barrier at the end of the loop has freed both tiles.
        unsafe {
            k_smem.fill::<E, BLOCK_N, THREADS>(&k, first_key);
            v_smem.fill::<E, BLOCK_N, THREADS>(&v, first_key);
        }
        thread::sync_threads();

        // Line 8: S_ij = Q_i K_j^T, not scaled yet.
        let mut s_frag = RegisterTile::<ROWS, COLUMNS>::zero();
        // SAFETY: both tiles are visible.
        unsafe { multiply_transposed(&mut s_frag, q_smem, k_smem, head_dim, &grid) }
        let (row_of, key_of) = (|i: u32| first_row + i as i32, |j: u32| first_key + j as i32);
        if !S::IDENTITY {
            s_frag.map(&grid, |i, j, s| score_mod.apply(s * params.scale, row_of(i), key_of(j)));
        }
        // Only the blocks on the diagonal and the one at the end have anything to hide.
        if block >= blocks.full {
            // Made here: kept in registers, what it adds to every row would be there in all blocks.
            let mask = M::new(register::opaque(params.causal_offset as u32) as i32);
            s_frag.map(&grid, |i, j, s| {
                let allowed = mask.allows(row_of(i), key_of(j)) && key_of(j) < seqlen_k as i32;
                if allowed { s } else { f32::NEG_INFINITY }
            });
        }

        // Line 9: m_i, P_ij = exp(S_ij - m_i) and l_i.
        let correction = softmax.update(&mut s_frag);
        // Every thread is done with K_j; P_ij is passed on only among the threads of a row, inside one warp.
        thread::sync_threads();
        // SAFETY: K's tile is free, and no other warp touches these rows of P.
        unsafe { p_smem.store(&s_frag, &grid) }
        warp::sync_warp();

        // Line 10: O_i = diag(exp(m_i before - m_i)) O_i + P_ij V_j.
        o_frag.scale_rows(&correction);
        let keys = (seqlen_k - first_key as u32).min(BLOCK_N);
        // SAFETY: both tiles are visible.
        unsafe { multiply(&mut o_frag, p_smem, v_smem, keys, &grid) }
        thread::sync_threads();
    }

    // Lines 12 to 15: O_i = diag(1 / l_i) O_i and L_i = m_i + log l_i, written where the rows exist.
    let lse = GlobalPtr::<f32>::new(params.lse)
        .offset((i64::from(batch) * i64::from(params.heads) + i64::from(head)) * i64::from(seqlen_q));
    for i in 0..ROWS {
        let row = first_row + grid.row(i) as i32;
        let (factor, lse_of_row) = softmax.finish(i);
        for j in 0..OUT / 4 {
            let quad = [0, 1, 2, 3].map(|column| o_frag.0[i][4 * j + column] * factor);
            // SAFETY: rows and columns belong to this thread alone.
            unsafe { o.store(row, grid.quad(j), quad) }
        }
        if params.lse != 0 && grid.is_first_of_row() && row < seqlen_q as i32 {
            // SAFETY: the row exists and belongs to this thread alone.
            unsafe { lse.store(i64::from(row), lse_of_row) }
        }
    }
}

macro_rules! define {
    ($($name:ident: $dtype:ident $d:literal $mask:ident $block_m:literal $block_n:literal $threads:literal $width:literal;)*) => {$(
        /// Entry of [`forward`]; see there for what it expects.
        ///
        /// # Safety
        /// As [`forward`].
        #[cuda_std::kernel(threads = $threads)]
        pub unsafe fn $name(params: ForwardParams) {
            // SAFETY: as the caller promises.
            unsafe {
                forward::<$dtype, mask::$mask, NoScoreMod, $d, $block_m, $block_n, $threads,
                    { $block_m * $width / $threads }, { $block_n / $width }, { $d / $width }>(&params, NoScoreMod)
            }
        }
    )*

        /// The entries by name, for the simulated device.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const FUNCTIONS: &[(&str, unsafe fn(ForwardParams))] = &[$((stringify!($name), $name)),*];
    };
}

tiled_entries!(define);
