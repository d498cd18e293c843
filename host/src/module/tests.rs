mod gpu;

use super::*;
use crate::fake_driver::{DRIVER, books};
use crate::listener::listen;
use crate::plan::tests::TABLE;

fn entry(name: &str) -> &'static Entry {
    TABLE.iter().find(|entry| entry.name == name).unwrap()
}

fn loads() -> usize {
    books(|books| books.calls.iter().filter(|&&call| call == "cuModuleLoadDataEx").count())
}

/// Both kinds of code for every kernel.
const BOTH: Source = Source { cubin: |_| Some(b"cubin\0".to_vec()), ptx: |_| Ok(b"ptx".to_vec()) };

#[test]
fn a_kernel_is_loaded_once() {
    let context = Context::new(&DRIVER, BOTH).unwrap();
    let sm90 = context.kernel(entry("sm90_bf16_d128_full")).unwrap();
    assert_eq!(context.kernel(entry("sm90_bf16_d128_full")), Ok(sm90));
    assert_eq!(loads(), 1);
    context.kernel(entry("tiled_f32_d64_full")).unwrap();
    assert_eq!(loads(), 2);
    assert_eq!(books(|books| books.functions.clone()), ["sm90_bf16_d128_full", "tiled_f32_d64_full"]);
}

#[test]
fn only_a_gpu_of_the_very_architecture_gets_the_cubin() {
    let context = Context::new(&DRIVER, BOTH).unwrap();
    assert!(context.own_cubin(entry("sm90_bf16_d128_full")).is_some());
    assert!(context.own_cubin(entry("sm80_bf16_d128_full")).is_none());
}

#[test]
fn a_refused_cubin_falls_back_to_ptx_with_a_warning() {
    books(|books| books.refuse = Some(b"cubin"));
    let context = Context::new(&DRIVER, BOTH).unwrap();
    let said = listen(|| assert!(context.kernel(entry("sm90_bf16_d128_full")).is_ok()));
    assert_eq!(loads(), 2);
    let [warning, loaded] = said.as_slice() else { panic!("{said:?}") };
    insta::assert_snapshot!(warning, @r#"WARN message=the driver refuses the cubin; using the PTX kernel="sm90_bf16_d128_full" error=cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_IMAGE (200): device kernel image is invalid: ptxas fatal: line 3; the driver's documentation of the call lists its causes"#);
    assert!(loaded.contains("from=\"PTX\""), "{loaded}");
}

#[test]
fn a_cubin_without_the_kernel_falls_back_to_ptx() {
    books(|books| books.not_found = 1);
    let context = Context::new(&DRIVER, BOTH).unwrap();
    let said = listen(|| assert!(context.kernel(entry("sm90_bf16_d128_full")).is_ok()));
    assert_eq!(loads(), 2);
    assert!(said[0].starts_with("WARN") && said[1].contains("from=\"PTX\""), "{said:?}");
}

#[test]
fn refused_ptx_is_an_error_with_the_compilers_words() {
    books(|books| books.refuse = Some(b""));
    let context = Context::new(&DRIVER, BOTH).unwrap();
    let error = context.kernel(entry("sm90_bf16_d128_full")).unwrap_err();
    insta::assert_snapshot!(error, @"cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_IMAGE (200): device kernel image is invalid: ptxas fatal: line 3; the driver's documentation of the call lists its causes");
    // Nothing is kept of the attempt.
    books(|books| books.refuse = None);
    assert!(context.kernel(entry("sm90_bf16_d128_full")).is_ok());
}

#[test]
fn a_kernel_that_the_build_lacks_says_how_to_get_it() {
    let context = Context::new(&DRIVER, EMBEDDED).unwrap();
    let no_such = Entry { name: "no_such_kernel", ..*entry("tiled_f32_d64_full") };
    let message = context.kernel(&no_such).unwrap_err().to_string();
    assert!(message.contains("cargo xtask build-ptx"), "{message}");
}

#[test]
fn code_is_loaded_while_streams_are_captured() {
    let context = Context::new(&DRIVER, BOTH).unwrap();
    context.kernel(entry("tiled_f32_d64_full")).unwrap();
    context.counters().unwrap();
    let calls = books(|books| books.calls.clone());
    let mode = "cuThreadExchangeStreamCaptureMode";
    let inner: Vec<_> = calls.split(|&call| call == mode).map(<[_]>::to_vec).collect();
    assert_eq!(inner.len(), 5, "{calls:?}");
    assert!(inner[1].contains(&"cuModuleLoadDataEx") && inner[3].contains(&"cuMemAlloc"), "{calls:?}");
}
