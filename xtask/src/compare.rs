//! `compare`: builds the kernels, then runs the example of that name.

use crate::build_ptx;
use crate::cargo::cargo;
use anyhow::{Context as _, Result};
use flash_attention_builder::CudaBuilderError;
use std::ffi::OsString;
use std::process::ExitCode;

/// The command; `arguments` go to the example, whose exit status is the result.
pub fn run(arguments: &[OsString]) -> Result<ExitCode> {
    match build_ptx::run(&build_ptx::Options::of_all()) {
        Err(error) if matches!(error.downcast_ref(), Some(CudaBuilderError::Missing { .. })) => {
            // Without its tools the GPU's side cannot be built; the CPU's can.
            eprintln!("note: no kernels for the GPU: {error}");
        }
        result => result?,
    }
    let mut command = cargo(&["run", "--quiet", "--release", "--example", "compare", "--"]);
    let status = command.args(arguments).status().context("starting cargo")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
