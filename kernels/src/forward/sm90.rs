//! The Hopper kernel: TMA copies, `wgmma` products, two producer threads and two to four consumer warpgroups.
//!
//! Every consumer warpgroup owns 64 query rows of a tile and runs the paper's Algorithm 1 over the tile's key blocks,
//! from the last block to the first. The producers walk the same tiles ahead of it, as far as the rings of shared
//! memory let them. docs/sm90.md tells the whole story with a picture of who waits for whom.

mod consumer;

use crate::block_range::BlockRange;
use crate::config::{MaskKind, sm90_entries};
use crate::mask::{self, Mask};
use crate::params::{Sm90Params, WorkTile};
use crate::persistent::Scheduler;
use crate::pipeline::{Carver, Gates, PipelineState, publish_barriers};
use crate::score_mod::{NoScoreMod, ScoreMod};
use crate::tile::swizzled::{Rows, SharedTile, Tiles};
use core::marker::PhantomData;
use core::mem::offset_of;
use cuda_std::element::Half;

use cuda_std::shared::SharedPtr;
use cuda_std::tma::ParamAddress;
use cuda_std::wgmma::Accumulator;
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
struct Shared<const D: u32, const BLOCK_N: u32, const STAGES: u32, const Q_STAGES: u32> {
    q: Tiles<WARPGROUP_ROWS, D>,
    k: Tiles<BLOCK_N, D>,
    v: Tiles<BLOCK_N, D>,
    q_gates: Gates<Q_STAGES>,
    k_gates: Gates<STAGES>,
    v_gates: Gates<STAGES>,
    /// Numbers of the tiles ahead, for all but the thread that hands them out.
    tile_numbers: SharedPtr<u32>,
    tile_gates: Gates<TILES_AHEAD>,
}

/// One launch: what every thread of a block knows.
///
/// `S`, `P`, `O` and `Q` are a consumer thread's registers of scores, packed weights, output and queries:
/// `BLOCK_N / 2`, `BLOCK_N / 4`, `D / 2`, and `D / 4` where the queries are kept in registers, else 0.
struct Kernel<
    'a,
    T,
    M,
    X,
    const D: u32,
    const BLOCK_N: u32,
    const CONSUMERS: u32,
    const STAGES: u32,
    const Q_STAGES: u32,
    const S: usize,
    const P: usize,
    const O: usize,
    const Q: usize,
> {
    params: &'a Sm90Params,
    score_mod: X,
    shared: Shared<D, BLOCK_N, STAGES, Q_STAGES>,
    of: PhantomData<(T, M)>,
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
    /// Whether a tile's first scores are computed beside the output of the tile before. That needs a second place for
    /// Q: in shared memory or in registers.
    const TILES_OVERLAP: bool = Q_STAGES > 1 || Q > 0;
    /// Whether the output gets its factors as soon as its products are complete, and not in front of the next ones.
    /// The later place is 0.6 to 1.4 percent faster, except that with many columns of output it holds up the products.
    const RESCALE_AT_ONCE: bool = D > 128;
    /// How stale a row's maximum may be, in powers of two: as much as leaves the error within 2 percent of
    /// FlashAttention-3's in bf16 and of FlashAttention-2's in f16.
    const RESCALE_THRESHOLD: f32 = if T::BF16 { 0.5 } else { 0.0 };
    /// How many of a block's weights come before the wait for the output in the program; the assembler has the last word.
    /// A quarter instead of an eighth is up to 1 percent faster at d = 128, and up to 5 percent slower at d = 64.
    const WEIGHTS_BEFORE_WAIT: usize = if D > 64 && D <= 128 { S / 4 } else { S / 8 };

    /// Attention forward for one launch: splits the block's warpgroups into producers and consumers.
    ///
    /// # Safety
    /// `(CONSUMERS + 1) * 128` threads, the dynamic shared memory of the entry table, tensor maps at `maps` as
    /// [`Sm90Params`] says, and addresses, shapes and strides that the host has checked.
    #[inline(always)]
    unsafe fn run(params: &Sm90Params, maps: ParamAddress, score_mod: X) {
        let mut carver = Carver::new();
        let shared = Shared {
            q: carver.tiles(CONSUMERS * Q_STAGES),
            k: carver.tiles(STAGES),
            v: carver.tiles(STAGES),
            q_gates: carver.gates(),
            k_gates: carver.gates(),
            v_gates: carver.gates(),
            tile_numbers: carver.words(TILES_AHEAD),
            tile_gates: carver.gates(),
        };
        let kernel = Kernel::<T, M, X, D, BLOCK_N, CONSUMERS, STAGES, Q_STAGES, S, P, O, Q> {
            params,
            score_mod,
            shared,
            of: PhantomData,
        };
        let thread = thread::thread_idx_x();
        let warpgroup = warp::uniform(thread / WARPGROUP_THREADS);
        if thread == 0 {
            let readers = CONSUMERS * WARPGROUP_THREADS / warp::WARP_SIZE;
            // SAFETY: one thread, before any use. Q and the tile numbers the second producer waits for as well.
            unsafe {
                kernel.shared.q_gates.init(readers + 1);
                kernel.shared.k_gates.init(readers);
                kernel.shared.v_gates.init(readers);
                kernel.shared.tile_gates.init(readers + 1);
            }
        }
        publish_barriers();

        // Producers need few registers; the consumers take what they leave.
        if warpgroup == 0 {
            match CONSUMERS {
                2 => warp::decrease_registers::<40>(),
                3 => warp::decrease_registers::<32>(),
                _ => warp::decrease_registers::<24>(),
            }
            // SAFETY: as the caller promises; one thread each, of different warps.
            unsafe {
                if thread == 0 {
                    kernel.produce_queries_and_keys(maps);
                } else if thread == warp::WARP_SIZE {
                    kernel.produce_values(maps);
                }
            }
        } else {
            match CONSUMERS {
                2 => warp::increase_registers::<232>(),
                3 => warp::increase_registers::<160>(),
                _ => warp::increase_registers::<112>(),
            }
            // SAFETY: as the caller promises.
            unsafe { kernel.consume(warpgroup - 1) }
        }
    }

    /// The key blocks that a tile visits. A tile whose rows see no key visits one block, in which all is masked.
    #[inline(always)]
    fn key_blocks(&self, tile: WorkTile) -> BlockRange {
        let block_m = CONSUMERS * WARPGROUP_ROWS;
        self.blocks_of_rows(tile.block_m * block_m, block_m)
    }

    /// The key blocks for the packed rows from `first` on, whole queries, at least one.
    #[inline(always)]
    fn blocks_of_rows(&self, first: u32, rows: u32) -> BlockRange {
        let forward = &self.params.forward;
        let mask = M::new(forward.causal_offset);
        let (seqlen_q, seqlen_k) = (forward.seqlen_q as i32, forward.seqlen_k as i32);
        let packing = self.params.packing;
        let (first, queries) = (packing.query(first) as i32, packing.query(rows) as i32);
        let range = BlockRange::new(mask, first, queries, BLOCK_N as i32, seqlen_q, seqlen_k);
        BlockRange { full: range.full, end: range.end.max(1) }
    }

    /// The rows of K and V that a tile's key block `n` is.
    #[inline(always)]
    fn key_rows(&self, tile: WorkTile, n: i32) -> Rows {
        let head = self.params.order.kv_head(tile.head) as i32;
        Rows { first: n * BLOCK_N as i32, head, batch: tile.batch as i32 }
    }

    /// Tile number `number`; a causal mask's longest tiles come first.
    #[inline(always)]
    fn tile(&self, number: u32) -> WorkTile {
        self.params.order.tile(number, matches!(M::KIND, MaskKind::Causal))
    }

    /// Waits for the next tile's number and leaves its place in the ring; `None` ends the work. Called by one thread, or
    /// by `WHOLE_WARPS`.
    #[inline(always)]
    unsafe fn next_tile<const WHOLE_WARPS: bool>(
        &self,
        state: &mut PipelineState<TILES_AHEAD>,
    ) -> Option<WorkTile> {
        // SAFETY: a reader of the ring, with its own state.
        let number = unsafe {
            self.shared.tile_gates.wait_full(*state);
            let number = self.shared.tile_numbers.load(state.stage);
            if WHOLE_WARPS {
                self.shared.tile_gates.release_loaded(*state);
            } else {
                self.shared.tile_gates.release(*state);
            }
            number
        };
        state.advance();
        (number != NO_TILE).then(|| self.tile(number))
    }

    /// The first producer thread takes tiles, tells the others, and starts the copies of Q and K as buffers get free.
    #[inline(always)]
    unsafe fn produce_queries_and_keys(&self, maps: ParamAddress) {
        let shared = &self.shared;
        let q_map = maps.tensor_map(offset_of!(Sm90Params, q_map));
        let k_map = maps.tensor_map(offset_of!(Sm90Params, k_map));
        let mut scheduler = Scheduler::new(self.params);
        let mut tile_state = PipelineState::new();
        let mut q_state = PipelineState::new();
        let mut k_state = PipelineState::new();
        // SAFETY: the one thread that fills these rings; each opened buffer gets the copies that it announces.
        unsafe {
            loop {
                let number = scheduler.take();
                shared.tile_gates.wait_empty(tile_state);
                shared.tile_numbers.store(tile_state.stage, number.unwrap_or(NO_TILE));
                shared.tile_gates.open(tile_state, 0);
                tile_state.advance();
                let Some(number) = number else { break };
                let tile = self.tile(number);
                let end = self.key_blocks(tile).end;
                let mut n = end;
                while n > 0 {
                    n -= 1;
                    let full = shared.k_gates.acquire(k_state, SharedTile::<BLOCK_N, D>::BYTES);
                    shared.k.at(k_state.stage).load(k_map, self.key_rows(tile, n), full);
                    k_state.advance();
                    // Q comes second: the last block's K has a free buffer first.
                    if n == end - 1 {
                        let bytes = CONSUMERS * SharedTile::<WARPGROUP_ROWS, D>::BYTES;
                        let full = shared.q_gates.acquire(q_state, bytes);
                        for consumer in 0..CONSUMERS {
                            let first = (tile.block_m * CONSUMERS + consumer) * WARPGROUP_ROWS;
                            let rows = Rows {
                                first: self.params.packing.query(first) as i32,
                                head: tile.head as i32,
                                batch: tile.batch as i32,
                            };
                            shared.q.at(q_state.stage * CONSUMERS + consumer).load_packed(q_map, rows, full);
                        }
                        q_state.advance();
                    }
                }
            }
            scheduler.finish();
        }
    }

    /// The second producer thread starts the copies of V.
    #[inline(always)]
    unsafe fn produce_values(&self, maps: ParamAddress) {
        let shared = &self.shared;
        let v_map = maps.tensor_map(offset_of!(Sm90Params, v_map));
        let mut tile_state = PipelineState::new();
        let mut q_state = PipelineState::<Q_STAGES>::new();
        let mut v_state = PipelineState::new();
        // SAFETY: the one thread that fills this ring; each opened buffer gets the copies that it announces.
        unsafe {
            while let Some(tile) = self.next_tile::<false>(&mut tile_state) {
                // Q is wanted sooner, and copies queue. The place is not this thread's to free, but it has to have seen
                // that Q before the next one comes: two rounds later the barrier looks as if it had not come yet.
                shared.q_gates.wait_full(q_state);
                shared.q_gates.release(q_state);
                q_state.advance();
                let mut n = self.key_blocks(tile).end;
                while n > 0 {
                    n -= 1;
                    let full = shared.v_gates.acquire(v_state, SharedTile::<BLOCK_N, D>::BYTES);
                    shared.v.at(v_state.stage).load(v_map, self.key_rows(tile, n), full);
                    v_state.advance();
                }
            }
        }
    }
}

macro_rules! define {
    ($($name:ident: $dtype:ident $d:literal $mask:ident $block_n:literal $consumers:literal $stages:literal $q_stages:literal $q:literal $threads:literal $from:literal;)*) => {
    $(
        /// Entry of the Hopper kernel for the row of the table that has its name.
        ///
        /// # Safety
        /// `params` as [`Sm90Params`] says, with every shape, stride and address checked by the host; grid and block
        /// as the table and the plan say.
        ///
        /// # Thread mapping
        /// Warpgroup 0 produces, each other one owns 64 query rows of the tile; 4 lanes share a row.
        #[cuda_std::kernel(threads = $threads, min_blocks = 1)]
        pub unsafe fn $name(params: Sm90Params, maps: ParamAddress) {
            // SAFETY: as the caller promises.
            unsafe {
                Kernel::<cuda_std::element::$dtype, mask::$mask, NoScoreMod, $d, $block_n, $consumers, $stages,
                    $q_stages, { $block_n / 2 }, { $block_n / 4 }, { $d / 2 }, $q>::run(&params, maps, NoScoreMod)
            }
        }
    )*
        /// The entries by name, for the simulated device.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const FUNCTIONS: &[(&str, unsafe fn(Sm90Params, ParamAddress))] = &[$((stringify!($name), $name)),*];
    };
}

sm90_entries!(define);
