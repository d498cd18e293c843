//! The Hopper kernel: TMA copies, wgmma products, one producer thread and two or three consumer warpgroups.

use crate::block_range::BlockRange;
use crate::config::MaskKind;
use crate::config::sm90_entries;
use crate::fragment_softmax::OnlineSoftmax;
use crate::mask::{self, Mask};
use crate::params::{Sm90Params, WorkTile};
use crate::persistent::Scheduler;
use crate::pipeline::{Carver, Gates, PipelineState, Turns, publish_barriers};
use crate::tile::fragment::{self, Position};
use crate::tile::swizzled::{Rows, SharedTile, Tiles};
use core::mem::offset_of;
use cuda_std::element::Half;
use cuda_std::global::GlobalPtr;
use cuda_std::shared::SharedPtr;
use cuda_std::tma::ParamAddress;
use cuda_std::wgmma::{self, Accumulator};
use cuda_std::{thread, warp};

/// Rows of a warpgroup's product.
const WARPGROUP_ROWS: u32 = 64;
/// Threads of a warpgroup.
const WARPGROUP_THREADS: u32 = 128;
/// Tile numbers that wait in shared memory.
const TILES_AHEAD: u32 = 2;
/// Tile number that ends the work.
const NO_TILE: u32 = u32::MAX;

/// A block's shared memory: the tiles of Q, the rings of K and V, and the barriers that guard them.
struct Shared<const D: u32, const BLOCK_N: u32, const CONSUMERS: u32, const STAGES: u32, const Q_STAGES: u32>
{
    q: Tiles<WARPGROUP_ROWS, D>,
    k: Tiles<BLOCK_N, D>,
    v: Tiles<BLOCK_N, D>,
    q_gates: Gates<Q_STAGES>,
    k_gates: Gates<STAGES>,
    v_gates: Gates<STAGES>,
    /// Numbers of the tiles ahead, for all but the warp that hands them out.
    tile_numbers: SharedPtr<u32>,
    tile_gates: Gates<TILES_AHEAD>,
}

impl<const D: u32, const BLOCK_N: u32, const CONSUMERS: u32, const STAGES: u32, const Q_STAGES: u32>
    Shared<D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>
{
    #[inline(always)]
    fn carve() -> Self {
        let mut carver = Carver::new();
        Shared {
            q: carver.tiles(CONSUMERS * Q_STAGES),
            k: carver.tiles(STAGES),
            v: carver.tiles(STAGES),
            q_gates: carver.gates(),
            k_gates: carver.gates(),
            v_gates: carver.gates(),
            tile_numbers: carver.words(TILES_AHEAD),
            tile_gates: carver.gates(),
        }
    }

    #[inline(always)]
    fn q_tile(&self, stage: u32, consumer: u32) -> SharedTile<WARPGROUP_ROWS, D> {
        self.q.at(stage * CONSUMERS + consumer)
    }
}

/// Attention forward for one launch.
///
/// `S`, `P` and `O` are a thread's registers of scores, packed weights and output: `BLOCK_N / 2`, `BLOCK_N / 4`
/// and `D / 2`.
///
/// # Safety
/// `(CONSUMERS + 1) * 128` threads, the dynamic shared memory of the entry table, tensor maps at `maps` as
/// [`Sm90Params`] says, and addresses, shapes and strides that the host has checked.
#[inline(always)]
pub unsafe fn forward<
    T: Half,
    M: Mask,
    const D: u32,
    const BLOCK_N: u32,
    const S: usize,
    const P: usize,
    const O: usize,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
    const BY_FMA: usize,
    const WAIT: usize,
    const TURN: usize,
>(
    params: &Sm90Params,
    maps: ParamAddress,
) where
    [f32; S]: Accumulator,
    [f32; O]: Accumulator,
{
    let shared = Shared::<D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>::carve();
    let warpgroup = warp::uniform(thread::thread_idx_x() / WARPGROUP_THREADS);
    if thread::thread_idx_x() == 0 {
        let readers = CONSUMERS * WARPGROUP_THREADS / warp::WARP_SIZE;
        // SAFETY: one thread, before any use.
        unsafe {
            shared.q_gates.init(readers);
            shared.k_gates.init(readers);
            shared.v_gates.init(readers);
            shared.tile_gates.init(readers + 1);
        }
    }
    publish_barriers();
    // Warpgroup 0 produces and needs few registers; the others consume and take what it leaves.
    if warpgroup == 0 {
        match CONSUMERS {
            2 => warp::decrease_registers::<40>(),
            3 => warp::decrease_registers::<32>(),
            _ => warp::decrease_registers::<24>(),
        }
        // SAFETY: as the caller promises; one thread each.
        unsafe {
            if thread::thread_idx_x() == 0 {
                produce_queries_and_keys::<M, D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>(&shared, params, maps);
            } else if thread::thread_idx_x() == warp::WARP_SIZE {
                produce_values::<M, D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>(&shared, params, maps);
            }
        }
    } else {
        match CONSUMERS {
            2 => warp::increase_registers::<232>(),
            3 => warp::increase_registers::<160>(),
            _ => warp::increase_registers::<112>(),
        }
        // SAFETY: as the caller promises.
        unsafe {
            consume::<T, M, D, BLOCK_N, S, P, O, CONSUMERS, STAGES, Q_STAGES, BY_FMA, WAIT, TURN>(
                &shared,
                params,
                warpgroup - 1,
            )
        }
    }
}

/// The key blocks that a tile visits. A tile whose rows see no key visits one block, in which all is masked.
#[inline(always)]
fn key_blocks<M: Mask, const CONSUMERS: u32, const BLOCK_N: u32>(
    params: &Sm90Params,
    tile: WorkTile,
) -> BlockRange {
    let forward = &params.forward;
    let (block_m, block_n) = ((CONSUMERS * WARPGROUP_ROWS) as i32, BLOCK_N as i32);
    let first_row = tile.block_m as i32 * block_m;
    let mask = M::new(forward.causal_offset);
    let range =
        BlockRange::new(mask, first_row, block_m, block_n, forward.seqlen_q as i32, forward.seqlen_k as i32);
    BlockRange { full: range.full, end: range.end.max(1) }
}

/// The first producer thread takes tiles, tells the others, and starts the copies of Q and K as buffers become free.
#[inline(always)]
unsafe fn produce_queries_and_keys<
    M: Mask,
    const D: u32,
    const BLOCK_N: u32,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
>(
    shared: &Shared<D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>,
    params: &Sm90Params,
    maps: ParamAddress,
) {
    let q_map = maps.tensor_map(offset_of!(Sm90Params, q_map));
    let k_map = maps.tensor_map(offset_of!(Sm90Params, k_map));
    let mut scheduler = Scheduler::new(params);
    let mut tile_state = PipelineState::<TILES_AHEAD>::new();
    let mut q_state = PipelineState::<Q_STAGES>::new();
    let mut k_state = PipelineState::<STAGES>::new();
    // SAFETY: the one thread that fills these rings; each opened buffer gets the copies that it announces.
    unsafe {
        loop {
            let number = scheduler.take();
            shared.tile_gates.wait_empty(tile_state);
            shared.tile_numbers.store(tile_state.stage, number.unwrap_or(NO_TILE));
            shared.tile_gates.open(tile_state, 0);
            tile_state.advance();
            let Some(number) = number else { break };
            let tile = params.order.tile(number, matches!(M::KIND, MaskKind::Causal));
            let mut rows =
                Rows { first: 0, head: params.order.kv_head(tile.head) as i32, batch: tile.batch as i32 };
            // The last block's K before Q: its buffer is free first.
            let mut n = key_blocks::<M, CONSUMERS, BLOCK_N>(params, tile).end;
            loop {
                n -= 1;
                rows.first = n * BLOCK_N as i32;
                let full = shared.k_gates.acquire(k_state, SharedTile::<BLOCK_N, D>::BYTES);
                shared.k.at(k_state.stage).load(k_map, rows, full);
                k_state.advance();
                if n + 1 == key_blocks::<M, CONSUMERS, BLOCK_N>(params, tile).end {
                    let full =
                        shared.q_gates.acquire(q_state, CONSUMERS * SharedTile::<WARPGROUP_ROWS, D>::BYTES);
                    for consumer in 0..CONSUMERS {
                        let first = ((tile.block_m * CONSUMERS + consumer) * WARPGROUP_ROWS) as i32;
                        let q_rows = Rows { first, head: tile.head as i32, batch: tile.batch as i32 };
                        shared.q_tile(q_state.stage, consumer).load(q_map, q_rows, full);
                    }
                    q_state.advance();
                }
                if n == 0 {
                    break;
                }
            }
        }
        scheduler.finish();
    }
}

/// The second producer thread starts the copies of V.
#[inline(always)]
unsafe fn produce_values<
    M: Mask,
    const D: u32,
    const BLOCK_N: u32,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
>(
    shared: &Shared<D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>,
    params: &Sm90Params,
    maps: ParamAddress,
) {
    let v_map = maps.tensor_map(offset_of!(Sm90Params, v_map));
    let mut tile_state = PipelineState::<TILES_AHEAD>::new();
    let mut q_state = PipelineState::<Q_STAGES>::new();
    let mut v_state = PipelineState::<STAGES>::new();
    // SAFETY: the one thread that fills this ring; each opened buffer gets the copies that it announces.
    unsafe {
        while let Some(tile) =
            next_tile::<M, D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>(shared, params, &mut tile_state)
        {
            let mut rows =
                Rows { first: 0, head: params.order.kv_head(tile.head) as i32, batch: tile.batch as i32 };
            let mut n = key_blocks::<M, CONSUMERS, BLOCK_N>(params, tile).end;
            // Q is wanted sooner, and copies queue.
            shared.q_gates.wait_full(q_state);
            q_state.advance();
            while n > 0 {
                n -= 1;
                rows.first = n * BLOCK_N as i32;
                let full = shared.v_gates.acquire(v_state, SharedTile::<BLOCK_N, D>::BYTES);
                shared.v.at(v_state.stage).load(v_map, rows, full);
                v_state.advance();
            }
        }
    }
}

/// Waits for the next tile's number and leaves its place in the ring; `None` ends the work.
#[inline(always)]
unsafe fn next_tile<
    M: Mask,
    const D: u32,
    const BLOCK_N: u32,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
>(
    shared: &Shared<D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>,
    params: &Sm90Params,
    state: &mut PipelineState<TILES_AHEAD>,
) -> Option<WorkTile> {
    // SAFETY: a reader of the ring, with its own state.
    let number = unsafe {
        shared.tile_gates.wait_full(*state);
        let number = shared.tile_numbers.load(state.stage);
        shared.tile_gates.release(*state);
        number
    };
    state.advance();
    (number != NO_TILE).then(|| params.order.tile(number, matches!(M::KIND, MaskKind::Causal)))
}

/// What a consumer warpgroup keeps in registers, and where it stands in the rings.
struct Consumer<
    'a,
    const D: u32,
    const BLOCK_N: u32,
    const S: usize,
    const P: usize,
    const O: usize,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
> {
    shared: &'a Shared<D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>,
    /// Which of the warpgroups.
    index: u32,
    turns: Turns<CONSUMERS>,
    tile_state: PipelineState<TILES_AHEAD>,
    q_state: PipelineState<Q_STAGES>,
    k_state: PipelineState<STAGES>,
    v_state: PipelineState<STAGES>,
    /// Scores of a block, then its weights.
    s_frag: [f32; S],
    /// Weights of the block before, packed.
    p_frag: [u32; P],
    /// Output, unnormalised.
    o_frag: [f32; O],
    softmax: OnlineSoftmax,
}

/// A consumer warpgroup: 64 query rows of every tile, from scores to stored output.
///
/// While a block's weights are computed, the tensor cores already work on the next block's scores and on the block's
/// before share of the output; at a tile's end they already work on the next tile's first scores.
#[inline(always)]
unsafe fn consume<
    T: Half,
    M: Mask,
    const D: u32,
    const BLOCK_N: u32,
    const S: usize,
    const P: usize,
    const O: usize,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
    const BY_FMA: usize,
    const WAIT: usize,
    const TURN: usize,
>(
    shared: &Shared<D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>,
    params: &Sm90Params,
    index: u32,
) where
    [f32; S]: Accumulator,
    [f32; O]: Accumulator,
{
    let forward = &params.forward;
    let scale_log2 = forward.scale * core::f32::consts::LOG2_E;
    let warp_row = (warp::uniform(thread::thread_idx_x() / warp::WARP_SIZE) % 4 * 16) as i32;
    let mut consumer = Consumer::<D, BLOCK_N, S, P, O, CONSUMERS, STAGES, Q_STAGES> {
        shared,
        index,
        turns: Turns::join(index),
        tile_state: PipelineState::new(),
        q_state: PipelineState::new(),
        k_state: PipelineState::new(),
        v_state: PipelineState::new(),
        s_frag: [0.0; S],
        p_frag: [0; P],
        o_frag: [0.0; O],
        softmax: OnlineSoftmax::new(scale_log2),
    };
    // SAFETY: the whole warpgroup runs this; every buffer is waited for before and released after its use.
    unsafe {
        // The first tile; the host starts no more blocks than there are tiles.
        let mut next = consumer.next_tile::<M>(params);
        consumer.start_scores::<T>();
        while let Some(tile) = next {
            let blocks = key_blocks::<M, CONSUMERS, BLOCK_N>(params, tile);
            let first_row = ((tile.block_m * CONSUMERS + index) * WARPGROUP_ROWS) as i32 + warp_row;
            let bounds =
                Bounds { mask: M::new(forward.causal_offset), first_row, seqlen_k: forward.seqlen_k as i32 };

            // The last block, the only one that may reach past the end of the keys: softmax from nothing.
            let mut n = blocks.end - 1;
            consumer.first_block::<T, M>(n, n >= blocks.full, bounds, scale_log2);
            // Towards the first block: those on the diagonal with the mask, those left of it without.
            while n > blocks.full {
                n -= 1;
                consumer.next_block::<T, M, true, 0, WAIT, TURN>(n, bounds);
            }
            while n > 0 {
                n -= 1;
                consumer.next_block::<T, M, false, BY_FMA, WAIT, TURN>(n, bounds);
            }

            // The last share of the output, and behind it the next tile's first scores.
            consumer.q_state.advance();
            shared.v_gates.wait_full(consumer.v_state);
            if Q_STAGES > 1 {
                next = consumer.next_tile::<M>(params);
                if TURN < 2 {
                    consumer.turns.wait();
                }
                consumer.start_output::<T>();
                // At the very end these are scores of stale tiles that nobody looks at: cheaper than a branch.
                consumer.start_scores::<T>();
                if TURN < 2 {
                    consumer.turns.pass();
                }
                consumer.o_frag.wait::<1, 0>();
            } else {
                consumer.start_output::<T>();
                consumer.o_frag.wait::<0, 0>();
            }
            shared.v_gates.release(consumer.v_state);
            consumer.v_state.advance();
            store::<T, O>(&consumer.o_frag, consumer.softmax, params, tile, first_row);
            if Q_STAGES == 1 {
                next = consumer.next_tile::<M>(params);
                consumer.start_scores::<T>();
            }
        }
        consumer.s_frag.wait::<0, 0>();
    }
}

/// What the mask needs to know about a warp's 16 rows.
#[derive(Clone, Copy)]
struct Bounds<M> {
    mask: M,
    first_row: i32,
    seqlen_k: i32,
}

impl<
    const D: u32,
    const BLOCK_N: u32,
    const S: usize,
    const P: usize,
    const O: usize,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
> Consumer<'_, D, BLOCK_N, S, P, O, CONSUMERS, STAGES, Q_STAGES>
where
    [f32; S]: Accumulator,
    [f32; O]: Accumulator,
{
    /// Learns of the next tile and waits for its Q and first K.
    #[inline(always)]
    unsafe fn next_tile<M: Mask>(&mut self, params: &Sm90Params) -> Option<WorkTile> {
        // SAFETY: the rings are initialised and the states this warpgroup's own.
        unsafe {
            let tile = next_tile::<M, D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES>(
                self.shared,
                params,
                &mut self.tile_state,
            );
            if tile.is_some() {
                self.shared.q_gates.wait_full(self.q_state);
                self.shared.k_gates.wait_full(self.k_state);
            }
            tile
        }
    }

    /// A tile's first block of scores becomes weights; the output starts at zero.
    #[inline(always)]
    unsafe fn first_block<T: Half, M: Mask>(
        &mut self,
        n: i32,
        masked: bool,
        bounds: Bounds<M>,
        scale_log2: f32,
    ) {
        // SAFETY: the scores are this warpgroup's group in flight.
        unsafe {
            self.s_frag.wait::<0, 0>();
            self.shared.k_gates.release(self.k_state);
            if n == 0 {
                self.shared.q_gates.release(self.q_state);
            }
        }
        self.k_state.advance();
        if masked {
            self.mask_scores(n, bounds);
        }
        self.softmax = OnlineSoftmax::new(scale_log2);
        self.softmax.look_at(&mut self.s_frag);
        self.softmax.weigh::<S, 0>(&mut self.s_frag, 0, S);
        self.p_frag = fragment::pack::<T, S, P>(&self.s_frag);
        self.o_frag = [0.0; O];
    }

    /// Block `n`: its scores, beside the output's share of the block before; then its weights.
    #[inline(always)]
    unsafe fn next_block<
        T: Half,
        M: Mask,
        const MASKED: bool,
        const BY_FMA: usize,
        const WAIT: usize,
        const TURN: usize,
    >(
        &mut self,
        n: i32,
        bounds: Bounds<M>,
    ) {
        // SAFETY: buffers are waited for before they are read, products before their registers are touched.
        unsafe {
            self.shared.k_gates.wait_full(self.k_state);
            if TURN < 2 {
                self.turns.wait();
            }
            self.start_scores::<T>();
            self.shared.v_gates.wait_full(self.v_state);
            self.start_output::<T>();
            if TURN == 0 {
                self.turns.pass();
            }
            self.s_frag.wait::<1, 0>();
            if TURN == 1 {
                self.turns.pass();
            }
            self.shared.k_gates.release(self.k_state);
            self.k_state.advance();
            if n == 0 {
                self.shared.q_gates.release(self.q_state);
            }
            if MASKED {
                self.mask_scores(n, bounds);
            }
            let rescale = self.softmax.look_at(&mut self.s_frag);
            self.softmax.weigh::<S, BY_FMA>(&mut self.s_frag, 0, S / 16 * WAIT);
            rescale.wait_and_apply(&mut self.o_frag);
            self.shared.v_gates.release(self.v_state);
            self.v_state.advance();
            self.softmax.weigh::<S, BY_FMA>(&mut self.s_frag, S / 16 * WAIT, S);
            self.p_frag = fragment::pack::<T, S, P>(&self.s_frag);
        }
    }

    #[inline(always)]
    fn mask_scores<M: Mask>(&mut self, n: i32, bounds: Bounds<M>) {
        let at = Position::of_lane(bounds.first_row, n * BLOCK_N as i32);
        fragment::mask_scores(&mut self.s_frag, bounds.mask, at, bounds.seqlen_k);
    }

    /// Starts `S = Q K^T` of the block whose K is next, as one group.
    #[inline(always)]
    unsafe fn start_scores<T: Half>(&mut self) {
        let q_tile = self.shared.q_tile(self.q_state.stage, self.index);
        let k_tile = self.shared.k.at(self.k_state.stage);
        wgmma::fence();
        for step in 0..D / 16 {
            let (q, k) = (q_tile.columns_contracted(step), k_tile.columns_contracted(step));
            // SAFETY: both tiles are full and stay so until the group is waited for.
            unsafe { self.s_frag.multiply_shared::<T>(q, k, step > 0) }
        }
        wgmma::commit_group();
    }

    /// Starts `O += P V` of the block whose V is next, as one group.
    #[inline(always)]
    unsafe fn start_output<T: Half>(&mut self) {
        let v_tile = self.shared.v.at(self.v_state.stage);
        wgmma::fence();
        for step in 0..P / 4 {
            let p = [
                self.p_frag[4 * step],
                self.p_frag[4 * step + 1],
                self.p_frag[4 * step + 2],
                self.p_frag[4 * step + 3],
            ];
            // SAFETY: the tile is full and stays so until the group is waited for.
            unsafe { self.o_frag.multiply_registers::<T>(p, v_tile.rows_contracted(step as u32)) }
        }
        wgmma::commit_group();
    }
}

/// The epilogue: normalises and writes this warp's rows of O and LSE, those that exist.
#[inline(always)]
unsafe fn store<T: Half, const O: usize>(
    o_frag: &[f32; O],
    softmax: OnlineSoftmax,
    params: &Sm90Params,
    tile: WorkTile,
    first_row: i32,
) {
    let forward = &params.forward;
    let (factors, lse) = softmax.finish();
    let (batch, head) = (tile.batch as i64, tile.head as i64);
    let strides = forward.o_strides;
    let o_head = GlobalPtr::<u16>::new(forward.o).offset(batch * strides.batch + head * strides.head);
    let lse_head = GlobalPtr::<f32>::new(forward.lse)
        .offset((batch * forward.heads as i64 + head) * forward.seqlen_q as i64);
    let row = Position::of_lane(first_row, 0).row;
    for half in 0..2 {
        let row = row as i64 + 8 * half as i64;
        let valid = row < forward.seqlen_q as i64;
        // SAFETY: rows past the sequence are not written; the host has checked the strides and the alignment.
        unsafe {
            let o_row = o_head.offset(row * strides.seq);
            fragment::store_row::<T, O>(o_frag, half, factors[half], o_row, forward.head_dim_v, valid);
            if valid && forward.lse != 0 && warp::lane_id() % 4 == 0 {
                lse_head.store(row, lse[half]);
            }
        }
    }
}

macro_rules! define {
    ($($name:ident: $dtype:ident $d:literal $mask:ident $block_n:literal $consumers:literal $stages:literal $q_stages:literal $by_fma:literal $wait:literal $turn:literal $threads:literal;)*) => {$(
        /// Entry of [`forward`]; see there for what it expects.
        ///
        /// # Safety
        /// As [`forward`].
        #[cuda_std::kernel(threads = $threads, min_blocks = 1)]
        pub unsafe fn $name(params: Sm90Params, maps: ParamAddress) {
            // SAFETY: as the caller promises.
            unsafe {
                forward::<cuda_std::element::$dtype, mask::$mask, $d, $block_n, { $block_n / 2 }, { $block_n / 4 },
                    { $d / 2 }, $consumers, $stages, $q_stages, $by_fma, $wait, $turn>(&params, maps)
            }
        }
    )*};
}

sm90_entries!(define);
