//! Runs attention on a device, checks it against the f64 reference and times it.
//!
//! `cargo run --release --example compare -- --help` lists the options. The exit status is 0 if the result is right,
//! 1 if it is not, 2 if the call could not be made.

mod device;
mod files;
mod measure;
mod npy;
mod options;
mod report;
mod tensors;

use clap::Parser;
use measure::{Failure, measure_case};
use options::{CaseOptions, Options};
use report::Line;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.configs {
        Some(path) => run_list(&options, path),
        None => run_one(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(2)
        }
    }
}

/// One case, told at length.
fn run_one(options: &Options) -> Result<bool, Failure> {
    let outcome = measure_case(options, &options.case);
    if options.json {
        let line = Line::new(&options.case, &outcome);
        println!("{}", line.json());
    }
    let outcome = outcome?;
    if !options.json {
        println!("{}", report::page(&outcome));
    }
    outcome.failures().iter().for_each(|failure| eprintln!("mismatch: {failure}"));
    Ok(outcome.ok())
}

/// A list of cases, one line each. A case that cannot be run does not keep the others from it.
fn run_list(options: &Options, path: &std::path::Path) -> Result<bool, Failure> {
    let cases = options::read_configs(path, &options.case)?;
    let (mut ok, mut refused) = (true, 0);
    if !options.json {
        println!("{}", report::list_header());
    }
    for case in &cases {
        let outcome = case.as_ref().map_err(Failure::clone).and_then(|case| measure_case(options, case));
        let fallback = CaseOptions::default();
        let line = Line::new(case.as_ref().unwrap_or(&fallback), &outcome);
        println!("{}", if options.json { line.json() } else { line.text().into() });
        match &outcome {
            Ok(outcome) => {
                outcome.failures().iter().for_each(|failure| eprintln!("mismatch: {failure}"));
                ok &= outcome.ok();
            }
            Err(failure) => {
                eprintln!("error: {failure}");
                refused += 1;
            }
        }
    }
    match refused {
        0 => Ok(ok),
        n => Err(Failure::new(format!("{n} of {} cases could not be run", cases.len()))),
    }
}
