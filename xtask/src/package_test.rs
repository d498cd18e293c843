//! `package-test`: the packages as they would be published, built and run by a crate that knows nothing of this
//! workspace.

use crate::cargo::cargo;
use crate::project;
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

/// The published packages, each after those that it depends on.
const PACKAGES: [&str; 5] = [
    "flash-attention-cuda-std-macros",
    "flash-attention-cuda-std",
    "flash-attention-kernels",
    "flash-attention-driver",
    "flash-attention",
];
/// What a build from nothing may take: 60 seconds on two processors. Processor time, because other work on the machine
/// does not change that.
const BUILD_LIMIT: Duration = Duration::from_secs(120);

/// The command.
pub fn run() -> Result<()> {
    let folder = project::target().join("package-test");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("clearing {}", folder.display()))?;
    }
    let unpacked = pack(&folder)?;
    let library = unpacked.last().context("there are packages")?;
    let (here, packed) = (compiled(&project::root().join("host/ptx"))?, compiled(&library.join("ptx"))?);
    ensure!(here == packed, "host/ptx holds {here:?}, but the package carries {packed:?}");
    println!("the package carries {} compiled kernels", packed.len());

    let stranger = folder.join("stranger");
    write_crate(&stranger, &unpacked)?;
    let (start, spent) = (Instant::now(), children_time());
    in_crate(&stranger, "build")?;
    println!("built from nothing in {:.1} s", start.elapsed().as_secs_f64());
    if let (Some(before), Some(after)) = (spent, children_time()) {
        let took = after.saturating_sub(before);
        println!("processor time {:.1} s of {:.0} s", took.as_secs_f64(), BUILD_LIMIT.as_secs_f64());
        ensure!(took <= BUILD_LIMIT, "the library takes too long to build from nothing");
    }
    in_crate(&stranger, "run")?;
    println!("README's example ran on the CPU device");
    Ok(())
}

/// Packs all packages and unpacks them again; the folders in the order of [`PACKAGES`].
fn pack(folder: &Path) -> Result<Vec<PathBuf>> {
    let crates = folder.join("crates");
    fs::create_dir_all(&crates)?;
    // Not verified here: that is what the rest of this command does, once and with the time taken.
    let mut command = cargo(&["package", "--quiet", "--no-verify", "--allow-dirty"]);
    command.arg("--target-dir").arg(folder.join("target"));
    for name in PACKAGES {
        command.args(["--package", name]);
    }
    succeed(command)?;
    let version = env!("CARGO_PKG_VERSION");
    PACKAGES
        .iter()
        .map(|name| {
            let archive = folder.join(format!("target/package/{name}-{version}.crate"));
            let mut tar = Command::new("tar");
            tar.arg("-xzf").arg(&archive).arg("-C").arg(&crates);
            succeed(tar)?;
            Ok(crates.join(format!("{name}-{version}")))
        })
        .collect()
}

/// The compiled kernels below a folder: architecture and file name.
fn compiled(ptx: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    if !ptx.is_dir() {
        return Ok(found);
    }
    for arch in fs::read_dir(ptx)? {
        let arch = arch?.path();
        if !arch.is_dir() {
            continue;
        }
        for file in fs::read_dir(&arch)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "ptx" || extension == "cubin") {
                found.insert(file.strip_prefix(ptx)?.display().to_string());
            }
        }
    }
    Ok(found)
}

/// A crate that depends on the library as a user does and whose program is README's example.
fn write_crate(folder: &Path, unpacked: &[PathBuf]) -> Result<()> {
    let root = project::root();
    let version = env!("CARGO_PKG_VERSION");
    let mut manifest = format!(
        "[package]\nname = \"stranger\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nflash-attention = \"{version}\"\nhalf = \"2\"\n\n[patch.crates-io]\n"
    );
    for (name, path) in PACKAGES.iter().zip(unpacked) {
        writeln!(manifest, "{name} = {{ path = {path:?} }}")?;
    }
    let readme = fs::read_to_string(root.join("README.md")).context("reading README.md")?;
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/main.rs"), rust_block(&readme).context("README.md has no example in Rust")?)?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    // The versions that were tested, and that a machine without a network may have.
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(())
}

/// The first block of Rust in a page.
fn rust_block(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once("```rust\n")?;
    Some(rest.split_once("```")?.0)
}

fn in_crate(folder: &Path, subcommand: &str) -> Result<()> {
    let mut command = cargo(&[subcommand, "--quiet"]);
    command.current_dir(folder).arg("--target-dir").arg(folder.join("target"));
    // Nothing of this workspace's configuration or of a device toolchain.
    for variable in ["RUSTC", "RUSTC_BOOTSTRAP", "RUSTFLAGS", "CUDA_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    succeed(command)
}

fn succeed(mut command: Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Processor time of all programs that this one has waited for, where the system tells.
fn children_time() -> Option<Duration> {
    /// Fixed for user space on Linux, whatever the kernel uses inside.
    const TICKS_PER_SECOND: u64 = 100;
    parse_children_ticks(&fs::read_to_string("/proc/self/stat").ok()?)
        .map(|ticks| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// `cutime + cstime` of a line of `/proc/<pid>/stat`; the name in parentheses may hold anything.
fn parse_children_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(13);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_children_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 130 14 20 0 1 0 5 6 7";
        assert_eq!(parse_children_ticks(stat), Some(144));
        assert_eq!(parse_children_ticks("7 (x"), None);
    }

    #[test]
    fn the_first_rust_block_is_taken() {
        let page = "a\n```sh\nls\n```\n```rust\nfn main() {}\n```\n```rust\nno\n```\n";
        assert_eq!(rust_block(page), Some("fn main() {}\n"));
        assert_eq!(rust_block("nothing"), None);
    }
}
