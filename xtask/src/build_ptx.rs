//! `build-ptx`: compiles the kernels, cuts the PTX by entry, checks and assembles each, and puts them where the host
//! crate embeds them.

mod all_arch;

use crate::manifest::{Kernel, Manifest, Section, write_if_changed};
use crate::progress::Progress;
use crate::project;
use crate::sass_record;
use crate::setup::{self, Tools};
use anyhow::{Context as _, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use flash_attention_builder::ptx::Module;
use flash_attention_builder::ptxas::{self, Usage};
use flash_attention_builder::sass::{self, HotLoop};
use flash_attention_builder::{CudaArch, CudaBuilder, CudaBuilderError, check};
use flash_attention_kernels::config::{self, Entry};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Options of `build-ptx`.
#[derive(Args, Debug, Default)]
pub struct Options {
    /// Architectures to build for
    #[arg(long, value_delimiter = ',', value_parser = parse_arch, default_values = ["sm_80", "sm_90a"])]
    pub arch: Vec<CudaArch>,
    /// Use only the tools that are there
    #[arg(long)]
    pub offline: bool,
    /// Build even where nothing has changed
    #[arg(long)]
    pub force: bool,
    /// Publish kernels that the checks refuse, for an experiment
    #[arg(long)]
    pub lenient: bool,
    /// Record the order of instructions in the hot loops as the right one
    #[arg(long)]
    pub bless_sass: bool,
    /// Only assemble the sm_80 kernels for every architecture that runs them, and print a table
    #[arg(long)]
    pub all_arch: bool,
}

impl Options {
    /// Every architecture, nothing unusual.
    pub fn of_all() -> Self {
        Options { arch: CudaArch::ALL.to_vec(), ..Options::default() }
    }
}

fn parse_arch(name: &str) -> Result<CudaArch, String> {
    name.parse()
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let tools = setup::find(options.offline)?;
    if options.all_arch {
        return all_arch::run(&tools);
    }
    for &arch in &options.arch {
        build(arch, &tools, options)?;
    }
    Ok(())
}

/// The entries of the table for one architecture.
fn entries(arch: CudaArch) -> Vec<&'static Entry> {
    config::entries().filter(|entry| entry.arch() == arch.name()).collect()
}

fn build(arch: CudaArch, tools: &Tools, options: &Options) -> Result<()> {
    let entries = entries(arch);
    let folder = project::ptx().join(arch.name());
    let manifest_path = project::ptx().join("manifest.json");
    let mut manifest = Manifest::read(&manifest_path);
    if entries.is_empty() {
        println!("{}: the table has no entry for it", arch.name());
        remove_others(&folder, &[])?;
        manifest.archs.remove(arch.name());
        return manifest.write(&manifest_path);
    }
    let source_hash = source_hash(tools)?;
    if let Some(section) = manifest.archs.get(arch.name())
        && !options.force
        && !options.bless_sass
        && section.source_hash == source_hash
        && entries.iter().all(|entry| folder.join(format!("{}.ptx", entry.name)).exists())
    {
        println!("{}: {} kernels are up to date", arch.name(), section.entries.len());
        return Ok(());
    }

    let progress = Progress::new(&format!("compiling the kernels for {}", arch.name()));
    let module = compile(arch, tools)?;
    let text = fs::read_to_string(&module).with_context(|| format!("reading {}", module.display()))?;
    let module = Module::parse(&text);
    let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
    let mut findings = check::module(&module, arch, &names);
    if !findings.is_empty() {
        return Err(CudaBuilderError::Refused(findings).into());
    }

    let staging = project::target().join("device/kernels").join(arch.name());
    fs::create_dir_all(&staging)?;
    let assembled = parallel(
        &entries,
        |done| progress.report(&assembling(done, &entries, arch.name()), None),
        |entry| assemble(&module, entry, arch, tools, &staging),
    )?;
    let mut kernels = Vec::new();
    for (entry, (usage, _)) in entries.iter().zip(&assembled) {
        let bounds = module.bounds(entry.name);
        findings.extend(check::usage(entry.name, usage));
        let text = fs::read_to_string(staging.join(format!("{}.ptx", entry.name)))?;
        findings.extend(check::entry(entry.name, &text));
        if bounds.max_threads.is_some_and(|threads| threads != entry.threads) {
            let declared = bounds.max_threads.unwrap_or_default();
            let (name, threads) = (entry.name, entry.threads);
            findings.push(format!("{name} declares {declared} threads, but the table says {threads}"));
        }
        let mut kernel = Kernel::new(entry, bounds, usage, module.version());
        kernel.ptx_bytes = text.len() as u64;
        kernels.push(kernel);
    }
    drop(progress);
    println!("{}", table(arch, &kernels));
    if arch == CudaArch::Sm90a {
        let names = entries.iter().map(|entry| entry.name.to_owned());
        let hot = names.zip(assembled.into_iter().map(|(_, hot)| hot)).collect();
        let verdict = sass_record::check(arch, &hot, tools, options.bless_sass)?;
        findings.extend(verdict.refused);
        for warning in verdict.warnings {
            println!("warning: {warning}");
        }
    }
    match (findings.is_empty(), options.lenient) {
        (true, _) => {}
        (false, true) => {
            println!("published all the same, because of --lenient:\n  - {}", findings.join("\n  - "))
        }
        (false, false) => return Err(CudaBuilderError::Refused(findings).into()),
    }

    publish(arch, &staging, &folder, &mut kernels)?;
    let section = Section {
        compiler: tools.toolchain.release.clone(),
        llvm: tools.toolchain.llvm.clone(),
        ptxas: tools.cuda.ptxas.version.clone(),
        // What the checks refuse is never up to date: the next build looks at it again.
        source_hash: if findings.is_empty() { source_hash } else { String::new() },
        entries: kernels,
    };
    manifest.archs.insert(arch.name().into(), section);
    manifest.write(&manifest_path)
}

/// Compiles the crate of kernels to one module.
pub fn compile(arch: CudaArch, tools: &Tools) -> Result<PathBuf> {
    let builder = CudaBuilder::new(project::root().join("kernels"))
        .arch(arch)
        .toolchain(tools.toolchain.clone())
        .target_dir(project::target().join("device"));
    Ok(builder.build()?)
}

/// Writes an entry's text into `staging`, assembles it there, and reads the hot loops of Hopper's kernels.
fn assemble(
    module: &Module<'_>,
    entry: &Entry,
    arch: CudaArch,
    tools: &Tools,
    staging: &Path,
) -> Result<(Usage, Vec<HotLoop>)> {
    let ptx = staging.join(format!("{}.ptx", entry.name));
    let cubin = ptx.with_extension("cubin");
    let text = module.split(entry.name).context("the entry was checked to be there")?;
    fs::write(&ptx, text)?;
    let usage = ptxas::assemble(&tools.cuda.ptxas, arch.name(), &ptx, &cubin)?;
    let hot = match arch {
        CudaArch::Sm80 => Vec::new(),
        CudaArch::Sm90a => sass::hot_loops(&sass::disassemble(&tools.cuda.nvdisasm, &cubin)?),
    };
    Ok((usage, hot))
}

fn assembling(done: usize, all: &[&Entry], arch: &str) -> String {
    format!("assembled {done} of {} for {arch}", all.len())
}

/// Does `work` for each item on all processors, and tells `report` how many are done.
fn parallel<I: Sync, O: Send>(
    items: &[I],
    report: impl Fn(usize) + Sync,
    work: impl Fn(&I) -> Result<O> + Sync,
) -> Result<Vec<O>> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let worker = || {
        let mut mine = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return mine };
            mine.push((index, work(item)));
            report(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    let mut all = thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("the work does not panic"))
            .collect::<Vec<_>>()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, output)| output).collect()
}

/// Puts the files where the host crate finds them. The machine code goes along for the architecture that one GPU
/// only has: it spares that GPU's first call the driver's compiler.
fn publish(arch: CudaArch, staging: &Path, folder: &Path, kernels: &mut [Kernel]) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut kept = Vec::new();
    for kernel in kernels {
        let mut copy = |extension: &str| -> Result<u64> {
            let name = format!("{}.{extension}", kernel.name);
            let content = fs::read(staging.join(&name))?;
            write_if_changed(&folder.join(&name), &content)?;
            kept.push(name);
            Ok(content.len() as u64)
        };
        copy("ptx")?;
        kernel.cubin_bytes = match arch {
            CudaArch::Sm80 => None,
            CudaArch::Sm90a => Some(copy("cubin")?),
        };
    }
    remove_others(folder, &kept)
}

/// Removes kernels that the table no longer has.
fn remove_others(folder: &Path, kept: &[String]) -> Result<()> {
    for file in fs::read_dir(folder).into_iter().flatten() {
        let file = file?;
        if !kept.iter().any(|name| name.as_str() == file.file_name()) {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

fn table(arch: CudaArch, kernels: &[Kernel]) -> String {
    let mut table = table_with(["kernel", "registers", "shared memory", "spills", "stack", "PTX size"]);
    for kernel in kernels {
        table.add_row([
            kernel.name.clone(),
            kernel.registers.to_string(),
            (kernel.static_shared + kernel.dynamic_shared).to_string(),
            kernel.spills.to_string(),
            kernel.stack.to_string(),
            kernel.ptx_bytes.to_string(),
        ]);
    }
    format!("{} kernels for {}, sizes in bytes\n{}", kernels.len(), arch.name(), rendered(table))
}

/// A table whose first column holds names and whose others hold numbers.
fn table_with<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    table
}

fn rendered(mut table: Table) -> String {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Hash of what the kernels are made of: their sources, the builder's, and the versions of the tools.
fn source_hash(tools: &Tools) -> Result<String> {
    let mut files = Vec::new();
    for folder in ["kernels", "xtask/builder/src"] {
        collect(&project::root().join(folder), &mut files)?;
    }
    files.sort();
    let mut hash = Fnv::default();
    for file in &files {
        hash.add(project::shown(file).as_bytes());
        hash.add(&fs::read(file)?);
    }
    for version in [&tools.toolchain.release, &tools.toolchain.llvm, &tools.cuda.ptxas.version] {
        hash.add(version.as_bytes());
    }
    Ok(format!("{:016x}", hash.0))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// FNV-1a: enough to see a change, and the same in every version of this program.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        // The length keeps neighbouring pieces apart.
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
