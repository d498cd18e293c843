//! Runs ptxas and reads what it says about a kernel.

use crate::cuda::Tool;
use crate::error::{CudaBuilderError, Result};
use std::path::Path;
use std::process::Command;

/// What a kernel takes of a multiprocessor, and what ptxas warned of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory that the text declares, in bytes; what the launch adds is not in it.
    pub static_shared: u32,
    /// Stack frame, in bytes.
    pub stack: u32,
    /// Bytes that spilling registers stores.
    pub spill_stores: u32,
    /// Bytes that spilling registers loads.
    pub spill_loads: u32,
    /// Warnings: those that tell of lost performance (`C75…`), and all of the severity warning.
    pub warnings: Vec<String>,
}

/// Assembles one file for `arch` into `cubin`.
///
/// # Errors
/// Where ptxas cannot be run or refuses the text.
pub fn assemble(ptxas: &Tool, arch: &str, ptx: &Path, cubin: &Path) -> Result<Usage> {
    let mut command = Command::new(&ptxas.path);
    command.args(["-v", "-arch", arch]).arg(ptx).arg("-o").arg(cubin);
    let what = || format!("ptxas {} for {arch}", ptx.display());
    let output = command.output().map_err(|error| CudaBuilderError::Failed {
        what: what(),
        status: error.to_string(),
        output: String::new(),
    })?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.success() {
        true => Ok(parse(&said)),
        false => {
            Err(CudaBuilderError::Failed { what: what(), status: output.status.to_string(), output: said })
        }
    }
}

/// Reads the output of `ptxas -v` for a file of one entry.
pub fn parse(said: &str) -> Usage {
    let mut usage = Usage::default();
    for line in said.lines() {
        let before = |unit: &str| number_before(line, unit);
        usage.registers = usage.registers.max(before(" registers").unwrap_or(0));
        usage.static_shared = usage.static_shared.max(before(" bytes smem").unwrap_or(0));
        usage.stack = usage.stack.max(before(" bytes stack frame").unwrap_or(0));
        usage.spill_stores = usage.spill_stores.max(before(" bytes spill stores").unwrap_or(0));
        usage.spill_loads = usage.spill_loads.max(before(" bytes spill loads").unwrap_or(0));
        let performance = line.contains("(C75");
        if performance || line.trim_start().starts_with("ptxas warning") {
            let text = line.split_once(':').map_or(line, |(_, rest)| rest).trim();
            usage.warnings.push(text.to_owned());
        }
    }
    usage
}

fn number_before(line: &str, unit: &str) -> Option<u32> {
    let (before, _) = line.split_once(unit)?;
    let digits = before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    before[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read() {
        let said = "ptxas info    : 0 bytes gmem\n\
                    ptxas info    : Compiling entry function 'a' for 'sm_90a'\n\
                    ptxas info    : Function properties for a\n    \
                    16 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
                    ptxas info    : Used 168 registers, used 11 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 704 bytes cmem[0]\n\
                    ptxas info    : Compile time = 12.7 ms\n";
        let expected = Usage {
            registers: 168,
            static_shared: 1024,
            stack: 16,
            spill_stores: 4,
            spill_loads: 12,
            warnings: vec![],
        };
        assert_eq!(parse(said), expected);
    }

    #[test]
    fn warnings_of_lost_performance_count_whatever_their_severity() {
        let said = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources\n\
                    ptxas warning : Value of threads per SM for entry a is out of range. .minnctapersm will be ignored\n\
                    ptxas info    : Used 8 registers\n";
        let usage = parse(said);
        assert!(usage.warnings[0].starts_with("(C7510) Potential Performance Loss"), "{usage:?}");
        assert!(usage.warnings[1].starts_with("Value of threads per SM"), "{usage:?}");
        assert_eq!(usage.warnings.len(), 2);
    }
}
