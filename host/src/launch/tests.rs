use super::*;
use crate::counting_allocator::allocations;
use crate::fake_driver::{DRIVER, Map, books};
use crate::listener::listen_to;
use crate::module::{Source, driver_functions};
use crate::plan::GpuProperties;
use crate::plan::tests::{H200, TABLE};
use crate::problem::DType;

const ADDRESSES: Addresses =
    Addresses { q: 0x1000_0000, k: 0x2000_0000, v: 0x3000_0000, o: 0x4000_0000, lse: 0x5000_0000 };
const STREAM: RawStream = 0x99 as RawStream;

fn context() -> Context {
    Context::new(&DRIVER, Source { cubin: |_| None, ptx: |_| Ok(b"ptx".to_vec()) }).unwrap()
}

fn plan(problem: &Problem) -> Plan {
    Plan::among(|| TABLE.iter(), problem, &H200, &PlanOptions::default()).unwrap()
}

/// A plan for `standard`, with the kernels that are shipped: three of them belong together.
fn standard_plan(problem: &Problem) -> Plan {
    let options = PlanOptions { kernel: Some(Family::Standard), ..PlanOptions::default() };
    Plan::new(problem, &H200, &options).unwrap()
}

fn launch_plan(context: &Context, plan: &Plan, problem: &Problem) -> Result<()> {
    // SAFETY: nothing runs on the driver of the tests.
    unsafe { run(context, plan, problem, &ADDRESSES, STREAM) }
}

fn launch(context: &Context, problem: &Problem) {
    launch_plan(context, &plan(problem), problem).unwrap();
}

/// The machines that build this have no driver; on one that has, there is no current context.
#[test]
fn without_a_driver_or_a_context_the_call_says_so() {
    let problem = Problem::new(DType::F32, 1, 16, 1, 64);
    // SAFETY: nothing can be launched without a context.
    let error = unsafe { forward(&problem, &ADDRESSES, None, std::ptr::null_mut()) }.unwrap_err().to_string();
    match driver_functions() {
        Ok(_) => assert!(error.starts_with("no CUDA context is current on this thread"), "{error}"),
        Err(_) => {
            assert!(error.starts_with("no NVIDIA driver found: "), "{error}");
            assert!(error.ends_with("; install the NVIDIA driver, or use the CPU device"), "{error}");
        }
    }
}

#[test]
fn a_plain_kernel_gets_a_block_for_each_tile() {
    let mut problem = Problem::new(DType::F32, 3, 300, 4, 64);
    (problem.kv_heads, problem.seqlen_k, problem.scale) = (2, 500, 0.25);
    problem.causal = Causal::BottomRight;
    launch(&context(), &problem);
    books(|books| {
        let launch = books.launches[0];
        assert_eq!(
            (launch.grid, launch.block, launch.shared_bytes),
            ([3 * 3 * 4, 1, 1], [256, 1, 1], 64 << 10)
        );
        assert_eq!((launch.stream, launch.attribute_count), (STREAM, 0));
        let params = books.plain[0];
        assert_eq!((params.q, params.k, params.v), (ADDRESSES.q, ADDRESSES.k, ADDRESSES.v));
        assert_eq!((params.o, params.lse), (ADDRESSES.o, ADDRESSES.lse));
        assert_eq!(params.q_strides, params::Strides { batch: 300 * 256, seq: 256, head: 64 });
        assert_eq!((params.batch, params.heads, params.kv_heads), (3, 4, 2));
        assert_eq!((params.seqlen_q, params.seqlen_k, params.blocks_m), (300, 500, 3));
        assert_eq!((params.head_dim, params.head_dim_v, params.scale), (64, 64, 0.25));
        assert_eq!(params.causal_offset, 200);
    });
}

#[test]
fn a_top_left_mask_has_no_offset() {
    let mut problem = Problem::new(DType::F32, 1, 300, 1, 64);
    (problem.seqlen_k, problem.causal) = (500, Causal::TopLeft);
    launch(&context(), &problem);
    assert_eq!(books(|books| books.plain[0].causal_offset), 0);
}

#[test]
fn a_hopper_kernel_gets_maps_of_the_true_extents() {
    let mut problem = Problem::new(DType::Bf16, 1, 512, 4, 96);
    (problem.kv_heads, problem.head_dim_v, problem.seqlen_k) = (1, 72, 300);
    problem.k = Strides { batch: 0, seq: 200, head: 1 };
    problem.v = Strides { batch: 0, seq: 200, head: 1 };
    launch(&context(), &problem);
    let maps = books(|books| books.maps.clone());
    // The batch of 1 and the one key head have strides that are valid and never used.
    let unused = 16 * 96;
    let q =
        Map::new(ADDRESSES.q, &[96, 1, 512, 4, 1], &[unused, 4 * 96 * 2, 96 * 2, unused], &[64, 1, 64, 1, 1]);
    let k = Map::new(ADDRESSES.k, &[96, 300, 1, 1], &[400, unused, unused], &[64, 64, 1, 1]);
    let v = Map::new(ADDRESSES.v, &[72, 300, 1, 1], &[400, 16 * 72, 16 * 72], &[64, 64, 1, 1]);
    assert_eq!(maps, [q, k, v]);
    books(|books| {
        let params = books.sm90[0];
        assert_eq!(
            [params.q_map.0[0], params.k_map.0[0], params.v_map.0[0]],
            [ADDRESSES.q, ADDRESSES.k, ADDRESSES.v]
        );
        assert_eq!((params.order.tiles, books.launches[0].grid), (16, [16, 1, 1]));
    });
}

#[test]
fn heads_that_share_tiles_are_a_dimension_of_the_map() {
    let mut problem = Problem::new(DType::Bf16, 2, 33, 12, 128);
    (problem.kv_heads, problem.seqlen_k) = (2, 4096);
    assert_eq!(plan(&problem).packing, Packing::of(6));
    launch(&context(), &problem);
    books(|books| {
        // 6 heads take 8 rows of a box, so that it holds 8 queries.
        let strides = [128 * 2, 12 * 128 * 2, 6 * 128 * 2, 33 * 12 * 128 * 2];
        let q = Map::new(ADDRESSES.q, &[128, 6, 33, 2, 2], &strides, &[64, 8, 8, 1, 1]);
        assert_eq!(books.maps[0], q);
        // 33 queries are 264 rows, three blocks of each of 2 groups of 2 sequences, and a group is a head to the order.
        let params = books.sm90[0];
        assert_eq!((books.launches[0].grid, params.packing), ([12, 1, 1], Packing::of(6)));
        assert_eq!((params.forward.heads, params.forward.seqlen_q, params.forward.blocks_m), (12, 33, 3));
        assert_eq!(params.order, TileOrder::new(3, 2, 2, 2, 4));
    });
}

#[test]
fn a_persistent_grid_is_no_larger_than_the_gpu_and_has_a_counter_of_its_own() {
    let context = context();
    let problem = Problem::new(DType::Bf16, 2, 4096, 16, 128);
    launch(&context, &problem);
    launch(&context, &problem);
    books(|books| {
        assert_eq!(books.launches[0].grid, [H200.multiprocessors, 1, 1]);
        let counters: Vec<u64> = books.sm90.iter().map(|params| params.work_counter).collect();
        assert_eq!(counters, [0x7000_0000, 0x7000_0008]);
        assert_eq!(books.sm90[0].order, TileOrder::new(32, 16, 16, 2, 16));
    });
    // As many tiles as blocks: nobody hands out a second one.
    launch(&context, &Problem::new(DType::Bf16, 1, 128, 132, 128));
    assert_eq!(books(|books| books.sm90[2].work_counter), 0);
}

#[test]
fn captured_launches_have_counters_that_never_come_again() {
    let (context, problem) = (context(), Problem::new(DType::Bf16, 2, 4096, 16, 128));
    launch(&context, &problem);
    books(|books| books.capturing = true);
    launch(&context, &problem);
    launch(&context, &problem);
    books(|books| books.capturing = false);
    launch(&context, &problem);
    let slots: Vec<u64> =
        books(|books| books.sm90.iter().map(|params| (params.work_counter - 0x7000_0000) / 8).collect());
    assert_eq!(slots, [0, 65536, 65537, 1]);
}

#[test]
fn a_warm_call_allocates_loads_and_waits_for_nothing() {
    let context = context();
    let (f32, bf16) = (Problem::new(DType::F32, 1, 512, 2, 64), Problem::new(DType::Bf16, 2, 4096, 16, 128));
    let map = "cuTensorMapEncodeTiled";
    for (plan, problem, expected) in [
        (plan(&f32), f32, &["cuLaunchKernelEx"] as &[_]),
        (plan(&bf16), bf16, &["cuStreamIsCapturing", map, map, map, "cuLaunchKernelEx"]),
        (
            standard_plan(&f32),
            f32,
            &[
                "cuStreamIsCapturing",
                // The device waits, not the caller.
                "cuStreamWaitEvent",
                "cuLaunchKernelEx",
                "cuLaunchKernelEx",
                "cuLaunchKernelEx",
                "cuEventRecord",
            ],
        ),
    ] {
        launch_plan(&context, &plan, &problem).unwrap();
        books(|books| books.calls.clear());
        let before = allocations();
        launch_plan(&context, &plan, &problem).unwrap();
        layout::check(&problem, &ADDRESSES).unwrap();
        assert_eq!(allocations() - before, 0);
        assert_eq!(books(|books| books.calls.clone()), expected);
    }
}

#[test]
fn standard_attention_is_three_launches_over_one_matrix_of_scores() {
    let mut problem = Problem::new(DType::Bf16, 3, 300, 4, 40);
    (problem.kv_heads, problem.seqlen_k) = (2, 500);
    let plan = standard_plan(&problem);
    // A row of 500 scores ends with a whole block of 64.
    let bytes = 3 * 4 * 300 * 512 * 4;
    assert_eq!(plan.workspace_bytes(&problem), bytes);
    launch_plan(&context(), &plan, &problem).unwrap();
    books(|books| {
        assert_eq!(books.allocated, [bytes as usize]);
        assert_eq!(
            books.functions,
            ["standard_scores_bf16_d64", "standard_softmax_m64", "standard_output_bf16_d64"]
        );
        let grids: Vec<u32> = books.launches.iter().map(|launch| launch.grid[0]).collect();
        // Tiles of 64 rows; four rows a block.
        assert_eq!(grids, [5 * 4 * 3, 300 * 4 * 3 / 4, 5 * 4 * 3]);
        // Without a mask the first row sees every key.
        assert!(books.plain.iter().all(|params| params.causal_offset == 500 && params.o == ADDRESSES.o));
    });
    let params = standard::params(&plan.entry, &problem, &ADDRESSES, 0x6000_0000);
    assert_eq!(params.scores_strides, params::Strides { batch: 4 * 300 * 512, seq: 512, head: 300 * 512 });
    assert_eq!(params.scores, 0x6000_0000);
    problem.causal = Causal::BottomRight;
    assert_eq!(standard::params(&plan.entry, &problem, &ADDRESSES, 0).forward.causal_offset, 200);
}

#[test]
fn what_standard_attention_cannot_hold_is_refused_before_the_first_launch() {
    let context = context();
    let problem = Problem::new(DType::Bf16, 64, 1 << 20, 64, 64);
    let error = launch_plan(&context, &standard_plan(&problem), &problem).unwrap_err();
    insta::assert_snapshot!(error, @"kernel is standard, but its scores take 18014398509481984 bytes and the GPU has 1099511627776 free; name another kernel family or split the batch");
    let mut problem = Problem::new(DType::Bf16, 1, 1024, 1, 64);
    problem.seqlen_k = crate::problem::MAX_SEQLEN;
    let error = launch_plan(&context, &standard_plan(&problem), &problem).unwrap_err();
    insta::assert_snapshot!(error, @"seqlen_q + seqlen_k is 2147483648, but the kernel standard has at most 2147482624; name another kernel family");
    assert!(books(|books| books.launches.is_empty()));
}

#[test]
fn nothing_to_do_launches_nothing() {
    let context = context();
    launch(&context, &Problem::new(DType::F32, 0, 512, 2, 64));
    let mut problem = Problem::new(DType::F32, 1, 512, 2, 64);
    problem.seqlen_q = 0;
    launch(&context, &problem);
    assert!(books(|books| books.launches.is_empty()));
    // Rows without keys are rows all the same.
    let mut problem = Problem::new(DType::Bf16, 1, 512, 2, 64);
    problem.seqlen_k = 0;
    launch(&context, &problem);
    assert_eq!(books(|books| books.plain[0].seqlen_k), 0);
}

#[test]
fn more_tiles_than_a_grid_has_are_refused() {
    let problem = Problem::new(DType::F32, 1 << 20, 1 << 13, 1 << 6, 64);
    let gpu = GpuProperties { ..H200 };
    let plan = Plan::among(|| TABLE.iter(), &problem, &gpu, &PlanOptions::default()).unwrap();
    insta::assert_snapshot!(tiles(&plan.entry, plan.packing, &problem).unwrap_err(), @"batch * heads * seqlen_q is 4294967296 tiles, but a launch has at most 2147483647; split the batch");
    // Few tiles, since 64 heads share each; but the heads are counted as well.
    let mut problem = Problem::new(DType::Bf16, 1, 1, 1 << 32, 64);
    problem.kv_heads = 1 << 26;
    let shared = self::plan(&problem);
    insta::assert_snapshot!(tiles(&shared.entry, shared.packing, &problem).unwrap_err(), @"batch * heads is 4294967296, but must be at most 2147483647; split the batch");
}

/// The first call of a kind tells of its plan, the loaded kernel and the launch; the next one of plan and launch only.
#[test]
fn a_call_tells_its_plan_what_it_loads_and_its_launch() {
    let (context, problem) = (context(), Problem::new(DType::F32, 2, 300, 4, 64));
    let call = || {
        listen_to(tracing::Level::DEBUG, || {
            // SAFETY: nothing runs on the driver of the tests.
            unsafe { forward_in(&context, &problem, &ADDRESSES, None, STREAM) }.unwrap();
        })
    };
    let said = call();
    let [planned, loaded, launched] = said.as_slice() else { panic!("{said:?}") };
    assert!(planned.starts_with("DEBUG message=planned plan=tiled_f32_d64_full: tiles of "), "{planned}");
    assert!(planned.contains("; sm90: has no kernel for f32 \u{2192} tiled"), "{planned}");
    let (loaded, elapsed) = loaded.rsplit_once(" elapsed=").unwrap();
    insta::assert_snapshot!(loaded, @r#"INFO message=loaded a kernel kernel="tiled_f32_d64_full" from="PTX""#);
    assert!(elapsed.ends_with('s'), "{elapsed}");
    insta::assert_snapshot!(launched, @r#"DEBUG message=launched kernel="tiled_f32_d64_full" grid=40 threads=128"#);
    let again = call();
    assert_eq!(again, [planned.clone(), launched.clone()]);
}
