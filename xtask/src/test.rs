//! `test`: everything that CI runs, each step with its time.

use crate::cargo::cargo;
use crate::{build_ptx, interop, package_test, readme, tidy};
use anyhow::{Context as _, Result};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const BUILDER: &str = "flash-attention-builder";
const KERNELS: &str = "flash-attention-kernels";
const CUDA_STD: &str = "flash-attention-cuda-std";
/// The feature that lets the kernels run on the simulated device.
const SIMULATED: &str = "flash-attention-kernels/sim";

/// What became of a step.
struct Outcome {
    name: String,
    time: Duration,
    /// Tests that passed and failed; a step that runs no tests counts as one.
    passed: usize,
    failed: usize,
}

/// The command.
pub fn run(offline: bool) -> Result<ExitCode> {
    let start = Instant::now();
    // The kernels compile on one processor, in a folder of their own; the other looks at the host's side meanwhile.
    let looking = thread::spawn(move || {
        vec![
            quiet("formatting", cargo(&["fmt", "--all", "--check"])),
            quiet("tidy", tidy_command()),
            quiet("lints", lints()),
            quiet("documentation", documentation()),
            quiet("formatting of the example with cudarc", interop::formatting()),
            with_remedy(quiet("lints of the example with cudarc", interop::lints(offline)), interop::REMEDY),
        ]
    });
    let mut outcomes = vec![step("kernels", || {
        let options = build_ptx::Options { offline, ..build_ptx::Options::of_all() };
        build_ptx::run(&options)
    })];
    for (outcome, said) in looking.join().expect("the steps do not panic") {
        println!("{said}");
        report(&outcome);
        outcomes.push(outcome);
    }
    outcomes
        .push(counted("tests of the commands", cargo(&["test", "--package", "xtask", "--package", BUILDER])));
    outcomes.push(counted("tests of the kernels on the simulated device", simulated()));
    outcomes.push(counted("tests of the library", others()));
    outcomes.push(step("packages, built and run from nothing", package_test::run));
    for line in readme::commands()? {
        outcomes.push(readme_command(&line));
    }

    println!();
    for Outcome { name, time, failed, .. } in &outcomes {
        let verdict = if *failed == 0 { "ok" } else { "FAILED" };
        println!("{:7.1} s  {verdict:6}  {name}", time.as_secs_f64());
    }
    let total = |count: fn(&Outcome) -> usize| outcomes.iter().map(count).sum::<usize>();
    let (passed, failed) = (total(|outcome| outcome.passed), total(|outcome| outcome.failed));
    println!("{:7.1} s  in all", start.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All targets, with the simulated device.
fn lints() -> Command {
    cargo(&[
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--features",
        SIMULATED,
        "--",
        "-D",
        "warnings",
    ])
}

/// With the checks of arithmetic that a release leaves out.
fn simulated() -> Command {
    cargo(&["test", "--package", KERNELS, "--package", CUDA_STD, "--features", SIMULATED, "--no-fail-fast"])
}

/// Everything else, as it is shipped: the references are too slow otherwise.
fn others() -> Command {
    let mut command = cargo(&["test", "--release", "--workspace", "--no-fail-fast"]);
    for tested in ["xtask", BUILDER, KERNELS, CUDA_STD] {
        command.args(["--exclude", tested]);
    }
    command
}

fn documentation() -> Command {
    let mut command = cargo(&["doc", "--quiet", "--workspace", "--no-deps", "--features", SIMULATED]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

fn tidy_command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
    command.arg(tidy::COMMAND);
    command
}

/// A step inside this program.
fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Outcome {
    println!("== {name}");
    let start = Instant::now();
    let result = work();
    if let Err(error) = &result {
        println!("{error:#}");
    }
    let outcome = single(name, start, result.is_ok());
    report(&outcome);
    outcome
}

/// A step that another program does; gives back what it said.
fn quiet(name: &str, mut command: Command) -> (Outcome, String) {
    let start = Instant::now();
    match command.stdin(Stdio::null()).output() {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            let said = format!("== {name}\n{}", String::from_utf8_lossy(&said).trim_end());
            (single(name, start, output.status.success()), said)
        }
        Err(error) => (single(name, start, false), format!("== {name}\n{error}")),
    }
}

/// A step with what to do where it failed.
fn with_remedy((outcome, said): (Outcome, String), remedy: &str) -> (Outcome, String) {
    let said = if outcome.failed == 0 { said } else { format!("{said}\n{remedy}") };
    (outcome, said)
}

/// A command of the README, as it stands there.
fn readme_command(line: &str) -> Outcome {
    step(&format!("README: {line}"), || {
        let mut words = line.split_whitespace();
        let program = words.next().context("the line holds a word")?;
        let mut command = match program {
            "cargo" => cargo(&[]),
            other => Command::new(other),
        };
        let status =
            command.args(words).current_dir(crate::project::root()).status().context(program.to_owned())?;
        anyhow::ensure!(status.success(), "it ended with {status}");
        Ok(())
    })
}

/// A step that runs tests: passes on what it says, and counts.
fn counted(name: &str, mut command: Command) -> Outcome {
    println!("== {name}");
    let start = Instant::now();
    let mut outcome = Outcome { name: name.to_owned(), time: Duration::ZERO, passed: 0, failed: 0 };
    match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(mut child) => {
            let lines = child.stdout.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
            for line in lines.map_while(Result::ok) {
                println!("{line}");
                if let Some((passed, failed)) = counts(&line) {
                    outcome.passed += passed;
                    outcome.failed += failed;
                }
            }
            let success = child.wait().is_ok_and(|status| status.success());
            // A test program that does not compile or crashes reports no failed test.
            if !success && outcome.failed == 0 {
                outcome.failed = 1;
            }
        }
        Err(error) => {
            println!("{error}");
            outcome.failed = 1;
        }
    }
    outcome.time = start.elapsed();
    report(&outcome);
    outcome
}

fn single(name: &str, start: Instant, ok: bool) -> Outcome {
    Outcome {
        name: name.to_owned(),
        time: start.elapsed(),
        passed: usize::from(ok),
        failed: usize::from(!ok),
    }
}

fn report(outcome: &Outcome) {
    let verdict = if outcome.failed == 0 { "ok" } else { "FAILED" };
    println!("== {}: {verdict} after {:.1} s", outcome.name, outcome.time.as_secs_f64());
}

/// The counts in "test result: ok. 12 passed; 0 failed; …".
fn counts(line: &str) -> Option<(usize, usize)> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut parts = rest.split("; ");
    let passed = parts.next()?.strip_suffix(" passed")?.parse().ok()?;
    let failed = parts.next()?.strip_suffix(" failed")?.parse().ok()?;
    Some((passed, failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_runner_is_counted() {
        let line =
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.00s";
        assert_eq!(counts(line), Some((12, 0)));
        assert_eq!(counts(&line.replace("ok. 12 passed; 0", "FAILED. 3 passed; 2")), Some((3, 2)));
        assert_eq!(counts("test a ... ok"), None);
    }

    #[test]
    fn a_program_that_fails_without_a_count_is_a_failure() {
        let failing = cargo(&["no-such-command"]);
        assert_eq!(counted("x", failing).failed, 1);
    }
}
