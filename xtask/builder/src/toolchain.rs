//! Finds a compiler for the device: a rustc with its library sources and LLVM's NVPTX backend.

use crate::error::{CudaBuilderError, Rejected, Result};
use crate::process::{Report, run};
use crate::{Provision, debian};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest compiler that can build the kernels: the workspace's `rust-version`.
pub const OLDEST: (u32, u32) = (1, 95);

/// A compiler that can build kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler.
    pub rustc: PathBuf,
    /// Where its libraries lie, if the system's loader does not find them by itself.
    pub library_path: Option<PathBuf>,
    /// Its version, such as `1.96.0`.
    pub release: String,
    /// The version of its LLVM.
    pub llvm: String,
    /// In words, where it comes from.
    pub origin: String,
}

impl Toolchain {
    /// The first compiler that can serve: a rustup toolchain, the system's, one unpacked earlier. Where there is none
    /// and `provision` allows it, Debian's packages are fetched and unpacked.
    ///
    /// # Errors
    /// A table of what each candidate lacked, with the ways out.
    pub fn find(provision: &Provision, report: Report<'_>) -> Result<Toolchain> {
        report("looking for a compiler for the device", None);
        let mut tried = Vec::new();
        for candidate in candidates(provision) {
            match candidate.inspect() {
                Ok(toolchain) => return Ok(toolchain),
                Err(lacks) => tried.push(Rejected::new(
                    format!("{}: {}", candidate.origin, candidate.rustc.display()),
                    lacks,
                )),
            }
        }
        match provision.offline {
            true => tried.push(Rejected::new("Debian packages", "not fetched, because of --offline")),
            false => match debian::provision(&provision.toolchain_folder(), report) {
                Ok(()) => match unpacked(provision).inspect() {
                    Ok(toolchain) => return Ok(toolchain),
                    Err(lacks) => tried.push(Rejected::new("Debian packages, unpacked", lacks)),
                },
                Err(error) => tried.push(Rejected::new("Debian packages", error.to_string())),
            },
        }
        let (major, minor) = OLDEST;
        Err(CudaBuilderError::Missing {
            what: format!("a Rust compiler ({major}.{minor} or newer) with its library sources"),
            tried,
            remedies: vec![
                "with rustup: `rustup component add rust-src` in this folder".into(),
                "on Debian: `apt-get install rustc-web rust-web-src`, as root".into(),
                "any rustc of that age in PATH, with the sources in its sysroot below lib/rustlib/src/rust"
                    .into(),
            ],
        })
    }

    /// A command for this compiler's own tools, with its libraries in the loader's path.
    pub fn command(&self, program: &Path) -> Command {
        command(program, self.library_path.as_deref())
    }
}

/// A place where a compiler may be.
struct Candidate {
    rustc: PathBuf,
    library_path: Option<PathBuf>,
    origin: String,
}

impl Candidate {
    fn inspect(&self) -> Result<Toolchain, String> {
        if !self.rustc.exists() {
            return Err("is not there".into());
        }
        let ask = |arguments: &[&str]| {
            run(command(&self.rustc, self.library_path.as_deref()).args(arguments))
                .map_err(|error| format!("does not run: {error}"))
        };
        let version = ask(&["-vV"])?;
        let release = field(&version, "release: ").ok_or("does not say its version")?;
        if parse_version(&release) < Some(OLDEST) {
            return Err(format!("is {release}, older than {}.{}", OLDEST.0, OLDEST.1));
        }
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?.trim());
        if !sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").exists() {
            return Err(format!("{release}, without the library sources (rust-src)"));
        }
        // Some distributions build LLVM without this backend.
        let cpus = ask(&["--print", "target-cpus", "--target", "nvptx64-nvidia-cuda"]).unwrap_or_default();
        if !cpus.split_whitespace().any(|cpu| cpu == "sm_90a") {
            return Err(format!("{release}, whose LLVM knows no sm_90a"));
        }
        Ok(Toolchain {
            rustc: self.rustc.clone(),
            library_path: self.library_path.clone(),
            release,
            llvm: field(&version, "LLVM version: ").unwrap_or_else(|| "unknown".into()),
            origin: self.origin.clone(),
        })
    }
}

fn candidates(provision: &Provision) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = rustup_toolchains()
        .into_iter()
        .map(|folder| Candidate {
            rustc: folder.join("bin").join(executable("rustc")),
            library_path: None,
            origin: "rustup".into(),
        })
        .collect();
    let in_path =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let mut seen = Vec::new();
    for rustc in in_path.iter().map(|folder| folder.join(executable("rustc"))) {
        let Ok(real) = rustc.canonicalize() else { continue };
        // rustup's proxies stand for toolchains that are candidates already.
        let proxy = real.file_stem().is_some_and(|stem| stem == "rustup" || stem == "rustup-init");
        let known = candidates.iter().any(|c| c.rustc.canonicalize().is_ok_and(|path| path == real));
        if !proxy && !known && !is_proxy(&rustc) && !seen.contains(&real) {
            seen.push(real);
            candidates.push(Candidate { rustc, library_path: None, origin: "system".into() });
        }
    }
    candidates.push(unpacked(provision));
    candidates
}

/// rustup links or copies itself as `rustc` into the folder where it lies itself.
fn is_proxy(rustc: &Path) -> bool {
    rustc.with_file_name(executable("rustup")).exists()
        && rustc.parent().is_some_and(|p| p.ends_with(".cargo/bin"))
}

/// What an earlier run unpacked.
fn unpacked(provision: &Provision) -> Candidate {
    let root = provision.toolchain_folder();
    let libraries = children(&root.join("usr/lib")).into_iter().find(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.contains("-linux-gnu"))
    });
    Candidate {
        rustc: root.join("usr/bin/rustc"),
        library_path: libraries,
        origin: "unpacked packages".into(),
    }
}

/// The installed toolchains, the one that the workspace pins before others. Read from the folder: asking rustup could
/// start a download.
fn rustup_toolchains() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let Some(home) = home.or_else(|| env::home_dir().map(|home| home.join(".rustup"))) else {
        return Vec::new();
    };
    let mut toolchains = children(&home.join("toolchains"));
    let pinned = format!("{}.{}.", OLDEST.0, OLDEST.1);
    let is_pinned =
        |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&pinned));
    toolchains.sort_by_key(|path| !is_pinned(path));
    toolchains
}

pub(crate) fn children(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    paths.sort();
    paths
}

pub(crate) fn executable(name: &str) -> String {
    format!("{name}{}", env::consts::EXE_SUFFIX)
}

/// The first two numbers of a version.
pub(crate) fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

fn command(program: &Path, library_path: Option<&Path>) -> Command {
    let mut command = Command::new(program);
    // Cargo puts its own toolchain's libraries into this variable for the programs that it runs.
    command.env_remove("LD_LIBRARY_PATH");
    if let Some(path) = library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(parse_version("1.96.0+dfsg1-1~deb12u2"), Some((1, 96)));
        assert_eq!(parse_version("1.100.0-nightly"), Some((1, 100)));
        assert!(parse_version("1.100.0") > Some(OLDEST));
        assert!(parse_version("1.63.0") < Some(OLDEST));
        assert_eq!(parse_version("none"), None);
        assert!(parse_version("") < Some(OLDEST));
    }

    #[test]
    fn offline_without_a_compiler_ends_in_a_table_with_remedies() {
        let missing = CudaBuilderError::Missing {
            what: "a compiler".into(),
            tried: vec![
                Rejected::new("system: /usr/bin/rustc", "is 1.63.0"),
                Rejected::new("rustup", "no sources"),
            ],
            remedies: vec!["install it".into()],
        };
        assert_eq!(
            missing.to_string(),
            "a compiler is missing\n  system: /usr/bin/rustc  is 1.63.0\n  rustup                  no sources\n  \
             - install it\n"
        );
    }
}
