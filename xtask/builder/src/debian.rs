//! Fetches Debian's compiler as an ordinary user and unpacks it into a folder. Nothing is installed.

use crate::error::{At, CudaBuilderError, Rejected, Result};
use crate::process::{Report, run, run_watching};
use crate::toolchain::{OLDEST, children, parse_version};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Packages of a compiler and of its sources, by preference. Debian keeps a recent compiler under the first names
/// for its browsers.
const FAMILIES: [[&str; 2]; 2] = [["rustc-web", "rust-web-src"], ["rustc", "rust-src"]];

/// A package at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    depends: Vec<String>,
    size: u64,
}

/// Fetches the newest compiler that the system's own sources offer and unpacks it below `root`.
pub(crate) fn provision(root: &Path, report: Report<'_>) -> Result<()> {
    for program in ["apt-get", "apt-cache", "dpkg"] {
        run(Command::new(program).arg("--version")).map_err(|_| CudaBuilderError::Missing {
            what: format!("{program}, which Debian-like systems have,"),
            tried: vec![],
            remedies: vec![],
        })?;
    }
    let apt = root.with_extension("apt");
    for folder in ["lists/partial", "archives/partial", "packages"] {
        let folder = apt.join(folder);
        fs::create_dir_all(&folder).at(&folder)?;
    }
    let (lists, packages) = (apt.join("lists"), apt.join("packages"));
    // A source that does not answer is no harm where another has the packages, hence the status does not count.
    let update = run_watching(
        apt_command("apt-get", &apt).args(["-q", "update"]),
        "reading the package lists",
        &lists,
        None,
        report,
    );
    let chosen = choose(|name| show(&apt, name)).map_err(|lacks| {
        let said = update.err().map(|error| format!("; {error}")).unwrap_or_default();
        CudaBuilderError::Missing {
            what: "a Debian package of a recent compiler".into(),
            tried: vec![Rejected::new("package lists", format!("{lacks}{said}"))],
            remedies: vec![],
        }
    })?;

    let total: u64 = chosen.iter().map(|package| package.size).sum();
    let what = format!("fetching {} {}", chosen[0].name, chosen[0].version);
    let names = chosen.iter().map(|package| format!("{}={}", package.name, package.version));
    let mut download = apt_command("apt-get", &apt);
    run_watching(
        download.args(["-q", "download"]).args(names).current_dir(&packages),
        &what,
        &packages,
        Some(total),
        report,
    )?;

    // Unpacked beside and moved, so that a broken run leaves no half toolchain behind.
    let unfinished = apt.join("unpacked");
    remove(&unfinished)?;
    for package in children(&packages) {
        report("unpacking the packages", None);
        run(Command::new("dpkg").arg("-x").arg(&package).arg(&unfinished))?;
    }
    remove(root)?;
    fs::rename(&unfinished, root).at(root)?;
    remove(&apt)
}

fn remove(folder: &Path) -> Result<()> {
    match folder.exists() {
        true => fs::remove_dir_all(folder).at(folder),
        false => Ok(()),
    }
}

/// The compiler, its sources and its own libraries. What else it needs (the C library and such) the system has.
fn choose(show: impl Fn(&str) -> Vec<Package>) -> Result<Vec<Package>, String> {
    let mut lacks = Vec::new();
    for [compiler, sources] in FAMILIES {
        let mut compilers = show(compiler);
        compilers.retain(|package| parse_version(&package.version) >= Some(OLDEST));
        let newest = compilers.into_iter().max_by_key(|package| parse_version(&package.version));
        let Some(newest) = newest else {
            lacks.push(format!("no {compiler} of {}.{} or newer", OLDEST.0, OLDEST.1));
            continue;
        };
        let Some(sources) = show(sources).into_iter().find(|package| package.version == newest.version)
        else {
            lacks.push(format!("{compiler} {} without {sources}", newest.version));
            continue;
        };
        let mut chosen = vec![newest, sources];
        let mut next = 0;
        while let Some(package) = chosen.get(next) {
            let wanted: Vec<String> =
                package.depends.iter().filter(|name| is_own_library(name)).cloned().collect();
            let version = chosen[0].version.clone();
            for name in wanted {
                if chosen.iter().any(|package| package.name == name) {
                    continue;
                }
                let mut found = show(&name);
                // The compiler's own libraries are of its version; LLVM has its own.
                if name.starts_with("libstd") {
                    found.retain(|package| package.version == version);
                }
                chosen.push(found.into_iter().next().ok_or(format!("no {name}, which {compiler} needs"))?);
            }
            next += 1;
        }
        return Ok(chosen);
    }
    Err(lacks.join(", "))
}

fn is_own_library(name: &str) -> bool {
    name.starts_with("libstd-rust") || name.starts_with("libllvm")
}

/// What the lists say about a package, the candidate first.
fn show(apt: &Path, name: &str) -> Vec<Package> {
    run(apt_command("apt-cache", apt).args(["show", name])).map(|text| parse(&text)).unwrap_or_default()
}

fn parse(text: &str) -> Vec<Package> {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let field = |name: &str| {
            paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim)
        };
        let depends = field("Depends").unwrap_or_default().split(',');
        let name_of = |dependency: &str| dependency.split_whitespace().next().unwrap_or_default().to_owned();
        Some(Package {
            name: field("Package")?.to_owned(),
            version: field("Version")?.to_owned(),
            depends: depends.map(name_of).filter(|name| !name.is_empty()).collect(),
            size: field("Size").and_then(|size| size.parse().ok()).unwrap_or(0),
        })
    });
    paragraphs.flatten().collect()
}

/// apt with its lists and caches in our folder, and the system's sources.
fn apt_command(program: &str, apt: &Path) -> Command {
    let mut command = Command::new(program);
    for (key, folder) in [
        ("Dir::State::Lists", "lists"),
        ("Dir::Cache", ""),
        ("Dir::Cache::archives", "archives"),
        ("Dir::Cache::pkgcache", "pkgcache.bin"),
        ("Dir::Cache::srcpkgcache", "srcpkgcache.bin"),
    ] {
        command.arg("-o").arg(format!("{key}={}", apt.join(folder).display()));
    }
    // As root apt would hand the download to a user that cannot write here.
    command.args(["-o", "APT::Sandbox::User=root", "-o", "APT::Update::Post-Invoke-Success::="]);
    command.env("LC_ALL", "C");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, depends: &[&str]) -> Package {
        let depends = depends.iter().map(|name| (*name).to_owned()).collect();
        Package { name: name.into(), version: version.into(), depends, size: 1 }
    }

    #[test]
    fn the_lists_text_is_understood() {
        let text = "Package: rustc-web\nVersion: 1.96.0-1\nDepends: libc6 (>= 2.34), libstd-rust-web-dev (= 1.96.0-1), \
                    gcc\nDescription: x\n Package: no\nSize: 4450500\n\nPackage: rustc-web\nVersion: 1.85.0-3\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].depends, ["libc6", "libstd-rust-web-dev", "gcc"]);
        assert_eq!((found[0].version.as_str(), found[0].size), ("1.96.0-1", 4450500));
        assert_eq!(found[1].version, "1.85.0-3");
    }

    #[test]
    fn the_newest_compiler_comes_with_sources_and_libraries_of_its_version() {
        let lists = |name: &str| match name {
            "rustc-web" => {
                vec![
                    package(name, "1.85.0", &["libstd-dev"]),
                    package(name, "1.97.1", &["libc6", "libstd-rust-dev"]),
                ]
            }
            "rust-web-src" => vec![package(name, "1.85.0", &[]), package(name, "1.97.1", &[])],
            "libstd-rust-dev" => {
                vec![
                    package(name, "1.85.0", &[]),
                    package(name, "1.97.1", &["libstd-rust-1.97", "libllvm23"]),
                ]
            }
            "libstd-rust-1.97" => vec![package(name, "1.97.1", &["libllvm23"])],
            "libllvm23" => vec![package(name, "1:23.1", &["libxml2"])],
            _ => vec![],
        };
        let names: Vec<String> =
            choose(lists).unwrap().into_iter().map(|p| format!("{}={}", p.name, p.version)).collect();
        assert_eq!(
            names,
            [
                "rustc-web=1.97.1",
                "rust-web-src=1.97.1",
                "libstd-rust-dev=1.97.1",
                "libstd-rust-1.97=1.97.1",
                "libllvm23=1:23.1"
            ]
        );
    }

    #[test]
    fn lists_without_a_recent_compiler_say_so() {
        let old = |name: &str| vec![package(name, "1.63.0", &[])];
        assert_eq!(choose(old).unwrap_err(), "no rustc-web of 1.95 or newer, no rustc of 1.95 or newer");
        let no_sources = |name: &str| match name {
            "rustc" => vec![package(name, "1.97.0", &[])],
            _ => vec![],
        };
        assert_eq!(
            choose(no_sources).unwrap_err(),
            "no rustc-web of 1.95 or newer, rustc 1.97.0 without rust-src"
        );
    }
}
