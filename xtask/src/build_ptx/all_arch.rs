//! `build-ptx --all-arch`: what the sm_80 kernels take on every architecture that runs them.

use super::{assembling, compile, entries, parallel, rendered, table_with};
use crate::progress::Progress;
use crate::project;
use crate::setup::Tools;
use anyhow::{Context as _, Result};
use flash_attention_builder::ptx::Module;
use flash_attention_builder::ptxas::{self, Usage};
use flash_attention_builder::{CudaArch, CudaBuilderError, check};
use std::fs;

/// Ampere, its consumer cards, Ada, Hopper, Blackwell's consumer cards.
const ARCHS: [&str; 5] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_120"];

/// Compiles once, assembles for each, prints registers by kernel and architecture, and refuses what the build refuses.
pub fn run(tools: &Tools) -> Result<()> {
    let entries = entries(CudaArch::Sm80);
    let progress = Progress::new("compiling the kernels for sm_80");
    let path = compile(CudaArch::Sm80, tools)?;
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let module = Module::parse(&text);
    let staging = project::target().join("device/kernels/all-arch");
    fs::create_dir_all(&staging)?;

    let mut table =
        table_with(["registers of", ARCHS[0], ARCHS[1], ARCHS[2], ARCHS[3], ARCHS[4], "shared memory"]);
    let report = |done| progress.report(&assembling(done, &entries, "all architectures"), None);
    let rows = parallel(&entries, report, |entry| {
        let ptx = staging.join(format!("{}.ptx", entry.name));
        let text = module.split(entry.name).with_context(|| format!("{} is not in the PTX", entry.name))?;
        fs::write(&ptx, text)?;
        let assemble = |arch| ptxas::assemble(&tools.cuda.ptxas, arch, &ptx, &ptx.with_extension(arch));
        ARCHS.into_iter().map(|arch| Ok((arch, assemble(arch)?))).collect::<Result<Vec<_>>>()
    })?;
    drop(progress);
    let mut findings = Vec::new();
    for (entry, usages) in entries.iter().zip(&rows) {
        let registers = |usage: &Usage| match usage.spill_stores + usage.spill_loads {
            0 => usage.registers.to_string(),
            spilled => format!("{} + {spilled} bytes", usage.registers),
        };
        let mut row = vec![entry.name.to_owned()];
        row.extend(usages.iter().map(|(_, usage)| registers(usage)));
        row.push((entry.shared_bytes + usages[0].1.static_shared).to_string());
        table.add_row(row);
        for (arch, usage) in usages {
            findings
                .extend(check::usage(entry.name, usage).into_iter().map(|found| format!("{arch}: {found}")));
        }
    }
    println!("ptxas {}\n{}", tools.cuda.ptxas.version, rendered(table));
    match findings.is_empty() {
        true => {
            println!("no spills, no stack, no warnings");
            Ok(())
        }
        false => Err(CudaBuilderError::Refused(findings).into()),
    }
}
