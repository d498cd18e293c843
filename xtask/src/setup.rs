//! `setup`: finds or fetches what compiles and checks the kernels.

use crate::progress::Progress;
use crate::project;
use anyhow::Result;
use flash_attention_builder::cuda::{PINNED, Tool};
use flash_attention_builder::{CudaTools, Provision, Toolchain};

/// What the kernels are built with.
pub struct Tools {
    /// The compiler.
    pub toolchain: Toolchain,
    /// ptxas and the disassemblers.
    pub cuda: CudaTools,
}

/// Finds the tools, or fetches them unless `offline`.
pub fn find(offline: bool) -> Result<Tools> {
    let progress = Progress::new("looking for the tools");
    let report = |message: &str, bytes: Option<(u64, u64)>| progress.report(message, bytes);
    let provision = Provision::below(project::target()).offline(offline);
    let toolchain = Toolchain::find(&provision, &report)?;
    let cuda = CudaTools::find(&provision, &report)?;
    Ok(Tools { toolchain, cuda })
}

/// The command.
pub fn run(offline: bool) -> Result<()> {
    let tools = find(offline)?;
    let Toolchain { release, llvm, origin, rustc, .. } = &tools.toolchain;
    println!("compiler   rustc {release} with LLVM {llvm} ({origin}: {})", project::shown(rustc));
    let CudaTools { ptxas, nvdisasm, cuobjdump } = &tools.cuda;
    for (name, tool) in [("ptxas", ptxas), ("nvdisasm", nvdisasm), ("cuobjdump", cuobjdump)] {
        let Tool { path, version, origin } = tool;
        println!("{name:9}  {version} ({origin}: {})", project::shown(path));
    }
    if ptxas.version != PINNED {
        println!("note: the shipped kernels are checked with ptxas {PINNED}; others may use more registers");
    }
    Ok(())
}
