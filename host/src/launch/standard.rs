//! Standard attention: the sizes of its scores and its three launches.

use super::{Entry, RawStream, forward_params, submit, tiles};
use crate::error::{Error, Result};
use crate::launch::Addresses;
use crate::module::Context;
use crate::plan::Packing;
use crate::problem::{Causal, MAX_SEQLEN, Problem};
use flash_attention_kernels::config;
use flash_attention_kernels::params::{ForwardParams, StandardParams, Strides};

/// Elements of a row of the scores: whole blocks of keys.
fn pitch(scores: &Entry, problem: &Problem) -> u64 {
    (problem.seqlen_k as u64).next_multiple_of(scores.block_n.into())
}

/// Bytes of the scores; `u64::MAX` where that does not say it.
pub(crate) fn scores_bytes(scores: &Entry, problem: &Problem) -> u64 {
    let rows = problem.batch as u128 * problem.heads as u128 * problem.seqlen_q as u128;
    let bytes = rows.saturating_mul(u128::from(pitch(scores, problem)) * size_of::<f32>() as u128);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The kernels of a call in the order of their launches, each with its blocks.
pub(crate) fn steps(scores: &Entry, problem: &Problem) -> Result<[(Entry, u32); 3]> {
    let [softmax, output] = config::standard_followers(scores).ok_or_else(|| {
        Error::unavailable(format!("{} has no kernels that follow it", scores.name), "name another family")
    })?;
    // A mask that hides nothing is a causal one whose offset is the number of keys.
    let lengths = problem.seqlen_q + problem.seqlen_k;
    if lengths > MAX_SEQLEN {
        return Err(Error::invalid(
            "seqlen_q + seqlen_k",
            lengths,
            format!("the kernel standard has at most {MAX_SEQLEN}"),
            "name another kernel family",
        ));
    }
    let tiles = tiles(scores, Packing::NONE, problem)?;
    let rows = problem.batch as u128 * problem.heads as u128 * problem.seqlen_q as u128;
    let softmax_blocks = rows.div_ceil(u128::from(softmax.threads / 32));
    let softmax_blocks =
        u32::try_from(softmax_blocks).ok().filter(|&blocks| blocks <= i32::MAX as u32).ok_or_else(|| {
            Error::invalid(
                "batch * heads * seqlen_q",
                format!("{rows} rows"),
                "the softmax of the kernel standard has one warp for each and at most 2147483647 blocks",
                "split the batch",
            )
        })?;
    Ok([(*scores, tiles), (*softmax, softmax_blocks), (*output, tiles)])
}

/// The launch parameters, the same for all three.
pub(crate) fn params(
    scores: &Entry,
    problem: &Problem,
    addresses: &Addresses,
    workspace: u64,
) -> StandardParams {
    let forward = forward_params(scores, Packing::NONE, problem, addresses);
    let seq = pitch(scores, problem) as i64;
    let head = seq * problem.seqlen_q as i64;
    StandardParams {
        forward: ForwardParams {
            causal_offset: match problem.causal {
                Causal::No => problem.seqlen_k as i32,
                Causal::BottomRight | Causal::TopLeft => forward.causal_offset,
            },
            ..forward
        },
        scores: workspace,
        scores_strides: Strides { batch: head * problem.heads as i64, seq, head },
    }
}

/// Puts the three launches into `stream`.
///
/// # Safety
/// As for [`super::forward_in`].
pub(super) unsafe fn run(
    context: &Context,
    scores: &Entry,
    problem: &Problem,
    addresses: &Addresses,
    stream: RawStream,
) -> Result<()> {
    let steps = steps(scores, problem)?;
    // What may be missing is found before the first launch.
    for (entry, _) in &steps {
        context.kernel(entry)?;
    }
    context.workspace().with(context.driver(), stream, scores_bytes(scores, problem), |workspace| {
        let mut params = params(scores, problem, addresses, workspace);
        steps.iter().try_for_each(|(entry, grid)| {
            // SAFETY: each entry takes one StandardParams, the workspace holds the scores and is this call's until its
            // work is done, and the memory is as the caller promises.
            unsafe { submit(context, entry, *grid, (&raw mut params).cast(), stream) }
        })
    })
}
