use super::*;

const fn entry(
    name: &'static str,
    family: Family,
    dtype: DType,
    head_dim: u32,
    mask: MaskKind,
    threads: u32,
    shared_kib: u32,
) -> Entry {
    Entry {
        name,
        family,
        part: Part::Whole,
        dtype,
        head_dim,
        mask,
        block_m: 128,
        block_n: 64,
        stages: 2,
        threads,
        shared_bytes: shared_kib << 10,
        min_seqlen: 0,
    }
}

/// A table of a test's own, so that no snapshot changes when a kernel does.
pub(crate) static TABLE: [Entry; 14] = {
    use DType::{Bf16, F16, F32};
    use Family::{Sm80, Sm90, Standard, Tiled};
    use MaskKind::{Causal, Full};
    [
        Entry {
            part: Part::Scores,
            ..entry("standard_scores_f32_d256", Standard, F32, 256, MaskKind::Any, 256, 40)
        },
        Entry {
            part: Part::Output,
            ..entry("standard_output_f32_d64", Standard, F32, 64, MaskKind::Any, 256, 40)
        },
        entry("tiled_f32_d64_full", Tiled, F32, 64, Full, 256, 64),
        entry("tiled_f32_d64_causal", Tiled, F32, 64, Causal, 256, 64),
        entry("tiled_f32_d256_full", Tiled, F32, 256, Full, 256, 96),
        entry("tiled_bf16_d64_full", Tiled, Bf16, 64, Full, 256, 48),
        entry("tiled_bf16_d256_full", Tiled, Bf16, 256, Full, 256, 96),
        entry("tiled_f16_d256_full", Tiled, F16, 256, Full, 256, 96),
        entry("sm80_bf16_d64_full", Sm80, Bf16, 64, Full, 128, 32),
        entry("sm80_bf16_d128_full", Sm80, Bf16, 128, Full, 128, 160),
        entry("sm80_bf16_d128_full_small", Sm80, Bf16, 128, Full, 128, 80),
        entry("sm80_bf16_d256_full", Sm80, Bf16, 256, Full, 256, 160),
        entry("sm90_bf16_d128_full", Sm90, Bf16, 128, Full, 384, 220),
        entry("sm90_bf16_d128_causal", Sm90, Bf16, 128, Causal, 384, 220),
    ]
};

pub(crate) const H200: GpuProperties =
    GpuProperties { capability: (9, 0), multiprocessors: 132, max_shared: 227 << 10 };
const A100: GpuProperties = GpuProperties { capability: (8, 0), multiprocessors: 108, max_shared: 163 << 10 };
const RTX4090: GpuProperties =
    GpuProperties { capability: (8, 9), multiprocessors: 128, max_shared: 99 << 10 };

fn plan_with(problem: &Problem, gpu: &GpuProperties, options: &PlanOptions) -> Result<Plan> {
    Plan::among(|| TABLE.iter(), problem, gpu, options)
}

fn plan(problem: &Problem, gpu: &GpuProperties) -> Result<Plan> {
    plan_with(problem, gpu, &PlanOptions::default())
}

fn problem(dtype: DType, head_dim: usize) -> Problem {
    Problem::new(dtype, 2, 512, 4, head_dim)
}

/// The plan or the error in words.
fn words(plan: Result<Plan>) -> String {
    plan.map_or_else(|error| error.to_string(), |plan| plan.to_string())
}

#[test]
fn the_fastest_family_that_can_comes_first() {
    let bf16 = problem(DType::Bf16, 128);
    insta::assert_snapshot!(words(plan(&bf16, &H200)), @"sm90_bf16_d128_full: tiles of 128 x 64, 2 stages, 384 threads, 225280 bytes of shared memory");
    insta::assert_snapshot!(words(plan(&bf16, &A100)), @"sm80_bf16_d128_full: tiles of 128 x 64, 2 stages, 128 threads, 163840 bytes of shared memory; sm90: needs compute capability 9.0, this GPU has 8.0 → sm80");
    insta::assert_snapshot!(words(plan(&problem(DType::F32, 64), &H200)), @"tiled_f32_d64_full: tiles of 128 x 64, 2 stages, 256 threads, 65536 bytes of shared memory; sm90: has no kernel for f32 → tiled; sm80: has no kernel for f32 → tiled");
}

#[test]
fn the_smallest_tile_that_holds_both_head_dims_is_taken() {
    let mut p = problem(DType::Bf16, 40);
    assert_eq!(plan(&p, &A100).unwrap().entry.name, "sm80_bf16_d64_full");
    p.head_dim_v = 72;
    assert_eq!(plan(&p, &A100).unwrap().entry.name, "sm80_bf16_d128_full");
    p.head_dim = 136;
    assert_eq!(plan(&p, &A100).unwrap().entry.name, "sm80_bf16_d256_full");
    insta::assert_snapshot!(words(plan(&p, &H200)), @"sm80_bf16_d256_full: tiles of 128 x 64, 2 stages, 256 threads, 163840 bytes of shared memory; sm90: has no kernel for head dimension 136 → sm80");
}

#[test]
fn shared_memory_decides_between_tiles_and_families() {
    assert_eq!(plan(&problem(DType::Bf16, 128), &RTX4090).unwrap().entry.name, "sm80_bf16_d128_full_small");
    insta::assert_snapshot!(words(plan(&problem(DType::Bf16, 256), &RTX4090)), @"tiled_bf16_d256_full: tiles of 128 x 64, 2 stages, 256 threads, 98304 bytes of shared memory; sm90: needs compute capability 9.0, this GPU has 8.9 → tiled; sm80: needs 163840 bytes of shared memory a block, this GPU has 101376 → tiled");
    let tiny = GpuProperties { max_shared: 1 << 10, ..A100 };
    insta::assert_snapshot!(words(plan(&problem(DType::F32, 64), &tiny)), @"no kernel can run this problem (sm90 needs compute capability 9.0, this GPU has 8.0; sm80 has no kernel for f32; tiled needs 65536 bytes of shared memory a block, this GPU has 1024); change what the reasons name, or use the CPU device");
}

#[test]
fn layouts_that_fast_kernels_cannot_take_go_to_one_that_can() {
    let mut p = problem(DType::Bf16, 64);
    p.q.seq = 130;
    insta::assert_snapshot!(words(plan(&p, &A100)), @"tiled_bf16_d64_full: tiles of 128 x 64, 2 stages, 256 threads, 49152 bytes of shared memory; sm90: needs compute capability 9.0, this GPU has 8.0 → tiled; sm80: Q's row stride 260 B is not a multiple of 16 → tiled");
    let mut p = problem(DType::Bf16, 64);
    p.v.batch = 0;
    insta::assert_snapshot!(words(plan(&p, &H200)), @"sm80_bf16_d64_full: tiles of 128 x 64, 2 stages, 128 threads, 32768 bytes of shared memory; sm90: V's batch stride is 0, a broadcast → sm80");
    // A group's heads are one dimension of Q's map, the groups another.
    let mut p = problem(DType::Bf16, 64);
    (p.heads, p.kv_heads, p.q.head) = (16, 2, 1 << 36);
    insta::assert_snapshot!(words(plan(&p, &H200)), @"sm80_bf16_d64_full: tiles of 128 x 64, 2 stages, 128 threads, 32768 bytes of shared memory; sm90: Q's head stride 1099511627776 B is not below 1099511627776 → sm80");
    let off = PlanOptions { kernel: None, alignment: Alignment::of(0x1000, 0x1008, 0x1000, 0x1000) };
    insta::assert_snapshot!(words(plan_with(&problem(DType::Bf16, 64), &H200, &off)), @"tiled_bf16_d64_full: tiles of 128 x 64, 2 stages, 256 threads, 49152 bytes of shared memory; sm90: K's address is a multiple of 8 bytes only, not of 16 → tiled; sm80: K's address is a multiple of 8 bytes only, not of 16 → tiled");
    let mut p = problem(DType::Bf16, 128);
    p.seqlen_k = 0;
    insta::assert_snapshot!(words(plan(&p, &H200)), @"sm80_bf16_d128_full: tiles of 128 x 64, 2 stages, 128 threads, 163840 bytes of shared memory; sm90: cannot run without keys → sm80");
}

#[test]
fn a_stride_that_is_never_used_does_not_matter() {
    let mut p = Problem::new(DType::Bf16, 1, 512, 1, 128);
    (p.q.batch, p.q.head, p.k.head, p.o.batch) = (3, 0, 77, 1);
    assert_eq!(plan(&p, &H200).unwrap().entry.family, Family::Sm90);
}

#[test]
fn batch_and_heads_do_not_matter() {
    for head_dim in [64, 128, 256] {
        let of = |batch, heads| plan(&Problem::new(DType::Bf16, batch, 512, heads, head_dim), &H200).unwrap();
        assert_eq!(of(1, 1), of(64, 32));
    }
}

#[test]
fn short_queries_of_grouped_heads_share_tiles() {
    let mut p = problem(DType::Bf16, 128);
    (p.seqlen_q, p.heads, p.kv_heads) = (5, 14, 2);
    insta::assert_snapshot!(words(plan(&p, &H200)), @"sm90_bf16_d128_full: tiles of 128 x 64, 2 stages, 384 threads, 225280 bytes of shared memory, 7 query heads in each tile");
    // Their ratio decides, whatever the numbers.
    (p.batch, p.heads, p.kv_heads) = (9, 28, 4);
    assert_eq!(plan(&p, &H200).unwrap().packing, Packing::of(7));
    // Other families have none of it.
    assert_eq!(plan(&p, &A100).unwrap().packing, Packing::NONE);
}

#[test]
fn a_family_can_be_asked_for() {
    let ask = |p: &Problem, kernel| {
        words(plan_with(p, &H200, &PlanOptions { kernel: Some(kernel), ..PlanOptions::default() }))
    };
    insta::assert_snapshot!(ask(&problem(DType::F32, 64), Family::Standard), @"standard_scores_f32_d256: tiles of 128 x 64, 2 stages, 256 threads, 40960 bytes of shared memory");
    insta::assert_snapshot!(ask(&problem(DType::F32, 64), Family::Sm80), @"kernel is sm80, but this family cannot run the problem: has no kernel for f32; leave the choice to the plan or name another family");
    assert_eq!(family("sm90"), Ok(Family::Sm90));
    insta::assert_snapshot!(family("fa3").unwrap_err(), @"kernel is fa3, but must be standard, tiled, sm80 or sm90; leave it out for the plan's choice");
}

#[test]
fn what_no_gpu_kernel_does_names_the_way_out() {
    let mut p = problem(DType::Bf16, 64);
    p.window = Window { left: Some(127), right: Some(0) };
    insta::assert_snapshot!(words(plan(&p, &H200)), @"no GPU kernel has a sliding window yet; leave it out, or use the CPU device");
    let mut p = problem(DType::Bf16, 64);
    p.softcap = Some(30.0);
    insta::assert_snapshot!(words(plan(&p, &H200)), @"no GPU kernel has softcap yet; leave it out, or use the CPU device");
    let turing = GpuProperties { capability: (7, 5), ..A100 };
    insta::assert_snapshot!(words(plan(&problem(DType::F32, 64), &turing)), @"this GPU has compute capability 7.5, but the kernels need 8.0 or higher; use a newer GPU, or use the CPU device");
    let mut p = problem(DType::Bf16, 64);
    p.scale = -1.0;
    insta::assert_snapshot!(words(plan(&p, &H200)), @"scale is -1, but must be finite and greater than 0; leave it out for 1/sqrt(head_dim)");
}

#[test]
fn every_shipped_kernel_is_some_problems_choice() {
    for entry in flash_attention_kernels::config::entries().filter(|entry| entry.begins_call()) {
        let mut p = problem(entry.dtype, entry.head_dim as usize);
        if entry.mask == MaskKind::Causal {
            p.causal = Causal::BottomRight;
        }
        p.seqlen_k = p.seqlen_k.min(512).max(entry.min_seqlen as usize);
        let options = PlanOptions { kernel: Some(entry.family), ..PlanOptions::default() };
        assert_eq!(Plan::new(&p, &H200, &options).unwrap().entry, *entry);
    }
}
