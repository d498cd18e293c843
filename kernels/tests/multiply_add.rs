//! The families on plain multiply-adds, `tiled` and `standard`, on the simulated device against softmax in f64, over
//! the shapes and layouts that are easy to get wrong.

mod call;

use call::{Call, Layout};
use flash_attention_kernels::config::Family;

const FAMILIES: [Family; 2] = [Family::Tiled, Family::Standard];

fn run(call: Call) {
    for family in FAMILIES {
        call.check(&call.run_as(family));
    }
}

#[test]
fn tails_in_every_dimension() {
    for (seqlen_q, seqlen_k) in [(1, 1), (63, 65), (64, 64), (70, 130), (5, 200), (130, 3)] {
        for causal in [false, true] {
            run(Call { seqlen_q, seqlen_k, causal, ..Call::default() });
        }
    }
}

#[test]
fn every_tile_and_type() {
    for head_dim in [32, 64, 128, 256] {
        for dtype in ["f32", "f16", "bf16"] {
            for causal in [false, true] {
                let (head_dim_v, seqlen_q, seqlen_k) = (head_dim, 35, 68);
                run(Call { dtype, head_dim, head_dim_v, seqlen_q, seqlen_k, causal, ..Call::default() });
            }
        }
    }
}

#[test]
fn odd_head_dims() {
    for (head_dim, head_dim_v) in [(1, 1), (3, 30), (33, 7), (72, 128), (129, 5), (8, 255)] {
        run(Call { head_dim, head_dim_v, seqlen_q: 9, seqlen_k: 11, ..Call::default() });
    }
}

#[test]
fn both_alignments_and_rows_without_keys() {
    for (seqlen_q, seqlen_k) in [(40, 100), (100, 40), (3, 0), (0, 3)] {
        for top_left in [false, true] {
            run(Call { seqlen_q, seqlen_k, causal: true, top_left, ..Call::default() });
        }
    }
    run(Call { seqlen_q: 3, seqlen_k: 0, ..Call::default() });
}

#[test]
fn batches_heads_and_groups() {
    for (heads, kv_heads) in [(1, 1), (4, 2), (6, 1)] {
        for causal in [false, true] {
            run(Call { batch: 3, heads, kv_heads, seqlen_q: 65, seqlen_k: 20, causal, ..Call::default() });
        }
    }
}

#[test]
fn any_stride_and_alignment() {
    for layout in [Layout::Bshd, Layout::Bhsd, Layout::Gaps { row: 4 }, Layout::Gaps { row: 3 }] {
        for dtype in ["f32", "bf16"] {
            for first in [0, 1, 4] {
                let (batch, heads, kv_heads, seqlen_q, seqlen_k) = (2, 2, 2, 9, 10);
                let shape = Call { batch, heads, kv_heads, seqlen_q, seqlen_k, ..Call::default() };
                run(Call { dtype, layout, first, ..shape });
            }
        }
    }
}

#[test]
fn enormous_scores() {
    for magnitude in [1e4, 1e15] {
        run(Call { magnitude, seqlen_q: 20, seqlen_k: 70, causal: true, ..Call::default() });
    }
}

#[test]
fn the_output_does_not_depend_on_the_schedule_and_lse_may_be_left_out() {
    for family in FAMILIES {
        let call = Call { seqlen_q: 70, seqlen_k: 70, causal: true, ..Call::default() };
        let first = call.run_as(family);
        for seed in 1..4 {
            let again = Call { seed, ..call }.run_as(family);
            assert!(again.o == first.o && again.lse == first.lse, "{family:?} seed {seed}");
        }
        assert!(Call { without_lse: true, ..call }.run_as(family).o == first.o, "{family:?}");
    }
}

#[test]
fn a_nan_stays_in_its_row() {
    for family in FAMILIES {
        for seqlen_k in [1, 70] {
            let call = Call { seqlen_q: 70, seqlen_k, nan_query: Some(5), ..Call::default() };
            let result = call.run_as(family);
            call.check(&result);
            assert!(result.lse[5].is_nan() && result.lse.iter().filter(|lse| lse.is_nan()).count() == 1);
        }
    }
}

/// Rows of scores that take a warp several steps.
#[test]
fn long_rows() {
    for (seqlen_q, seqlen_k) in [(2, 700), (70, 1030)] {
        for causal in [false, true] {
            run(Call { seqlen_q, seqlen_k, causal, ..Call::default() });
        }
    }
}
