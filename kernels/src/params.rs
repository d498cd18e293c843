//! What a launch hands to a kernel: `repr(C)` structs of plain integers, the same on both sides.

/// Element strides of one tensor, as `(batch, sequence, head)`; the last dimension is contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// Elements from one batch entry to the next.
    pub batch: i64,
    /// Elements from one row of the sequence to the next.
    pub seq: i64,
    /// Elements from one head to the next.
    pub head: i64,
}

/// One call of attention forward.
///
/// Shapes: Q `(batch, seqlen_q, heads, head_dim)`, K `(batch, seqlen_k, kv_heads, head_dim)`,
/// V `(batch, seqlen_k, kv_heads, head_dim_v)`, O `(batch, seqlen_q, heads, head_dim_v)`,
/// LSE `(batch, heads, seqlen_q)`, contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardParams {
    /// Device address of Q.
    pub q: u64,
    /// Device address of K.
    pub k: u64,
    /// Device address of V.
    pub v: u64,
    /// Device address of O.
    pub o: u64,
    /// Device address of LSE, or 0 where the caller does not want it.
    pub lse: u64,
    /// Strides of Q.
    pub q_strides: Strides,
    /// Strides of K.
    pub k_strides: Strides,
    /// Strides of V.
    pub v_strides: Strides,
    /// Strides of O.
    pub o_strides: Strides,
    /// Sequences.
    pub batch: u32,
    /// Query rows of a sequence.
    pub seqlen_q: u32,
    /// Key rows of a sequence.
    pub seqlen_k: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Columns of Q and K.
    pub head_dim: u32,
    /// Columns of V and O.
    pub head_dim_v: u32,
    /// Factor on `q . k`, finite and positive.
    pub scale: f32,
    /// The offset δ of a causal mask: key `j` is allowed for query `i` where `j <= i + causal_offset`.
    pub causal_offset: i32,
    /// Blocks of query rows of a sequence: `ceil(seqlen_q / block_m)`.
    pub blocks_m: u32,
}

/// A TMA tensor map as the driver encodes it (`CUtensorMap`): 128 opaque bytes, aligned to 64 in parameter memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// A call of the Hopper kernel: the tensor maps first, where their alignment is that of the whole parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sm90Params {
    /// Map of Q.
    pub q_map: TensorMap,
    /// Map of K.
    pub k_map: TensorMap,
    /// Map of V.
    pub v_map: TensorMap,
    /// The call itself.
    pub forward: ForwardParams,
    /// Device address of this launch's work counter (u32 pairs, zero between launches), or 0 for the static order.
    pub work_counter: u64,
    /// Tiles of the whole call: `blocks_m * heads * batch`.
    pub tiles: u32,
    /// Heads whose keys and values are meant to stay in the L2 cache together.
    pub heads_per_group: u32,
}
