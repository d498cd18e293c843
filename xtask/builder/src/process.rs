//! Runs other programs and reads what they say.

use crate::error::{CudaBuilderError, Result};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Receives what is going on: a sentence, and bytes done and expected where they are known.
pub type Report<'a> = &'a dyn Fn(&str, Option<(u64, u64)>);

/// Runs to the end; an exit status other than 0 is an error that carries the output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| failed(command, error.to_string(), ""))?;
    check(command, &output)
}

/// As [`run`], while `report` hears how much has arrived below `folder`.
pub(crate) fn run_watching(
    command: &mut Command,
    what: &str,
    folder: &Path,
    expected: Option<u64>,
    report: Report<'_>,
) -> Result<String> {
    let fail = |command: &Command, error: std::io::Error| failed(command, error.to_string(), "");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| fail(command, error))?;
    // The pipes are drained by their own thread: a talkative program would block on a full one.
    let waiting = std::thread::spawn(move || child.wait_with_output());
    while !waiting.is_finished() {
        report(what, expected.map(|total| (folder_size(folder).min(total), total)));
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = waiting.join().expect("the waiting thread does not panic");
    check(command, &output.map_err(|error| fail(command, error))?)
}

fn check(command: &Command, output: &Output) -> Result<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let said = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    Err(failed(command, output.status.to_string(), said.trim_end()))
}

fn failed(command: &Command, status: String, output: &str) -> CudaBuilderError {
    let what = Path::new(command.get_program()).display().to_string();
    CudaBuilderError::Failed { what, status, output: output.to_owned() }
}

fn folder_size(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => folder_size(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
