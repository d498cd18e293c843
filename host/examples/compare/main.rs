//! Runs attention on a device, checks it against the f64 reference and times it.
//!
//! `cargo run --release --example compare -- --help` lists the options. The exit status is 0 if the result is right,
//! 1 if it is not, 2 if the call could not be made.

mod device;
mod files;
mod measure;
mod memory;
mod npy;
mod options;
mod report;
mod standard;
mod tensors;

#[cfg(test)]
mod tests;

use clap::Parser;
use measure::{Failure, Outcome, measure_case};
use options::{CaseOptions, Options};
use report::Line;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os(), &mut std::io::stdout(), &mut std::io::stderr()))
}

/// The whole program; gives its exit status.
fn run(arguments: impl Iterator<Item = OsString>, out: &mut dyn Write, log: &mut dyn Write) -> u8 {
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(refusal) if refusal.use_stderr() => {
            say(log, refusal);
            return 2;
        }
        Err(help) => {
            say(out, help);
            return 0;
        }
    };
    let result = match &options.configs {
        Some(path) => run_list(&options, path, out, log),
        None => run_one(&options, out, log),
    };
    match result {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(failure) => {
            say(log, format!("error: {failure}"));
            2
        }
    }
}

/// One case, told at length.
fn run_one(options: &Options, out: &mut dyn Write, log: &mut dyn Write) -> Result<bool, Failure> {
    let outcome = measure_case(options, &options.case);
    if options.json {
        say(out, Line::new(&options.case, &outcome).json());
    }
    let outcome = outcome?;
    if !options.json {
        say(out, report::page(&outcome));
    }
    tell_failures(&outcome, log);
    Ok(outcome.ok())
}

/// A list of cases, one line each. A case that cannot be run does not keep the others from it.
fn run_list(
    options: &Options,
    path: &Path,
    out: &mut dyn Write,
    log: &mut dyn Write,
) -> Result<bool, Failure> {
    let cases = options::read_configs(path, &options.case)?;
    let (mut ok, mut refused) = (true, 0);
    if !options.json {
        say(out, report::list_header());
    }
    for case in &cases {
        let outcome = case.as_ref().map_err(Failure::clone).and_then(|case| measure_case(options, case));
        let line = Line::new(case.as_ref().unwrap_or(&CaseOptions::default()), &outcome);
        say(out, if options.json { line.json() } else { line.text().into() });
        match &outcome {
            Ok(outcome) => {
                tell_failures(outcome, log);
                ok &= outcome.ok();
            }
            Err(failure) => {
                say(log, format!("error: {failure}"));
                refused += 1;
            }
        }
    }
    match refused {
        0 => Ok(ok),
        n => Err(Failure::new(format!("{n} of {} cases could not be run", cases.len()))),
    }
}

fn tell_failures(outcome: &Outcome, log: &mut dyn Write) {
    for failure in outcome.failures() {
        say(log, format!("mismatch: {failure}"));
    }
}

/// Writes a line. A reader that has gone away does not change the verdict.
fn say(to: &mut dyn Write, text: impl std::fmt::Display) {
    let _ = writeln!(to, "{text}");
}
