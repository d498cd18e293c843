//! One table of entries: everything that exists as a compiled kernel, by family.
//!
//! Each family's macro lists its rows once and hands them to a callback. Three readers expand them: `forward/`
//! makes the `#[kernel]` functions, [`entries`] tells build-ptx which entries to expect, and the host's plan picks
//! its candidates from the same rows.

mod standard;

#[cfg(any(feature = "sim", all(target_arch = "nvptx64", device_arch = "sm_80")))]
pub(crate) use standard::standard_entries;
pub use standard::{STANDARD, standard_followers};

/// Element type of Q, K, V and O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary32.
    F32,
}

impl DType {
    /// Size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F16 | DType::Bf16 => 2,
            DType::F32 => 4,
        }
    }

    /// The field's usual short name: `f16`, `bf16` or `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
        }
    }
}

/// Which algorithm and instruction set a kernel is built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Materialises the scores in device memory: the yardstick.
    Standard,
    /// Shared-memory tiles and plain FMA: the readable one, for any element type.
    Tiled,
    /// Tensor cores through `mma.sync`, copies through `cp.async`.
    Sm80,
    /// Tensor cores through `wgmma`, copies through TMA, warp-specialised.
    Sm90,
}

impl Family {
    /// The name that `--kernel` and the plan use.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Standard => "standard",
            Family::Tiled => "tiled",
            Family::Sm80 => "sm80",
            Family::Sm90 => "sm90",
        }
    }
}

/// Which mask a kernel was compiled for. The alignment of a causal mask is a launch parameter (`causal_offset`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MaskKind {
    /// Every key is allowed.
    Full,
    /// Key `j` is allowed for query `i` where `j <= i + causal_offset`.
    Causal,
    /// Either: as `Causal`, and an offset of `seqlen_k` hides nothing.
    Any,
}

impl MaskKind {
    /// Whether a kernel compiled for this mask can run a call with the mask `wanted`.
    pub fn serves(self, wanted: MaskKind) -> bool {
        self == wanted || self == MaskKind::Any
    }
}

/// Which part of a call a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// All of it, in one launch.
    Whole,
    /// Of `standard`: the scores. A call begins with it.
    Scores,
    /// Of `standard`: the weights in the place of the scores.
    Softmax,
    /// Of `standard`: the weights' product with V.
    Output,
}

/// One compiled kernel: its name in the PTX and what it was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The symbol in the PTX, and the stem of the file that holds it.
    pub name: &'static str,
    /// Algorithm and instruction set.
    pub family: Family,
    /// What it computes of a call.
    pub part: Part,
    /// Element type.
    pub dtype: DType,
    /// Largest head dimension (`d` and `d_v`) that the tile holds; smaller ones are filled up with zeros.
    pub head_dim: u32,
    /// Mask that the kernel was compiled for.
    pub mask: MaskKind,
    /// Query rows of a tile.
    pub block_m: u32,
    /// Key rows of a tile.
    pub block_n: u32,
    /// Tiles of K and of V in flight at once.
    pub stages: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Shortest key sequence that the kernel is meant for; of several that fit, the one with the longest is taken.
    pub min_seqlen: u32,
}

impl Entry {
    /// The architecture that the entry is compiled for, as `-C target-cpu` names it.
    pub const fn arch(&self) -> &'static str {
        match self.family {
            Family::Standard | Family::Tiled | Family::Sm80 => "sm_80",
            Family::Sm90 => "sm_90a",
        }
    }

    /// Whether a call begins with this kernel: only these are a plan's candidates.
    pub const fn begins_call(&self) -> bool {
        matches!(self.part, Part::Whole | Part::Scores)
    }
}

/// Rows of the kernel on plain multiply-adds: type, head dim, mask, query rows and keys of a tile, threads, threads
/// that share a row.
macro_rules! tiled_entries {
    ($callback:ident) => {
        $callback! {
            tiled_f16_d32_full: F16 32 Full 64 64 128 8;
            tiled_f16_d32_causal: F16 32 Causal 64 64 128 8;
            tiled_f16_d64_full: F16 64 Full 64 64 128 16;
            tiled_f16_d64_causal: F16 64 Causal 64 64 128 16;
            tiled_f16_d128_full: F16 128 Full 64 64 128 16;
            tiled_f16_d128_causal: F16 128 Causal 64 64 128 16;
            tiled_f16_d256_full: F16 256 Full 32 32 128 16;
            tiled_f16_d256_causal: F16 256 Causal 32 32 128 16;
            tiled_bf16_d32_full: Bf16 32 Full 64 64 128 8;
            tiled_bf16_d32_causal: Bf16 32 Causal 64 64 128 8;
            tiled_bf16_d64_full: Bf16 64 Full 64 64 128 16;
            tiled_bf16_d64_causal: Bf16 64 Causal 64 64 128 16;
            tiled_bf16_d128_full: Bf16 128 Full 64 64 128 16;
            tiled_bf16_d128_causal: Bf16 128 Causal 64 64 128 16;
            tiled_bf16_d256_full: Bf16 256 Full 32 32 128 16;
            tiled_bf16_d256_causal: Bf16 256 Causal 32 32 128 16;
            tiled_f32_d32_full: F32 32 Full 64 64 128 8;
            tiled_f32_d32_causal: F32 32 Causal 64 64 128 8;
            tiled_f32_d64_full: F32 64 Full 64 64 128 16;
            tiled_f32_d64_causal: F32 64 Causal 64 64 128 16;
            tiled_f32_d128_full: F32 128 Full 64 64 128 16;
            tiled_f32_d128_causal: F32 128 Causal 64 64 128 16;
            tiled_f32_d256_full: F32 256 Full 32 32 128 16;
            tiled_f32_d256_causal: F32 256 Causal 32 32 128 16;
        }
    };
}
#[cfg(any(feature = "sim", all(target_arch = "nvptx64", device_arch = "sm_80")))]
pub(crate) use tiled_entries;

/// Elements of a tile in shared memory: each row has 4 more than its width, against bank conflicts.
const fn padded(rows: u32, width: u32) -> u32 {
    rows * (width + 4)
}

/// Dynamic shared memory of a block of `tiled`: Q and V, and K, whose place the weights take, which may be larger.
const fn tiled_shared_bytes(head_dim: u32, block_m: u32, block_n: u32) -> u32 {
    let (k, p) = (padded(block_n, head_dim), padded(block_m, block_n));
    (padded(block_m, head_dim) + padded(block_n, head_dim) + if k > p { k } else { p })
        * size_of::<f32>() as u32
}

macro_rules! list_tiled {
    ($($name:ident: $dtype:ident $d:literal $mask:ident $block_m:literal $block_n:literal $threads:literal $width:literal;)*) => {
        /// Entries of the kernel on plain multiply-adds. They all fit the 99 KB of shared memory that every GPU since
        /// Ampere has.
        pub const TILED: &[Entry] = &[$(Entry {
            name: stringify!($name),
            family: Family::Tiled,
            part: Part::Whole,
            dtype: DType::$dtype,
            head_dim: $d,
            mask: MaskKind::$mask,
            block_m: $block_m,
            block_n: $block_n,
            stages: 1,
            threads: $threads,
            shared_bytes: tiled_shared_bytes($d, $block_m, $block_n),
            min_seqlen: 0,
        }),*];
    };
}
tiled_entries!(list_tiled);

/// Rows of the `mma.sync` kernel: type, head dim, mask, query rows and keys a block, slots of the ring that K and V
/// share, threads, blocks that an SM is meant to hold (on GPUs with less shared memory than Hopper's it may hold one).
macro_rules! sm80_entries {
    ($callback:ident) => {
        $callback! {
            sm80_bf16_d32_full: Bf16 32 Full 128 64 4 128 2;
            sm80_bf16_d32_causal: Bf16 32 Causal 128 64 4 128 2;
            sm80_bf16_d64_full: Bf16 64 Full 128 64 4 128 2;
            sm80_bf16_d64_causal: Bf16 64 Causal 128 64 4 128 2;
            sm80_bf16_d96_full: Bf16 96 Full 128 64 3 128 2;
            sm80_bf16_d96_causal: Bf16 96 Causal 128 64 3 128 2;
            sm80_bf16_d128_full: Bf16 128 Full 128 64 3 128 2;
            sm80_bf16_d128_causal: Bf16 128 Causal 128 64 3 128 2;
            sm80_bf16_d192_full: Bf16 192 Full 64 64 2 128 2;
            sm80_bf16_d192_causal: Bf16 192 Causal 64 64 2 128 2;
            sm80_bf16_d256_full: Bf16 256 Full 64 64 2 128 2;
            sm80_bf16_d256_causal: Bf16 256 Causal 64 64 2 128 2;
            sm80_f16_d32_full: F16 32 Full 128 64 4 128 2;
            sm80_f16_d32_causal: F16 32 Causal 128 64 4 128 2;
            sm80_f16_d64_full: F16 64 Full 128 64 4 128 2;
            sm80_f16_d64_causal: F16 64 Causal 128 64 4 128 2;
            sm80_f16_d96_full: F16 96 Full 128 64 3 128 2;
            sm80_f16_d96_causal: F16 96 Causal 128 64 3 128 2;
            sm80_f16_d128_full: F16 128 Full 128 64 3 128 2;
            sm80_f16_d128_causal: F16 128 Causal 128 64 3 128 2;
            sm80_f16_d192_full: F16 192 Full 64 64 2 128 2;
            sm80_f16_d192_causal: F16 192 Causal 64 64 2 128 2;
            sm80_f16_d256_full: F16 256 Full 64 64 2 128 2;
            sm80_f16_d256_causal: F16 256 Causal 64 64 2 128 2;
        }
    };
}
#[cfg(any(feature = "sim", all(target_arch = "nvptx64", device_arch = "sm_80")))]
pub(crate) use sm80_entries;

/// Whether a warp of the `mma.sync` kernel keeps its rows of Q in registers: where they are few and narrow.
pub(crate) const fn sm80_q_in_registers(head_dim: u32, block_m: u32, threads: u32) -> bool {
    let rows_of_warp = block_m / (threads / 32);
    head_dim <= if rows_of_warp == 16 { 192 } else { 64 }
}

/// Dynamic shared memory of a block of the `mma.sync` kernel: the ring, which Q passes through on its way to registers,
/// and Q's own tile where it stays.
const fn sm80_shared_bytes(head_dim: u32, block_m: u32, block_n: u32, slots: u32, threads: u32) -> u32 {
    let q_rows = if sm80_q_in_registers(head_dim, block_m, threads) { 0 } else { block_m };
    (q_rows + slots * block_n) * head_dim * 2
}

macro_rules! list_sm80 {
    ($($name:ident: $dtype:ident $d:literal $mask:ident $block_m:literal $block_n:literal $slots:literal $threads:literal $min_blocks:literal;)*) => {
        /// Entries of the `mma.sync` kernel. They all fit the 99 KB of shared memory that every GPU since Ampere has.
        pub const SM80: &[Entry] = &[$(Entry {
            name: stringify!($name),
            family: Family::Sm80,
            part: Part::Whole,
            dtype: DType::$dtype,
            head_dim: $d,
            mask: MaskKind::$mask,
            block_m: $block_m,
            block_n: $block_n,
            stages: $slots,
            threads: $threads,
            shared_bytes: sm80_shared_bytes($d, $block_m, $block_n, $slots, $threads),
            min_seqlen: 0,
        }),*];
    };
}
sm80_entries!(list_sm80);

/// Rows of the Hopper kernel: type, head dim, mask, keys a block, consumer warpgroups of 64 query rows, stages of the
/// K and V rings, stages of Q, registers of Q a thread (0: Q stays in shared memory), threads, shortest key sequence.
///
/// Short sequences want another shape than long ones: smaller tiles or a second place for Q, so that the end of one tile
/// and the start of the next overlap; long ones want few bytes moved for each product. docs/sm90.md has the measurements.
macro_rules! sm90_entries {
    ($callback:ident) => {
        $callback! {
            sm90_bf16_d64_full_short: Bf16 64 Full 64 4 3 1 0 640 0;
            sm90_bf16_d64_full: Bf16 64 Full 128 3 2 2 0 512 2048;
            sm90_bf16_d64_causal_short: Bf16 64 Causal 128 2 3 1 16 384 0;
            sm90_bf16_d64_causal: Bf16 64 Causal 128 3 2 2 0 512 1536;
            sm90_bf16_d96_full: Bf16 96 Full 128 2 2 1 24 384 0;
            sm90_bf16_d96_causal: Bf16 96 Causal 128 2 2 1 24 384 0;
            sm90_bf16_d128_full_short: Bf16 128 Full 128 2 2 2 0 384 0;
            sm90_bf16_d128_full: Bf16 128 Full 128 2 2 1 32 384 768;
            sm90_bf16_d128_causal_short: Bf16 128 Causal 128 2 2 2 0 384 0;
            sm90_bf16_d128_causal: Bf16 128 Causal 128 2 2 1 32 384 1536;
            sm90_bf16_d192_full: Bf16 192 Full 96 2 2 1 0 384 0;
            sm90_bf16_d192_causal: Bf16 192 Causal 96 2 2 1 0 384 0;
            sm90_bf16_d256_full: Bf16 256 Full 64 2 2 1 0 384 0;
            sm90_bf16_d256_causal: Bf16 256 Causal 64 2 2 1 0 384 0;
            sm90_f16_d64_full_short: F16 64 Full 64 4 3 1 0 640 0;
            sm90_f16_d64_full: F16 64 Full 128 3 2 2 0 512 2048;
            sm90_f16_d64_causal_short: F16 64 Causal 128 2 3 1 16 384 0;
            sm90_f16_d64_causal: F16 64 Causal 128 3 2 2 0 512 1536;
            sm90_f16_d96_full: F16 96 Full 128 2 2 1 24 384 0;
            sm90_f16_d96_causal: F16 96 Causal 128 2 2 1 24 384 0;
            sm90_f16_d128_full_short: F16 128 Full 128 2 2 2 0 384 0;
            sm90_f16_d128_full: F16 128 Full 128 2 2 1 32 384 768;
            sm90_f16_d128_causal_short: F16 128 Causal 128 2 2 2 0 384 0;
            sm90_f16_d128_causal: F16 128 Causal 128 2 2 1 32 384 1536;
            sm90_f16_d192_full: F16 192 Full 96 2 2 1 0 384 0;
            sm90_f16_d192_causal: F16 192 Causal 96 2 2 1 0 384 0;
            sm90_f16_d256_full: F16 256 Full 64 2 2 1 0 384 0;
            sm90_f16_d256_causal: F16 256 Causal 64 2 2 1 0 384 0;
        }
    };
}
#[cfg(any(feature = "sim", all(target_arch = "nvptx64", device_arch = "sm_90a")))]
pub(crate) use sm90_entries;

/// Dynamic shared memory of a block of the Hopper kernel: the tiles of Q, the rings of K and V in slabs of 64 columns,
/// a pair of barriers for each of their places and for the two tile numbers ahead, and those numbers.
const fn sm90_shared_bytes(head_dim: u32, block_n: u32, consumers: u32, stages: u32, q_stages: u32) -> u32 {
    let row_bytes = head_dim.div_ceil(64) * 128;
    let tiles = (64 * consumers * q_stages + 2 * stages * block_n) * row_bytes;
    tiles + 16 * (q_stages + 2 * stages + 2) + 16
}

macro_rules! list_sm90 {
    ($($name:ident: $dtype:ident $d:literal $mask:ident $block_n:literal $consumers:literal $stages:literal $q_stages:literal $q:literal $threads:literal $from:literal;)*) => {
        /// Entries of the Hopper kernel.
        pub const SM90: &[Entry] = &[$(Entry {
            name: stringify!($name),
            family: Family::Sm90,
            part: Part::Whole,
            dtype: DType::$dtype,
            head_dim: $d,
            mask: MaskKind::$mask,
            block_m: 64 * $consumers,
            block_n: $block_n,
            stages: $stages,
            threads: $threads,
            shared_bytes: sm90_shared_bytes($d, $block_n, $consumers, $stages, $q_stages),
            min_seqlen: $from,
        }),*];
    };
}
sm90_entries!(list_sm90);

/// The tables of all families.
const FAMILIES: &[&[Entry]] = &[STANDARD, TILED, SM80, SM90];

/// All entries, family by family.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    FAMILIES.iter().copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_the_rows_hold() {
        for entry in entries() {
            let part = match entry.part {
                Part::Whole => "",
                Part::Scores => "_scores",
                Part::Softmax => "_softmax",
                Part::Output => "_output",
            };
            let shape = match entry.part {
                Part::Softmax => format!("m{}", entry.block_m),
                _ => format!("{}_d{}", entry.dtype.name(), entry.head_dim),
            };
            let mask = match entry.mask {
                MaskKind::Full => "_full",
                MaskKind::Causal => "_causal",
                MaskKind::Any => "",
            };
            let name = format!("{}{part}_{shape}{mask}", entry.family.name());
            assert_eq!(entry.name.trim_end_matches("_short"), name);
        }
    }

    #[test]
    fn tiles_fit_the_smallest_shared_memory() {
        for entry in [STANDARD, TILED, SM80].concat() {
            assert!(entry.shared_bytes <= 99 << 10, "{entry:?}");
        }
    }
}
