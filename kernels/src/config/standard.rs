//! The table of standard attention, whose calls have three kernels.

use super::{DType, Entry, Family, MaskKind, Part, padded};

/// Rows of standard attention. The tiles: names of the kernels for the scores and for the output, type, head dim, query
/// rows and keys of a tile, threads, threads that share a row. The softmax, for each number of query rows: that number,
/// the keys of a tile, threads, of which each warp takes a row.
///
/// Tiles are those of `tiled`, except that at head dim 256, where nothing else needs the shared memory, a tile has 64
/// keys. One kernel serves both masks.
macro_rules! standard_entries {
    ($callback:ident) => {
        $callback! {
            tiles {
                standard_scores_f16_d32 standard_output_f16_d32: F16 32 64 64 128 8;
                standard_scores_f16_d64 standard_output_f16_d64: F16 64 64 64 128 16;
                standard_scores_f16_d128 standard_output_f16_d128: F16 128 64 64 128 16;
                standard_scores_f16_d256 standard_output_f16_d256: F16 256 32 64 128 16;
                standard_scores_bf16_d32 standard_output_bf16_d32: Bf16 32 64 64 128 8;
                standard_scores_bf16_d64 standard_output_bf16_d64: Bf16 64 64 64 128 16;
                standard_scores_bf16_d128 standard_output_bf16_d128: Bf16 128 64 64 128 16;
                standard_scores_bf16_d256 standard_output_bf16_d256: Bf16 256 32 64 128 16;
                standard_scores_f32_d32 standard_output_f32_d32: F32 32 64 64 128 8;
                standard_scores_f32_d64 standard_output_f32_d64: F32 64 64 64 128 16;
                standard_scores_f32_d128 standard_output_f32_d128: F32 128 64 64 128 16;
                standard_scores_f32_d256 standard_output_f32_d256: F32 256 32 64 128 16;
            }
            softmax {
                standard_softmax_m32: 32 64 128;
                standard_softmax_m64: 64 64 128;
            }
        }
    };
}
#[cfg(any(feature = "sim", all(target_arch = "nvptx64", device_arch = "sm_80")))]
pub(crate) use standard_entries;

/// Dynamic shared memory of the scores' kernel: a tile of Q and one of K.
const fn standard_scores_bytes(head_dim: u32, block_m: u32, block_n: u32) -> u32 {
    (padded(block_m, head_dim) + padded(block_n, head_dim)) * size_of::<f32>() as u32
}

/// Dynamic shared memory of the output's kernel: a tile of weights and one of V.
const fn standard_output_bytes(head_dim: u32, block_m: u32, block_n: u32) -> u32 {
    (padded(block_m, block_n) + padded(block_n, head_dim)) * size_of::<f32>() as u32
}

macro_rules! list_standard {
    (
        tiles { $($scores:ident $output:ident: $dtype:ident $d:literal $block_m:literal $block_n:literal $threads:literal $width:literal;)* }
        softmax { $($softmax:ident: $softmax_m:literal $softmax_n:literal $softmax_threads:literal;)* }
    ) => {
        /// The entries. They all fit the 99 KB of shared memory that every GPU since Ampere has.
        pub const STANDARD: &[Entry] = &[
            $(Entry {
                name: stringify!($scores),
                part: Part::Scores,
                dtype: DType::$dtype,
                head_dim: $d,
                block_m: $block_m,
                block_n: $block_n,
                threads: $threads,
                shared_bytes: standard_scores_bytes($d, $block_m, $block_n),
                ..STANDARD_ENTRY
            },
            Entry {
                name: stringify!($output),
                part: Part::Output,
                dtype: DType::$dtype,
                head_dim: $d,
                block_m: $block_m,
                block_n: $block_n,
                threads: $threads,
                shared_bytes: standard_output_bytes($d, $block_m, $block_n),
                ..STANDARD_ENTRY
            },)*
            $(Entry {
                name: stringify!($softmax),
                block_m: $softmax_m,
                block_n: $softmax_n,
                threads: $softmax_threads,
                ..STANDARD_ENTRY
            },)*
        ];
    };
}
standard_entries!(list_standard);

/// What the entries of standard attention have in common, and the rest of the softmax: it works on f32 scores whatever
/// the head dimension.
const STANDARD_ENTRY: Entry = Entry {
    name: "",
    family: Family::Standard,
    part: Part::Softmax,
    dtype: DType::F32,
    head_dim: 0,
    mask: MaskKind::Any,
    block_m: 0,
    block_n: 0,
    stages: 1,
    threads: 0,
    shared_bytes: 0,
    min_seqlen: 0,
};

/// The kernels that follow `scores` in a call of standard attention: softmax and output. None where `scores` is no such
/// kernel, or the table has no others with its tile.
pub fn standard_followers(scores: &Entry) -> Option<[&'static Entry; 2]> {
    if scores.part != Part::Scores {
        return None;
    }
    let same_tile = |e: &&Entry| (e.block_m, e.block_n) == (scores.block_m, scores.block_n);
    let softmax = STANDARD.iter().find(|e| e.part == Part::Softmax && same_tile(e))?;
    let output = STANDARD.iter().find(|e| {
        e.part == Part::Output && same_tile(e) && (e.dtype, e.head_dim) == (scores.dtype, scores.head_dim)
    })?;
    Some([softmax, output])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TILED;

    #[test]
    fn what_begins_can_be_ended() {
        for entry in STANDARD.iter().filter(|entry| entry.begins_call()) {
            let [softmax, output] = standard_followers(entry).unwrap();
            assert_eq!((softmax.part, output.part), (Part::Softmax, Part::Output), "{entry:?}");
        }
        assert_eq!(standard_followers(&TILED[0]), None);
    }
}
