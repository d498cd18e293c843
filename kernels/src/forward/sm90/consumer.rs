//! The consumer warpgroups of the Hopper kernel: mainloop and epilogue.

use super::{Kernel, TILES_AHEAD, WARPGROUP_ROWS};
use crate::block_range::BlockRange;
use crate::config::MaskKind;
use crate::fragment_softmax::{OnlineSoftmax, Rescale};
use crate::mask::Mask;
use crate::params::WorkTile;
use crate::pipeline::{PipelineState, Turns};
use crate::score_mod::ScoreMod;
use crate::tile::fragment::{self, Position};
use cuda_std::element::Half;
use cuda_std::global::GlobalPtr;
use cuda_std::mutant;
use cuda_std::wgmma::{self, Accumulator};
use cuda_std::{thread, warp};

/// What a consumer warpgroup keeps in registers, and where it stands in the rings.
struct Consumer<
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
    const S: usize,
    const P: usize,
    const O: usize,
    const Q: usize,
> {
    /// Which of the warpgroups.
    index: u32,
    /// First row of this warp in the warpgroup's 64.
    warp_row: u32,
    turns: Turns<CONSUMERS>,
    tile_state: PipelineState<TILES_AHEAD>,
    q_state: PipelineState<Q_STAGES>,
    k_state: PipelineState<STAGES>,
    v_state: PipelineState<STAGES>,
    q_frag: [u32; Q],
    /// Scores of a block, then its weights.
    s_frag: [f32; S],
    /// Weights of the block before, packed.
    p_frag: [u32; P],
    /// Output, unnormalised.
    o_frag: [f32; O],
    softmax: OnlineSoftmax,
    /// What the output is due before the next product joins it.
    rescale: Rescale,
}

/// A tile, as one warpgroup sees it.
#[derive(Clone, Copy)]
struct Work {
    tile: WorkTile,
    /// The key blocks of this warpgroup's own rows.
    blocks: BlockRange,
    /// Whether the tile's last block is for other warpgroups only.
    skips_last: bool,
}

/// What a mask needs to know about a warp's 16 rows.
#[derive(Clone, Copy)]
struct Bounds<M> {
    mask: M,
    first_row: i32,
    seqlen_k: i32,
}

impl<
    T: Half,
    M: Mask,
    X: ScoreMod,
    const D: u32,
    const BLOCK_N: u32,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
    const S: usize,
    const P: usize,
    const O: usize,
    const Q: usize,
> Kernel<'_, T, M, X, D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES, S, P, O, Q>
where
    [f32; S]: Accumulator,
    [f32; O]: Accumulator,
{
    /// A consumer warpgroup: 64 query rows of every tile, from scores to stored output.
    ///
    /// While a block's weights are computed, the tensor cores already work on the output's share of the block before,
    /// and at a tile's end on the next tile's first scores.
    #[inline(always)]
    pub(super) unsafe fn consume(&self, index: u32) {
        let forward = &self.params.forward;
        let mut consumer = Consumer {
            index,
            warp_row: warp::uniform(thread::thread_idx_x() / warp::WARP_SIZE) % 4 * 16,
            turns: Turns::<CONSUMERS>::join(index),
            tile_state: PipelineState::new(),
            q_state: PipelineState::new(),
            k_state: PipelineState::new(),
            v_state: PipelineState::new(),
            q_frag: [0; Q],
            s_frag: [0.0; S],
            p_frag: [0; P],
            o_frag: [0.0; O],
            softmax: OnlineSoftmax::new(0.0, 0.0),
            rescale: Rescale::NONE,
        };
        // SAFETY: the whole warpgroup runs this; every buffer is waited for before and released after its use.
        unsafe {
            // There is a first tile: the host starts no more blocks than there are tiles.
            let mut next = self.next_queries(&mut consumer);
            self.start_scores(&mut consumer);
            while let Some(Work { tile, blocks, skips_last }) = next {
                let first_row =
                    ((tile.block_m * CONSUMERS + index) * WARPGROUP_ROWS + consumer.warp_row) as i32;
                if skips_last {
                    // The others' last block: its turn and its V.
                    consumer.turns.wait();
                    consumer.turns.pass();
                    self.shared.v_gates.wait_full(consumer.v_state);
                    self.shared.v_gates.release(consumer.v_state);
                    consumer.v_state.advance();
                }
                let mask = M::new(forward.causal_offset);
                let bounds = Bounds { mask, first_row, seqlen_k: forward.seqlen_k as i32 };

                // The last block, the only one that may reach past the end of the keys; then those on the diagonal
                // with the mask, then those left of it without.
                let mut n = blocks.end - 1;
                self.first_block(&mut consumer, n, n >= blocks.full, bounds);
                while n > blocks.full {
                    n -= 1;
                    self.next_block::<true>(&mut consumer, n, bounds);
                }
                while n > 0 {
                    n -= 1;
                    self.next_block::<false>(&mut consumer, n, bounds);
                }

                // The last share of the output, and behind it the next tile's first scores.
                self.shared.v_gates.wait_full(consumer.v_state);
                if Self::TILES_OVERLAP {
                    next = self.next_queries(&mut consumer);
                    consumer.turns.wait();
                    self.start_output(&mut consumer);
                    // At the very end these are scores of stale tiles that nobody looks at: cheaper than a branch.
                    self.start_scores(&mut consumer);
                    consumer.turns.pass();
                    consumer.o_frag.wait::<1>();
                } else {
                    self.start_output(&mut consumer);
                    consumer.o_frag.wait::<0>();
                }
                self.shared.v_gates.release(consumer.v_state);
                consumer.v_state.advance();
                self.store(&consumer.o_frag, consumer.softmax, tile, first_row);
                if !Self::TILES_OVERLAP {
                    next = self.next_queries(&mut consumer);
                    self.start_scores(&mut consumer);
                }
            }
            consumer.s_frag.wait::<0>();
        }
    }

    /// Learns of the next tile and waits for its Q and first K.
    #[inline(always)]
    unsafe fn next_queries(
        &self,
        consumer: &mut Consumer<CONSUMERS, STAGES, Q_STAGES, S, P, O, Q>,
    ) -> Option<Work> {
        // SAFETY: the rings are initialised and the states this warpgroup's own.
        unsafe {
            let work = self
                .next_tile::<true>(&mut consumer.tile_state)
                .map(|tile| self.own_work(tile, consumer.index));
            if let Some(work) = work {
                self.shared.q_gates.wait_full(consumer.q_state);
                if Q > 0 {
                    let q_tile = self.shared.q.at(consumer.q_state.stage * CONSUMERS + consumer.index);
                    let lane = warp::fresh_lane_id();
                    for step in 0..Q / 4 {
                        let q = q_tile.fragment(consumer.warp_row, lane, step as u32);
                        for i in 0..4 {
                            consumer.q_frag[4 * step + i] = q[i];
                        }
                    }
                    self.shared.q_gates.release_loaded(consumer.q_state);
                    consumer.q_state.advance();
                }
                self.shared.k_gates.wait_full(consumer.k_state);
                if work.skips_last {
                    self.shared.k_gates.release(consumer.k_state);
                    consumer.k_state.advance();
                    self.shared.k_gates.wait_full(consumer.k_state);
                }
            }
            work
        }
    }

    /// What of a tile is warpgroup `index`'s: below a causal mask's diagonal its rows may end a block sooner.
    ///
    /// A block as wide as the tile is tall all warpgroups need, unless the sequences' lengths put the diagonal at an odd
    /// place. More than one block it does not skip: it would then wait, out of turn, for a buffer that others have yet to leave.
    #[inline(always)]
    fn own_work(&self, tile: WorkTile, index: u32) -> Work {
        let blocks = self.key_blocks(tile);
        if !matches!(M::KIND, MaskKind::Causal) || BLOCK_N >= CONSUMERS * WARPGROUP_ROWS {
            return Work { tile, blocks, skips_last: false };
        }
        let own = self.blocks_of_rows((tile.block_m * CONSUMERS + index) * WARPGROUP_ROWS, WARPGROUP_ROWS);
        let end = own.end.max(blocks.end - 1);
        Work { tile, blocks: BlockRange { full: own.full, end }, skips_last: end < blocks.end }
    }

    /// A tile's first block of scores becomes weights; the output starts at zero.
    #[inline(always)]
    unsafe fn first_block(
        &self,
        consumer: &mut Consumer<CONSUMERS, STAGES, Q_STAGES, S, P, O, Q>,
        n: i32,
        masked: bool,
        bounds: Bounds<M>,
    ) {
        // SAFETY: the scores are this warpgroup's group in flight.
        unsafe {
            consumer.s_frag.wait::<0>();
            self.leave_keys(consumer, n);
        }
        self.adjust_scores(consumer, n, masked, bounds);
        let scale = if X::IDENTITY { self.params.forward.scale } else { 1.0 };
        consumer.softmax = OnlineSoftmax::new(scale * core::f32::consts::LOG2_E, Self::RESCALE_THRESHOLD);
        // Nothing to rescale yet.
        consumer.softmax.look_at::<true, S>(&mut consumer.s_frag);
        consumer.softmax.weigh(&mut consumer.s_frag, 0, S);
        consumer.softmax.add_block();
        consumer.p_frag = fragment::pack::<T, S, P>(&consumer.s_frag);
        consumer.o_frag = [0.0; O];
        consumer.rescale = Rescale::NONE;
    }

    /// Block `n`: its scores, beside the output's share of the block before; then its weights.
    #[inline(always)]
    unsafe fn next_block<const MASKED: bool>(
        &self,
        consumer: &mut Consumer<CONSUMERS, STAGES, Q_STAGES, S, P, O, Q>,
        n: i32,
        bounds: Bounds<M>,
    ) {
        // SAFETY: buffers are waited for before they are read, products before their registers are touched.
        unsafe {
            self.shared.k_gates.wait_full(consumer.k_state);
            consumer.turns.wait();
            self.start_scores(consumer);
            self.shared.v_gates.wait_full(consumer.v_state);
            self.start_output(consumer);
            consumer.turns.pass();
            consumer.s_frag.wait::<1>();
            self.leave_keys(consumer, n);
            self.adjust_scores(consumer, n, MASKED, bounds);
            let growth = consumer.softmax.look_at::<MASKED, S>(&mut consumer.s_frag);
            consumer.softmax.weigh(&mut consumer.s_frag, 0, Self::WEIGHTS_BEFORE_WAIT);
            let o_frag = &mut consumer.o_frag;
            consumer.rescale = consumer.softmax.wait_and_rescale(growth, o_frag, Self::RESCALE_AT_ONCE);
            self.shared.v_gates.release(consumer.v_state);
            consumer.v_state.advance();
            consumer.softmax.weigh(&mut consumer.s_frag, Self::WEIGHTS_BEFORE_WAIT, S);
            consumer.softmax.add_block();
            consumer.p_frag = fragment::pack::<T, S, P>(&consumer.s_frag);
        }
    }

    /// Leaves the K of block `n`, and after a tile's last scores its Q.
    #[inline(always)]
    unsafe fn leave_keys(&self, consumer: &mut Consumer<CONSUMERS, STAGES, Q_STAGES, S, P, O, Q>, n: i32) {
        // SAFETY: the products that read them are complete, as the caller promises.
        unsafe {
            self.shared.k_gates.release(consumer.k_state);
            consumer.k_state.advance();
            if n == 0 && Q == 0 {
                self.shared.q_gates.release(consumer.q_state);
                consumer.q_state.advance();
            }
        }
    }

    /// Modifies and masks the scores of block `n`.
    #[inline(always)]
    fn adjust_scores(
        &self,
        consumer: &mut Consumer<CONSUMERS, STAGES, Q_STAGES, S, P, O, Q>,
        n: i32,
        masked: bool,
        bounds: Bounds<M>,
    ) {
        let shift = self.params.packing.shift();
        let at = Position { shift, ..Position::of_lane(bounds.first_row, n * BLOCK_N as i32) };
        if !X::IDENTITY {
            fragment::modify_scores(&mut consumer.s_frag, self.score_mod, self.params.forward.scale, at);
        }
        if masked {
            fragment::mask_scores(&mut consumer.s_frag, bounds.mask, at, bounds.seqlen_k);
        }
    }

    /// Starts `S = Q K^T` of the block whose K is next, as one group.
    #[inline(always)]
    unsafe fn start_scores(&self, consumer: &mut Consumer<CONSUMERS, STAGES, Q_STAGES, S, P, O, Q>) {
        let q_tile = self.shared.q.at(consumer.q_state.stage * CONSUMERS + consumer.index);
        let k_tile = self.shared.k.at(consumer.k_state.stage);
        wgmma::fence();
        for step in 0..D / 16 {
            let k = k_tile.columns_contracted(step);
            // SAFETY: both tiles are full and stay so until the group is waited for.
            unsafe {
                if Q > 0 {
                    let q = fragment::operand(&consumer.q_frag, step as usize);
                    consumer.s_frag.multiply_registers_by_rows::<T>(q, k, step > 0);
                } else {
                    consumer.s_frag.multiply_shared::<T>(q_tile.columns_contracted(step), k, step > 0);
                }
            }
        }
        wgmma::commit_group();
    }

    /// Starts `O += P V` of the block whose V is next, as one group. The output's factors are applied here, while the
    /// tensor cores are at the scores.
    #[inline(always)]
    unsafe fn start_output(&self, consumer: &mut Consumer<CONSUMERS, STAGES, Q_STAGES, S, P, O, Q>) {
        let v_tile = self.shared.v.at(consumer.v_state.stage);
        if !Self::RESCALE_AT_ONCE {
            consumer.rescale.apply(&mut consumer.o_frag);
        }
        wgmma::fence();
        for step in 0..P / 4 {
            let p = fragment::operand(&consumer.p_frag, step);
            // SAFETY: the tile is full and stays so until the group is waited for.
            unsafe { consumer.o_frag.multiply_registers::<T>(p, v_tile.rows_contracted(step as u32)) }
        }
        wgmma::commit_group();
    }

    /// The epilogue: normalises and writes this warp's rows of O and LSE, those that exist.
    #[inline(always)]
    unsafe fn store(&self, o_frag: &[f32; O], softmax: OnlineSoftmax, tile: WorkTile, first_row: i32) {
        let (forward, packing) = (&self.params.forward, self.params.packing);
        let (factors, lse) = softmax.finish();
        let strides = forward.o_strides;
        let batch = tile.batch as i64;
        let o_batch = GlobalPtr::<u16>::new(forward.o).offset(batch * strides.batch);
        let lse_batch =
            GlobalPtr::<f32>::new(forward.lse).offset(batch * forward.heads as i64 * forward.seqlen_q as i64);
        // The lane's number is read anew, or more than it is kept in registers all the way.
        let row = Position::of_fresh_lane(first_row, 0).row as u32;
        for half in 0..2 {
            let row = row + 8 * half as u32;
            let (query, head) = (packing.query(row), packing.head(row));
            let valid = head.is_some() && query < forward.seqlen_q + mutant!(OneRowMore, 1, 0);
            let head = (tile.head * packing.heads() + head.unwrap_or(0)) as i64;
            let query = query as i64;
            // SAFETY: rows of no query or no head are not written; the host has checked the strides and the alignment.
            unsafe {
                let o_row = o_batch.offset(query * strides.seq + head * strides.head);
                fragment::store_row::<T, O>(o_frag, half, factors[half], o_row, forward.head_dim_v, valid);
                if valid && forward.lse != 0 && warp::lane_id().is_multiple_of(4) {
                    lse_batch.store(head * forward.seqlen_q as i64 + query, lse[half]);
                }
            }
        }
    }
}
