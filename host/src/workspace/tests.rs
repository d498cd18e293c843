use super::*;
use crate::fake_driver::{DRIVER, books};

const STREAM: RawStream = 0x99 as RawStream;

/// The address that a call gets, and what the driver was asked meanwhile.
fn call(workspace: &Workspace, bytes: u64) -> Result<(u64, Vec<&'static str>)> {
    books(|books| books.calls.clear());
    let mut address = 0;
    workspace.with(&DRIVER, STREAM, bytes, |at| {
        address = at;
        books(|books| books.calls.push("launch"));
        Ok(())
    })?;
    Ok((address, books(|books| books.calls.clone())))
}

fn captured(workspace: &Workspace, bytes: u64) -> Result<(u64, Vec<&'static str>)> {
    books(|books| books.capturing = true);
    let result = call(workspace, bytes);
    books(|books| books.capturing = false);
    result
}

const WARM: [&str; 4] = ["cuStreamIsCapturing", "cuStreamWaitEvent", "launch", "cuEventRecord"];

#[test]
fn it_is_allocated_once_and_calls_wait_for_each_other() {
    let workspace = Workspace::default();
    let (address, calls) = call(&workspace, 1000).unwrap();
    assert_ne!(address, 0);
    assert!(calls.contains(&"cuMemAlloc") && !calls.contains(&"cuMemFree"), "{calls:?}");
    for bytes in [1000, 10, 0] {
        assert_eq!(call(&workspace, bytes), Ok((address, WARM.to_vec())));
    }
    assert_eq!(books(|books| books.allocated.clone()), [1000]);
}

#[test]
fn no_scores_take_no_memory() {
    assert_eq!(call(&Workspace::default(), 0), Ok((0, vec!["cuStreamIsCapturing", "launch"])));
}

#[test]
fn the_old_memory_is_freed_when_nothing_uses_it_any_more() {
    let workspace = Workspace::default();
    call(&workspace, 1000).unwrap();
    let (_, calls) = call(&workspace, 2000).unwrap();
    let order: Vec<_> = calls
        .into_iter()
        .filter(|call| ["cuEventSynchronize", "cuMemFree", "cuMemAlloc", "launch"].contains(call))
        .collect();
    assert_eq!(order, ["cuEventSynchronize", "cuMemFree", "cuMemAlloc", "launch"]);
    assert_eq!(books(|books| books.allocated.clone()), [1000, 2000]);
}

#[test]
fn a_capture_takes_what_is_there_and_keeps_it() {
    let workspace = Workspace::default();
    insta::assert_snapshot!(captured(&workspace, 1000).unwrap_err(), @"stream is being captured, but the kernel standard has a workspace of 0 bytes, and this call needs 1000; make one call of this size before the capture");
    let (address, _) = call(&workspace, 1000).unwrap();
    // An event from outside of the graph could not be waited for.
    assert_eq!(captured(&workspace, 1000), Ok((address, vec!["cuStreamIsCapturing", "launch"])));
    insta::assert_snapshot!(captured(&workspace, 1001).unwrap_err(), @"stream is being captured, but the kernel standard has a workspace of 1000 bytes, and this call needs 1001; make one call of this size before the capture");
    let (_, calls) = call(&workspace, 2000).unwrap();
    assert!(calls.contains(&"cuMemAlloc") && !calls.contains(&"cuMemFree"), "{calls:?}");
    // No graph holds the new one.
    assert!(call(&workspace, 3000).unwrap().1.contains(&"cuMemFree"));
}

#[test]
fn scores_that_do_not_fit_are_refused_and_nothing_changes() {
    let workspace = Workspace::default();
    let (address, _) = call(&workspace, 1000).unwrap();
    books(|books| books.free = Some(500));
    insta::assert_snapshot!(call(&workspace, 1501).unwrap_err(), @"kernel is standard, but its scores take 1501 bytes and the GPU has 1500 free; name another kernel family or split the batch");
    assert_eq!(call(&workspace, 1000), Ok((address, WARM.to_vec())));
    assert!(call(&workspace, 1500).is_ok());
}

#[test]
fn a_failed_launch_is_marked_all_the_same() {
    let workspace = Workspace::default();
    call(&workspace, 1000).unwrap();
    books(|books| books.calls.clear());
    let failed = || Err(Error::unavailable("a kernel", "build it"));
    assert_eq!(workspace.with(&DRIVER, STREAM, 1000, |_| failed()), failed());
    assert_eq!(
        books(|books| books.calls.clone()),
        ["cuStreamIsCapturing", "cuStreamWaitEvent", "cuEventRecord"]
    );
}
