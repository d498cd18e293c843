//! The edge shapes of the semantics: every family against the f64 reference, without findings.

use super::case::{Case, Layout};
use flash_attention::sim::Options;
use flash_attention::{Causal, DType, Family};
use flash_attention_kernels::config::{MaskKind, entries};
use flash_attention_kernels::simulate::kernel;
use half::bf16;
use rayon::prelude::*;

/// Lengths that end inside, on and just past tiles, empty ones, and more queries than keys.
const LENGTHS: [(usize, usize); 8] =
    [(1, 1), (1, 77), (65, 64), (64, 65), (128, 128), (150, 40), (3, 0), (0, 3)];

/// The edge cases of a family whose smallest tile holds `d` columns.
pub fn edges(dtype: DType, d: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, &lengths) in LENGTHS.iter().enumerate() {
        for causal in [Causal::No, Causal::BottomRight, Causal::TopLeft] {
            // Layouts and head groups take turns: their product with the lengths tells nothing more.
            let layout = [Layout::Gaps, Layout::Bshd, Layout::Bhsd][(n + causal as usize) % 3];
            let heads = [(2, 1), (1, 1), (2, 2)][n % 3];
            cases.push(Case { causal, layout, heads, ..Case::new(dtype, lengths, d) });
        }
    }
    let narrow = (d - 8, d - 24);
    cases.push(Case { dims: narrow, layout: Layout::Gaps, ..Case::new(dtype, (40, 90), d) });
    cases.push(Case { dims: (d - 40, d), ..Case::new(dtype, (33, 17), d) });
    cases.push(Case {
        batch: 3,
        heads: (4, 2),
        causal: Causal::BottomRight,
        ..Case::new(dtype, (130, 140), d)
    });
    // NaN in one query row and one key row; scores far beyond where scale and maximum may be folded.
    let nan_rows = Some((9, 60));
    cases.push(Case { nan_rows, causal: Causal::TopLeft, ..Case::new(dtype, (90, 80), d) });
    cases.push(Case { magnitude: 3000.0, ..Case::new(dtype, (40, 70), d) });
    cases
}

/// Runs every family's cases under some schedules; all must be right and without findings.
#[track_caller]
fn sweep(cases_of: impl Fn(Family, DType, usize) -> Vec<Case>) {
    let cases: Vec<(Family, usize, Case)> = shipped()
        .into_iter()
        .flat_map(|(family, dtype, d)| {
            let cases = cases_of(family, dtype, d).into_iter().enumerate();
            cases.map(move |(n, case)| (family, n, case))
        })
        .collect();
    let faults: Vec<String> = cases
        .par_iter()
        .flat_map_iter(|(family, n, case)| {
            (0..2).flat_map(move |seed| {
                let options = Options { seed: 2 * *n as u64 + seed, ..Options::default() };
                let (name, faults) = (family.name(), case.faults(*family, &options));
                let described = move |fault| format!("{name}: {case:?} seed {}: {fault}", options.seed);
                faults.into_iter().map(described)
            })
        })
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The families of the table that the host can run, each with its types and the columns of their smallest tiles from
/// 64 on.
fn shipped() -> Vec<(Family, DType, usize)> {
    let mut shipped: Vec<(Family, DType, usize)> = Vec::new();
    for entry in entries().filter(|entry| entry.head_dim >= 64) {
        let key = (entry.family, entry.dtype);
        match shipped.iter_mut().find(|(family, dtype, _)| (*family, *dtype) == key) {
            Some((.., d)) => *d = (*d).min(entry.head_dim as usize),
            None => shipped.push((entry.family, entry.dtype, entry.head_dim as usize)),
        }
    }
    shipped
}

#[test]
fn every_entry_can_be_simulated() {
    let missing: Vec<_> = entries().filter(|entry| kernel(entry.name).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn edge_shapes_are_right_and_clean() {
    sweep(|family, dtype, d| {
        let mut cases = edges(dtype, d);
        // A tensor map cannot be made for no rows: the plan hands such a call to another family.
        cases.retain(|case| family != Family::Sm90 || case.lengths.1 > 0);
        cases
    });
}

/// Scores so large that their product with scale and log2 e, rounded to f32, is off by more than a weight can bear:
/// random ones, of which a row's largest has all the weight, and exact ones that lie close together far from 0, so that
/// many keys count.
#[test]
fn large_scores_are_right() {
    sweep(|_, dtype, d| {
        let new = || Case::new(dtype, (40, 200), d);
        let random = [20.0, 40.0, 100.0, 300.0, 1000.0].map(|magnitude| Case { magnitude, ..new() });
        let exact = [16.0, 64.0, 448.0, 1792.0, 28672.0].into_iter().flat_map(|of_k| {
            [of_k, -of_k].map(|of_k| Case {
                offset: Some((448.0, of_k)),
                magnitude: 4.0,
                causal: Causal::BottomRight,
                ..new()
            })
        });
        random.into_iter().chain(exact).collect()
    });
}

/// Scores that are negative throughout, or in many lanes of a block: the Hopper kernel takes a shorter way to the maxima
/// where no lane has negative scores only.
#[test]
fn negative_scores_are_right() {
    sweep(|_, dtype, d| {
        let cases = [1.0, 0.3, 0.1].into_iter().flat_map(|offset| {
            [Causal::No, Causal::BottomRight].map(|causal| Case {
                offset: Some((offset, -offset)),
                causal,
                ..Case::new(dtype, (70, 700), d)
            })
        });
        cases.collect()
    });
}

/// Short queries of grouped heads: in the Hopper kernel the heads of a group share tiles.
#[test]
fn grouped_heads_share_tiles() {
    let groups = [2, 3, 4, 7, 8, 16];
    let lengths = [(1, 90), (2, 200), (5, 64), (17, 130), (63, 40), (65, 70), (130, 150)];
    let mut cases = Vec::new();
    for (n, &group) in groups.iter().enumerate() {
        for (m, &lengths) in lengths.iter().enumerate() {
            for causal in [Causal::No, Causal::BottomRight, Causal::TopLeft] {
                let turn = n + m + causal as usize;
                let layout = [Layout::Bshd, Layout::Bhsd, Layout::Gaps][turn % 3];
                let kv_heads = [1, 2, 3][(n + 2 * m) % 3];
                // Rarely the large tiles: they take the simulated device long.
                let d = [64, 128, 64, 96, 64, 256, 64][(m + 3 * n) % 7];
                let dtype = [DType::Bf16, DType::F16][turn % 2];
                let new = Case::new(dtype, lengths, d);
                let heads = (group * kv_heads, kv_heads);
                cases.push(Case { causal, layout, heads, batch: 1 + turn % 2, magnitude: 2.0, ..new });
            }
        }
    }
    // Heads that fill a box, rows that are too many for one, and as many queries as the tile has rows.
    cases.push(Case { heads: (64, 1), ..Case::new(DType::Bf16, (3, 50), 64) });
    cases.push(Case { heads: (65, 1), ..Case::new(DType::Bf16, (1, 50), 64) });
    cases.push(Case { heads: (4, 2), ..Case::new(DType::Bf16, (128, 130), 128) });
    cases.push(Case { heads: (12, 2), nan_rows: Some((2, 60)), ..Case::new(DType::F16, (9, 80), 64) });
    let faults: Vec<String> = cases
        .par_iter()
        .enumerate()
        .flat_map_iter(|(n, case)| {
            let faults = case.faults(Family::Sm90, &Options { seed: n as u64, ..Options::default() });
            faults.into_iter().map(move |fault| format!("{case:?} seed {n}: {fault}"))
        })
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Sharing tiles changes no bit: a row's result does not depend on its neighbours, unless a warp has scores so large that
/// it takes the more exact way for all of its rows.
#[test]
fn sharing_tiles_changes_no_bit() {
    for (group, lengths, causal) in [(3, (20, 300), Causal::BottomRight), (8, (7, 150), Causal::No)] {
        let heads = (2 * group, 2);
        let case = Case { heads, causal, magnitude: 3.0, ..Case::new(DType::Bf16, lengths, 64) };
        let bits = |own_key_heads| case.bits::<bf16>(Family::Sm90, own_key_heads);
        assert!(bits(false) == bits(true), "{case:?}");
    }
}

/// Many tiles of one block of keys: Q's place comes free before V has arrived, and no thread that waits for that Q may
/// miss it.
#[test]
fn a_slow_thread_misses_no_tile() {
    let faults: Vec<String> = [(DType::F16, 64), (DType::F16, 96), (DType::Bf16, 128), (DType::Bf16, 256)]
        .par_iter()
        .flat_map_iter(|&(dtype, d)| {
            let case = Case { heads: (20, 20), ..Case::new(dtype, (5, 60), d) };
            (0..12).flat_map(move |seed| {
                let faults = case.faults(Family::Sm90, &Options { seed, ..Options::default() });
                faults.into_iter().take(1).map(move |fault| format!("{case:?} seed {seed}: {fault}"))
            })
        })
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// One short case for every entry: each tile and each mask is compiled for itself.
#[test]
fn every_entry_is_right_and_clean() {
    let faults: Vec<String> = entries()
        // The others run as parts of these calls.
        .filter(|entry| entry.begins_call())
        .par_bridge()
        .flat_map_iter(|entry| {
            let d = entry.head_dim as usize;
            let causal = if entry.mask == MaskKind::Full { Causal::No } else { Causal::BottomRight };
            let lengths = (entry.block_m as usize / 2 + 3, entry.block_n as usize + 9);
            let case = Case { causal, layout: Layout::Gaps, ..Case::new(entry.dtype, lengths, d) };
            let faults = case.faults(entry.family, &Options::default());
            faults.into_iter().map(move |fault| format!("{}: {fault}", entry.name))
        })
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The widest tiles of `sm80` have rings of two places, and those at d = 192 let Q pass through them: enough blocks of keys
/// for a steady ring.
#[test]
fn rings_of_two_places() {
    let lengths_and_masks = [
        ((70, 330), Causal::No),
        ((150, 290), Causal::BottomRight),
        ((290, 150), Causal::BottomRight),
        ((130, 260), Causal::TopLeft),
    ];
    let faults: Vec<String> = [192, 256]
        .par_iter()
        .flat_map_iter(|&d| lengths_and_masks.map(|(lengths, causal)| (d, lengths, causal)))
        .flat_map_iter(|(d, lengths, causal)| {
            let case = Case { causal, layout: Layout::Gaps, ..Case::new(DType::Bf16, lengths, d) };
            let faults = case.faults(Family::Sm80, &Options { seed: d as u64, ..Options::default() });
            faults.into_iter().map(move |fault| format!("{case:?}: {fault}"))
        })
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
