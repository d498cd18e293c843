//! `host/ptx/manifest.json`: what the compiled kernels were made of and with.

use anyhow::{Context as _, Result};
use flash_attention_builder::ptx::Bounds;
use flash_attention_builder::ptxas::Usage;
use flash_attention_kernels::config::{Entry, MaskKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The whole file: one section an architecture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// By name of the architecture.
    pub archs: BTreeMap<String, Section>,
}

/// The kernels of one architecture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Version of rustc.
    pub compiler: String,
    /// Version of its LLVM.
    pub llvm: String,
    /// Version of ptxas.
    pub ptxas: String,
    /// Hash of everything that the kernels are made of, tools included.
    pub source_hash: String,
    /// The kernels.
    pub entries: Vec<Kernel>,
}

/// One kernel: its contract and what it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// The symbol, and the stem of the file.
    pub name: String,
    /// Algorithm and instruction set.
    pub family: String,
    /// Element type.
    pub dtype: String,
    /// Largest head dimension.
    pub head_dim: u32,
    /// `full` or `causal`.
    pub mask: String,
    /// Query rows of a tile.
    pub block_m: u32,
    /// Key rows of a tile.
    pub block_n: u32,
    /// Tiles in flight.
    pub stages: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster.
    pub cluster: u32,
    /// Shared memory that a launch asks for, in bytes.
    pub dynamic_shared: u32,
    /// Shared memory that the text declares, in bytes.
    pub static_shared: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of spilled registers.
    pub spills: u32,
    /// Bytes of stack.
    pub stack: u32,
    /// Version of the PTX.
    pub ptx_version: String,
    /// Size of the text in bytes.
    pub ptx_bytes: u64,
    /// Size of the machine code in bytes, where it is kept.
    pub cubin_bytes: Option<u64>,
}

impl Kernel {
    /// Joins what the table, the text and ptxas say.
    pub fn new(entry: &Entry, bounds: Bounds, usage: &Usage, ptx_version: &str) -> Self {
        Kernel {
            name: entry.name.into(),
            family: entry.family.name().into(),
            dtype: entry.dtype.name().into(),
            head_dim: entry.head_dim,
            mask: match entry.mask {
                MaskKind::Full => "full".into(),
                MaskKind::Causal => "causal".into(),
                MaskKind::Any => "any".into(),
            },
            block_m: entry.block_m,
            block_n: entry.block_n,
            stages: entry.stages,
            threads: entry.threads,
            cluster: bounds.cluster.unwrap_or(1),
            dynamic_shared: entry.shared_bytes,
            static_shared: usage.static_shared,
            registers: usage.registers,
            spills: usage.spill_stores + usage.spill_loads,
            stack: usage.stack,
            ptx_version: ptx_version.into(),
            ptx_bytes: 0,
            cubin_bytes: None,
        }
    }
}

impl Manifest {
    /// Reads the file; one that is missing or from another version of this program is an empty one.
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Writes the file, unless it says the same already.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        write_if_changed(path, text.as_bytes())
    }
}

/// Leaves a file alone that has this content: cargo would build again what includes it.
pub fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_broken_files_count_as_none() {
        let folder = std::env::temp_dir().join(format!("manifest-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("manifest.json");
        let section = Section {
            compiler: "1.96.0".into(),
            llvm: "22.1.8".into(),
            ptxas: "13.0.88".into(),
            source_hash: "00".into(),
            entries: vec![],
        };
        let manifest = Manifest { archs: BTreeMap::from([("sm_80".to_owned(), section)]) };
        assert_eq!(Manifest::read(&path), Manifest::default());
        manifest.write(&path).unwrap();
        assert_eq!(Manifest::read(&path), manifest);
        fs::write(&path, "{\"archs\":{\"sm_80\":{}}}").unwrap();
        assert_eq!(Manifest::read(&path), Manifest::default());
        fs::remove_dir_all(&folder).unwrap();
    }
}
