//! Every family over types, head dimensions, lengths and masks.

use super::case::Case;
use super::{DTYPES, FAMILIES, Gpu, gpu, typed};
use flash_attention::{Causal, DType, Element, Family, Stream};
use std::collections::BTreeSet;

const MASKS: [Causal; 3] = [Causal::No, Causal::BottomRight, Causal::TopLeft];
const LENGTHS: [(usize, usize); 7] = [(1, 1), (1, 77), (77, 1), (128, 128), (200, 333), (333, 200), (64, 0)];

fn head_dims(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::F16 | DType::Bf16 => &[8, 32, 40, 64, 72, 96, 128, 192, 256],
        DType::F32 => &[1, 32, 33, 64, 72, 128, 256],
    }
}

fn verify<T: Element>(case: &Case, stream: &Stream) {
    case.verify::<T>(stream, &case.inputs());
}

/// Runs those of `cases` that `family` can run, and says why it could not run the others.
fn sweep(family: Family, gpu: &Gpu, cases: impl Iterator<Item = Case>) -> usize {
    let (mut ran, mut refused) = (0, BTreeSet::new());
    for case in cases {
        match case.refusal(&gpu.properties) {
            Some(why) => {
                refused.insert(why.to_string());
            }
            None => {
                typed!(case.problem.dtype, verify(&case, &gpu.stream));
                ran += 1;
            }
        }
    }
    eprintln!("{}: {ran} cases ran", family.name());
    refused.iter().for_each(|why| eprintln!("{}: NOT RUN: {why}", family.name()));
    ran
}

fn shapes_of(family: Family) {
    let Some(gpu) = gpu() else { return };
    let cases = DTYPES.into_iter().flat_map(|dtype| {
        head_dims(dtype).iter().flat_map(move |&d| {
            LENGTHS.into_iter().flat_map(move |lengths| {
                MASKS.map(|mask| Case::new(Some(family), dtype, lengths, (d, d)).causal(mask))
            })
        })
    });
    let ran = sweep(family, &gpu, cases);
    let all = DTYPES.iter().map(|&dtype| head_dims(dtype).len() * LENGTHS.len() * MASKS.len()).sum::<usize>();
    match family {
        Family::Standard | Family::Tiled => assert_eq!(ran, all, "{} runs everything", family.name()),
        Family::Sm90 if gpu.properties.capability != (9, 0) => assert_eq!(ran, 0),
        _ => assert!(ran > 0, "{} ran nothing", family.name()),
    }
}

#[test]
fn standard() {
    shapes_of(Family::Standard);
}

#[test]
fn tiled() {
    shapes_of(Family::Tiled);
}

#[test]
fn sm80() {
    shapes_of(Family::Sm80);
}

#[test]
fn sm90() {
    shapes_of(Family::Sm90);
}

#[test]
fn value_columns_of_their_own_number() {
    let Some(gpu) = gpu() else { return };
    for family in FAMILIES {
        let cases = [(64, 128), (128, 64), (96, 40), (256, 8), (192, 128)].into_iter().flat_map(|dims| {
            [DType::Bf16, DType::F32].map(|dtype| Case::new(Some(family), dtype, (150, 210), dims))
        });
        sweep(family, &gpu, cases);
    }
}

#[test]
fn few_queries_of_grouped_heads() {
    let Some(gpu) = gpu() else { return };
    for family in FAMILIES {
        // Groups that fill the rows of a tile, and groups that leave some of them to nobody.
        let cases = [(12, 4), (14, 2), (24, 3), (40, 1)].into_iter().flat_map(|(heads, kv_heads)| {
            [(1, 300), (5, 130), (33, 70)].into_iter().flat_map(move |(s_q, s_k)| {
                MASKS.map(|mask| {
                    let d = 64;
                    let mut case = Case::new(Some(family), DType::Bf16, (s_q, s_k), (d, d)).causal(mask);
                    (case.problem.heads, case.problem.kv_heads) = (heads, kv_heads);
                    let strides = |s: usize, h: usize| flash_attention::Strides::bhsd(s, h, d);
                    (case.problem.q, case.problem.o) = (strides(s_q, heads), strides(s_q, heads));
                    (case.problem.k, case.problem.v) = (strides(s_k, kv_heads), strides(s_k, kv_heads));
                    case
                })
            })
        });
        sweep(family, &gpu, cases);
    }
}

#[test]
fn many_tiles() {
    let Some(gpu) = gpu() else { return };
    for family in FAMILIES {
        let cases = MASKS.into_iter().flat_map(|mask| {
            [64, 128].map(|d| {
                // More tiles than the GPU runs at once, so that persistent kernels hand out second ones.
                let mut case = Case::new(Some(family), DType::Bf16, (600, 700), (d, d)).causal(mask);
                (case.problem.batch, case.problem.heads, case.problem.kv_heads) = (3, 20, 5);
                let strides = |s: usize, h: usize| flash_attention::Strides::bhsd(s, h, d);
                (case.problem.q, case.problem.o) = (strides(600, 20), strides(600, 20));
                (case.problem.k, case.problem.v) = (strides(700, 5), strides(700, 5));
                case
            })
        });
        sweep(family, &gpu, cases);
    }
}
