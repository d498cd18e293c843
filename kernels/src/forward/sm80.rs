//! The kernel for tensor cores since Ampere: `cp.async` copies, `ldmatrix`, `mma.sync`, everything else in registers.
//!
//! A block of warps owns `BLOCK_M` query rows of one head, a warp 16 or 32 of them whole, so that no two warps ever
//! exchange scores. Blocks of K and V stream through one ring of shared-memory tiles, alternating: K, V, K, V, … Each
//! half of an iteration waits for its tile, one barrier frees the tile before it, and the copy of the tile
//! `SLOTS - 1` further on starts at once.
//!
//! Between the two products, a block's weights are not made in one go: those of the first 16 keys are, and the next
//! ones' exponentials stand between the products that consume the ones before, so that the tensor cores do not wait
//! for the special-function unit.

use crate::block_range::BlockRange;
use crate::config::{self, MaskKind, sm80_entries};
use crate::mask::{self, Mask};
use crate::params::{ForwardParams, Sm80Params, WorkTile};
use crate::score_mod::{NoScoreMod, ScoreMod};
use crate::streamed_softmax::{Exponents, Rescale, StreamedSoftmax};
use crate::tile::fragment::{self, Position};
use crate::tile::swizzled_rows::{LaneView, SwizzledRows, TileCopier};
use cuda_std::element::Half;
use cuda_std::global::GlobalPtr;
use cuda_std::mutant;
use cuda_std::shared::{self, SharedPtr};
use cuda_std::{cp_async, mma, register, thread, warp};

/// The ring of tiles through which blocks of K and V pass in turn. Places are counted in chunks of 16 bytes.
#[derive(Clone, Copy)]
struct Ring<const CHUNKS: u32, const BLOCK_N: u32, const SLOTS: u32> {
    first: SharedPtr<u16>,
    /// The slot that is read now.
    read: u32,
}

impl<const CHUNKS: u32, const BLOCK_N: u32, const SLOTS: u32> Ring<CHUNKS, BLOCK_N, SLOTS> {
    const TILE: u32 = BLOCK_N * CHUNKS;
    /// Tiles that are on their way while one is read.
    const AHEAD: u32 = SLOTS - 1;

    #[inline(always)]
    fn new(first: SharedPtr<u16>) -> Self {
        Ring { first, read: 0 }
    }

    #[inline(always)]
    fn slot(self, index: u32) -> SwizzledRows<CHUNKS> {
        SwizzledRows::new(self.first.offset(index * Self::TILE * 8))
    }

    /// The tile to read.
    #[inline(always)]
    fn tile(self) -> SwizzledRows<CHUNKS> {
        SwizzledRows::new(self.first.offset(self.read * 8))
    }

    /// The slot that was read before this one: free after [`wait`](Self::wait).
    #[inline(always)]
    fn free_slot(self) -> SwizzledRows<CHUNKS> {
        let free = if self.read == 0 { (SLOTS - 1) * Self::TILE } else { self.read - Self::TILE };
        SwizzledRows::new(self.first.offset(free * 8))
    }

    /// Waits until the tile to read has arrived, for every thread; the slot before it is then free.
    #[inline(always)]
    fn wait(self) {
        wait_until_pending(Self::AHEAD - 1);
        thread::sync_threads();
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.read = if self.read == (SLOTS - 1) * Self::TILE { 0 } else { self.read + Self::TILE };
    }
}

/// [`cp_async::wait_group`] with a number of groups that is constant only after inlining.
#[inline(always)]
fn wait_until_pending(groups: u32) {
    match groups {
        0 => cp_async::wait_group::<0>(),
        1 => cp_async::wait_group::<1>(),
        2 => cp_async::wait_group::<2>(),
        3 => cp_async::wait_group::<3>(),
        _ => cp_async::wait_group::<4>(),
    }
}

/// The copies of one head's K and V.
struct KeysAndValues<const CHUNKS: u32, const BLOCK_N: u32, const THREADS: u32> {
    k: TileCopier<CHUNKS, THREADS>,
    v: TileCopier<CHUNKS, THREADS>,
    seqlen: i32,
    blocks: i32,
}

impl<const CHUNKS: u32, const BLOCK_N: u32, const THREADS: u32> KeysAndValues<CHUNKS, BLOCK_N, THREADS> {
    /// Starts the copy of the tile `ahead` places after block `block`'s K, if there is one, as a group of its own.
    ///
    /// # Safety
    /// All threads of the block; the tiles come in order; nobody reads `slot` before its wait.
    #[inline(always)]
    unsafe fn start(&mut self, block: i32, ahead: u32, slot: SwizzledRows<CHUNKS>) {
        let block = block + (ahead / 2) as i32;
        if block < self.blocks {
            let source = if ahead.is_multiple_of(2) { &mut self.k } else { &mut self.v };
            // SAFETY: as the caller promises.
            unsafe { source.copy_next::<BLOCK_N>(slot, self.seqlen - block * BLOCK_N as i32) }
        }
        // Also an empty group counts, so that the waits need no other number at the end.
        cp_async::commit_group();
    }
}

/// Attention forward for one block of query rows.
///
/// `CHUNKS` is the tile's head dim in chunks of 8; `S` and `O` are a lane's scores and outputs of 16 rows, `BLOCK_N / 2`
/// and `4 * CHUNKS`; `TILES` the tiles of 16 rows of a warp.
///
/// # Thread mapping
/// Warp `w` owns the `16 * TILES` query rows from row `16 * TILES * w` of the block's tile on; inside a tile of 16
/// rows, lane `4 * r + t` holds rows `r` and `r + 8` ([`fragment`]). All threads copy K and V.
///
/// # Safety
/// `THREADS` threads, one block a tile, the dynamic shared memory of the entry table, and addresses, shapes and strides
/// that the host has checked: rows of Q, K, V and O are aligned to 16 bytes.
#[inline(always)]
pub unsafe fn forward<
    T: Half,
    M: Mask,
    X: ScoreMod,
    const CHUNKS: u32,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const S: usize,
    const O: usize,
    const TILES: usize,
    const THREADS: u32,
    const SLOTS: u32,
>(
    params: &Sm80Params,
    score_mod: X,
) {
    const { assert!(BLOCK_M == THREADS / 32 * 16 * TILES as u32 && S == BLOCK_N as usize / 2) };
    // The tile, and the keys that its rows and this warp's rows see.
    let Sm80Params { forward: params, order } = params;
    let warp_rows = 16 * TILES as i32;
    // Made anew wherever it is wanted, to spare the mainloop the registers: what went through a shuffle, no compiler
    // takes for what it knows already.
    let tile_and_row_of_warp = || {
        let causal = matches!(M::KIND, MaskKind::Causal);
        let tile = order.tile(warp::uniform(thread::block_idx_x()), causal);
        let warp = warp::uniform(thread::thread_idx_x() / warp::WARP_SIZE);
        (tile, (tile.block_m * BLOCK_M) as i32 + warp as i32 * warp_rows)
    };
    let (at, warp_row) = tile_and_row_of_warp();
    let mask = M::new(params.causal_offset);
    let (seqlen_q, seqlen_k) = (params.seqlen_q as i32, params.seqlen_k as i32);
    let first_row = (at.block_m * BLOCK_M) as i32;
    let rows = |first, rows| BlockRange::new(mask, first, rows, BLOCK_N as i32, seqlen_q, seqlen_k);
    let blocks = rows(first_row, BLOCK_M as i32);
    let own = if warp_row < seqlen_q { rows(warp_row, warp_rows) } else { BlockRange { full: 0, end: 0 } };

    // Where everything comes from, and its places in shared memory: the ring, then Q, unless it passes through the
    // ring's last slots on its way to registers.
    let q_in_registers = config::sm80_q_in_registers(CHUNKS * 8, BLOCK_M, THREADS);
    let (batch, head, kv_head) = (at.batch as i64, at.head as i64, order.kv_head(at.head) as i64);
    let q_strides = params.q_strides;
    let q_head = GlobalPtr::new(params.q).offset(batch * q_strides.batch + head * q_strides.head);
    let k_head =
        GlobalPtr::new(params.k).offset(batch * params.k_strides.batch + kv_head * params.k_strides.head);
    let v_head =
        GlobalPtr::new(params.v).offset(batch * params.v_strides.batch + kv_head * params.v_strides.head);
    let mut q = TileCopier::<CHUNKS, THREADS>::new(q_head, q_strides.seq, first_row, params.head_dim);
    let mut kv = KeysAndValues::<CHUNKS, BLOCK_N, THREADS> {
        k: TileCopier::new(k_head, params.k_strides.seq, 0, params.head_dim),
        v: TileCopier::new(v_head, params.v_strides.seq, 0, params.head_dim_v),
        seqlen: seqlen_k,
        blocks: blocks.end,
    };
    let mut ring = Ring::<CHUNKS, BLOCK_N, SLOTS>::new(shared::dynamic_shared_mem());
    let q_slots = if q_in_registers { BLOCK_M.div_ceil(BLOCK_N) } else { 0 };
    let q_tile = ring.slot(SLOTS - q_slots);
    let q_lane = || {
        let warp = register::opaque(thread::thread_idx_x()) / warp::WARP_SIZE;
        q_tile.lane().offset(warp * 16 * TILES as u32 * CHUNKS)
    };

    // The first copies; Q in registers leaves its slots to K and V.
    let mut q_frag = [[[0; 4]; 32]; TILES];
    // SAFETY: the slots are free and taken in the ring's order.
    unsafe {
        q.copy_next::<BLOCK_M>(q_tile, seqlen_q - first_row);
        if q_in_registers {
            cp_async::commit_group();
        }
        let beside_q = (SLOTS - q_slots).min(Ring::<CHUNKS, BLOCK_N, SLOTS>::AHEAD);
        for slot in 0..beside_q {
            kv.start(0, slot, ring.slot(slot));
        }
        if q_in_registers {
            wait_until_pending(beside_q);
            thread::sync_threads();
            load_q::<CHUNKS, TILES>(&mut q_frag, q_lane());
            thread::sync_threads();
            for slot in beside_q..Ring::<CHUNKS, BLOCK_N, SLOTS>::AHEAD {
                kv.start(0, slot, ring.slot(slot));
            }
        }
    }

    // The mainloop over blocks of keys.
    let ahead = Ring::<CHUNKS, BLOCK_N, SLOTS>::AHEAD;
    let scale_log2 = if X::IDENTITY { params.scale } else { 1.0 } * core::f32::consts::LOG2_E;
    let mut softmax = StreamedSoftmax::<TILES>::new(scale_log2);
    let mut o_frag = [[0.0; O]; TILES];
    for block in 0..own.end {
        // K: scores, mask, and the maximum.
        ring.wait();
        // SAFETY: the barrier has freed the slot.
        unsafe { kv.start(block, ahead, ring.free_slot()) }
        let mut s_frag = [[0.0; S]; TILES];
        let k_lane = ring.tile().lane_of_rows();
        // SAFETY: both tiles are visible.
        unsafe {
            if q_in_registers {
                scores::<T, CHUNKS, S, TILES, _>(&mut s_frag, k_lane, |m, step| q_frag[m][step]);
            } else {
                let q_lane = q_lane();
                let q = |m, step| q_lane.a(16 * m as u32, 16 * step as u32);
                scores::<T, CHUNKS, S, TILES, _>(&mut s_frag, k_lane, q);
            }
        }
        let partial = block >= own.full;
        if !X::IDENTITY || partial {
            let (_, row) = tile_and_row_of_warp();
            let mask = M::new(register::opaque(params.causal_offset as u32) as i32);
            for m in 0..TILES {
                let row = register::opaque(row as u32) as i32 + 16 * m as i32;
                let at = Position::of_fresh_lane(row, block * BLOCK_N as i32);
                if !X::IDENTITY {
                    fragment::modify_scores(&mut s_frag[m], score_mod, params.scale, at);
                }
                if partial {
                    fragment::mask_scores(&mut s_frag[m], mask, at, seqlen_k);
                }
            }
        }
        let rescale = softmax.admit(&mut s_frag);
        ring.advance();

        // V: weights and output.
        ring.wait();
        // SAFETY: the barrier has freed the slot; the tile is visible.
        unsafe {
            kv.start(block, ahead + 1, ring.free_slot());
            output::<T, CHUNKS, S, O, TILES>(&mut o_frag, &s_frag, &mut softmax, rescale, ring.tile().lane());
        }
        ring.advance();
    }
    // Where this warp's rows see no more keys, it still helps with the copies for those that do.
    for block in own.end..blocks.end {
        for half in 0..2 {
            ring.wait();
            // SAFETY: the barrier has freed the slot.
            unsafe { kv.start(block, ahead + half, ring.free_slot()) }
            ring.advance();
        }
    }
    cp_async::wait_group::<0>();

    // The epilogue.
    let (at, warp_row) = tile_and_row_of_warp();
    for m in 0..TILES {
        // SAFETY: the host has checked addresses and strides.
        unsafe { store::<T, O, TILES>(&o_frag[m], &softmax, m, params, at, warp_row + 16 * m as i32) }
    }
}

/// Loads a warp's rows of Q.
#[inline(always)]
unsafe fn load_q<const CHUNKS: u32, const TILES: usize>(
    q_frag: &mut [[[u32; 4]; 32]; TILES],
    q_lane: LaneView<CHUNKS>,
) {
    for m in 0..TILES {
        for step in 0..CHUNKS as usize / 2 {
            // SAFETY: Q is visible.
            q_frag[m][step] = unsafe { q_lane.a(16 * m as u32, 16 * step as u32) };
        }
    }
}

/// `S = Q K^T` for a warp's rows and a block of keys; `q` gives 16 rows by 16 columns of Q.
#[inline(always)]
unsafe fn scores<
    T: Half,
    const CHUNKS: u32,
    const S: usize,
    const TILES: usize,
    Q: Fn(usize, usize) -> [u32; 4],
>(
    s_frag: &mut [[f32; S]; TILES],
    k_lane: LaneView<CHUNKS>,
    q: Q,
) {
    for step in 0..CHUNKS as usize / 2 {
        let mut q_step = [[0; 4]; TILES];
        for m in 0..TILES {
            q_step[m] = q(m, step);
        }
        for pair in 0..S / 8 {
            // SAFETY: the tile is visible.
            let k = unsafe { k_lane.b_of_rows(16 * pair as u32, 16 * step as u32) };
            for m in 0..TILES {
                multiply::<T, S>(&mut s_frag[m], 2 * pair, q_step[m], k[0]);
                multiply::<T, S>(&mut s_frag[m], 2 * pair + 1, q_step[m], k[1]);
            }
        }
    }
}

/// `O = rescale O + P V` for a warp's rows and a block of keys, making P from the scores on the way.
#[inline(always)]
unsafe fn output<T: Half, const CHUNKS: u32, const S: usize, const O: usize, const TILES: usize>(
    o_frag: &mut [[f32; O]; TILES],
    s_frag: &[[f32; S]; TILES],
    softmax: &mut StreamedSoftmax<TILES>,
    rescale: Rescale<TILES>,
    v_lane: LaneView<CHUNKS>,
) {
    // Each part is two weights of one row, one register of an A operand: four a tile of 16 rows by 16 keys.
    let parts = 4 * TILES;
    let pairs = CHUNKS as usize / 2;
    let exponents = softmax.exponents();
    let mut next = [[0; 4]; TILES];
    for part in 0..parts {
        next[part / 4][part % 4] = weights::<T, S, TILES>(s_frag, softmax, &exponents, 0, part);
    }
    for step in 0..S / 8 {
        let p_frag = next;
        for pair in 0..pairs {
            // SAFETY: the tile is visible.
            let v = unsafe { v_lane.b_of_columns(16 * step as u32, 16 * pair as u32) };
            for m in 0..TILES {
                if step == 0 {
                    rescale.apply(&mut o_frag[m], m, 2 * pair);
                    rescale.apply(&mut o_frag[m], m, 2 * pair + 1);
                }
                multiply::<T, O>(&mut o_frag[m], 2 * pair, p_frag[m], v[0]);
                multiply::<T, O>(&mut o_frag[m], 2 * pair + 1, p_frag[m], v[1]);
            }
            if step + 1 < S / 8 {
                for part in pair * parts / pairs..(pair + 1) * parts / pairs {
                    next[part / 4][part % 4] =
                        weights::<T, S, TILES>(s_frag, softmax, &exponents, step + 1, part);
                }
            }
        }
    }
}

/// Register `part % 4` of the weights of 16 keys, step `step`, for tile `part / 4` of the warp's rows.
#[inline(always)]
fn weights<T: Half, const S: usize, const TILES: usize>(
    s_frag: &[[f32; S]; TILES],
    softmax: &mut StreamedSoftmax<TILES>,
    exponents: &Exponents<TILES>,
    step: usize,
    part: usize,
) -> u32 {
    let (m, row) = (part / 4, part % 2);
    let at = 8 * step + 2 * (part % 4);
    let (low, high) = (exponents.weight(s_frag[m][at], m, row), exponents.weight(s_frag[m][at + 1], m, row));
    softmax.count(low + high, m, row);
    T::pack(low, high)
}

/// `acc[group] += a b`, where `acc` holds groups of 8 columns.
#[inline(always)]
fn multiply<T: Half, const N: usize>(acc: &mut [f32; N], group: usize, a: [u32; 4], b: [u32; 2]) {
    let at = 4 * group;
    let mut part = [acc[at], acc[at + 1], acc[at + 2], acc[at + 3]];
    mma::m16n8k16::<T>(&mut part, a, b);
    [acc[at], acc[at + 1], acc[at + 2], acc[at + 3]] = part;
}

/// Normalises and writes 16 rows of O and LSE, those that exist.
#[inline(always)]
unsafe fn store<T: Half, const O: usize, const TILES: usize>(
    o_frag: &[f32; O],
    softmax: &StreamedSoftmax<TILES>,
    m: usize,
    params: &ForwardParams,
    at: WorkTile,
    first_row: i32,
) {
    let (batch, head) = (at.batch as i64, at.head as i64);
    let strides = params.o_strides;
    let o_head = GlobalPtr::<u16>::new(params.o).offset(batch * strides.batch + head * strides.head);
    let lse_head = GlobalPtr::<f32>::new(params.lse)
        .offset((batch * params.heads as i64 + head) * params.seqlen_q as i64);
    let row = Position::of_lane(first_row, 0).row;
    for half in 0..2 {
        let row = row as i64 + 8 * half as i64;
        let valid = row < params.seqlen_q as i64 + mutant!(OneRowMore, 1, 0);
        let (factor, lse) = softmax.finish(m, half);
        // SAFETY: rows past the sequence are not written; the host has checked strides and alignment.
        unsafe {
            let o_row = o_head.offset(row * strides.seq);
            fragment::store_row::<T, O>(o_frag, half, factor, o_row, params.head_dim_v, valid);
            if valid && params.lse != 0 && warp::lane_id().is_multiple_of(4) {
                lse_head.store(row, lse);
            }
        }
    }
}

macro_rules! define {
    ($($name:ident: $dtype:ident $d:literal $mask:ident $block_m:literal $block_n:literal $slots:literal $threads:literal $min_blocks:literal;)*) => {$(
        /// Entry of [`forward`]; see there for what it expects.
        ///
        /// # Safety
        /// As [`forward`].
        #[cuda_std::kernel(threads = $threads, min_blocks = $min_blocks)]
        pub unsafe fn $name(params: Sm80Params) {
            // SAFETY: as the caller promises.
            unsafe {
                forward::<cuda_std::element::$dtype, mask::$mask, NoScoreMod, { $d / 8 }, $block_m, $block_n,
                    { $block_n / 2 }, { $d / 2 }, { $block_m / ($threads / 2) }, $threads, $slots>(&params, NoScoreMod)
            }
        }
    )*

        /// The entries by name, for the simulated device.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const FUNCTIONS: &[(&str, unsafe fn(Sm80Params))] = &[$((stringify!($name), $name)),*];
    };
}

sm80_entries!(define);
