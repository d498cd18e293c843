//! Runs other programs and reads what they say.

use crate::error::{CudaBuilderError, Result};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
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

/// Runs to the end and passes on what the program says on standard error, but for the messages (paragraphs) that
/// `is_noise` names.
pub(crate) fn run_filtered(
    command: &mut Command,
    is_noise: impl Fn(&str) -> bool,
) -> std::io::Result<ExitStatus> {
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut message = String::new();
    let pass_on = |message: &mut String| {
        if !message.trim().is_empty() && !is_noise(message.trim()) {
            eprintln!("{}", message.trim_end());
        }
        message.clear();
    };
    for line in child.stderr.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
        let line = line?;
        message += &line;
        message.push('\n');
        if line.is_empty() {
            pass_on(&mut message);
        }
    }
    pass_on(&mut message);
    child.wait()
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
