//! One table of entries: everything that exists as a compiled kernel, by family.
//!
//! Each family's macro lists its rows once and hands them to a callback. Three readers expand them: `forward/`
//! makes the `#[kernel]` functions, [`ENTRIES`] tells build-ptx which entries to expect, and the host's plan picks
//! its candidates from the same rows.

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
}

/// One compiled kernel: its name in the PTX and what it was compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The symbol in the PTX, and the stem of the file that holds it.
    pub name: &'static str,
    /// Algorithm and instruction set.
    pub family: Family,
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
}

impl Entry {
    /// The architecture that the entry is compiled for, as `-C target-cpu` names it.
    pub const fn arch(&self) -> &'static str {
        match self.family {
            Family::Standard | Family::Tiled | Family::Sm80 => "sm_80",
            Family::Sm90 => "sm_90a",
        }
    }
}

/// The tables of all families.
const FAMILIES: &[&[Entry]] = &[];

/// All entries, family by family.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    FAMILIES.iter().copied().flatten()
}

/// Rows of the Hopper kernel: type, head dim, mask, keys a block, consumer warpgroups, stages of the K and V rings,
/// stages of Q, threads.
macro_rules! sm90_entries {
    ($callback:ident) => {
        $callback! {
            sm90_bf16_d128_full_c2n128s2q1r32: Bf16 128 Full 128 2 2 1 32 384;
            sm90_bf16_d128_causal_c2n128s2q1r32: Bf16 128 Causal 128 2 2 1 32 384;
            sm90_bf16_d128_full_c2n128s3q1r32: Bf16 128 Full 128 2 3 1 32 384;
            sm90_bf16_d128_causal_c2n128s3q1r32: Bf16 128 Causal 128 2 3 1 32 384;
            sm90_bf16_d128_full_c2n128s2q2r0: Bf16 128 Full 128 2 2 2 0 384;
            sm90_bf16_d128_causal_c2n128s2q2r0: Bf16 128 Causal 128 2 2 2 0 384;
            sm90_bf16_d64_full_c3n128s2q2r0: Bf16 64 Full 128 3 2 2 0 512;
            sm90_bf16_d64_causal_c3n128s2q2r0: Bf16 64 Causal 128 3 2 2 0 512;
            sm90_bf16_d64_full_c3n112s2q1r16: Bf16 64 Full 112 3 2 1 16 512;
            sm90_bf16_d64_causal_c3n112s2q1r16: Bf16 64 Causal 112 3 2 1 16 512;
            sm90_bf16_d64_full_c3n96s2q1r16: Bf16 64 Full 96 3 2 1 16 512;
            sm90_bf16_d64_causal_c3n96s2q1r16: Bf16 64 Causal 96 3 2 1 16 512;
            sm90_bf16_d64_full_c4n64s2q2r0: Bf16 64 Full 64 4 2 2 0 640;
            sm90_bf16_d64_causal_c4n64s2q2r0: Bf16 64 Causal 64 4 2 2 0 640;
            sm90_bf16_d64_full_c2n128s2q1r16: Bf16 64 Full 128 2 2 1 16 384;
            sm90_bf16_d64_causal_c2n128s2q1r16: Bf16 64 Causal 128 2 2 1 16 384;
            sm90_bf16_d64_full_c2n128s3q1r16: Bf16 64 Full 128 2 3 1 16 384;
            sm90_bf16_d64_causal_c2n128s3q1r16: Bf16 64 Causal 128 2 3 1 16 384;
            sm90_bf16_d256_full_c2n80s2q1r0: Bf16 256 Full 80 2 2 1 0 384;
            sm90_bf16_d256_causal_c2n80s2q1r0: Bf16 256 Causal 80 2 2 1 0 384;
            sm90_bf16_d256_full_c2n64s2q1r0: Bf16 256 Full 64 2 2 1 0 384;
            sm90_bf16_d256_causal_c2n64s2q1r0: Bf16 256 Causal 64 2 2 1 0 384;
        }
    };
}
pub(crate) use sm90_entries;
