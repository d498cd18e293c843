//! `tidy`: what no compiler checks. It is a test as well.

use crate::project;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The command's name.
pub const COMMAND: &str = "tidy";

/// Lines of a Rust file; longer ones hide more than one thing.
const MAX_LINES: usize = 500;

/// The command.
pub fn run() -> Result<()> {
    let files = files()?;
    let findings = findings(&files);
    if !findings.is_empty() {
        bail!("{} untidy places\n  - {}", findings.len(), findings.join("\n  - "));
    }
    println!("{} files are tidy", files.len());
    Ok(())
}

/// A text file of the project.
struct File {
    /// Relative to the workspace, with `/`.
    path: String,
    text: String,
}

fn files() -> Result<Vec<File>> {
    let mut paths = Vec::new();
    collect(project::root(), &mut paths)?;
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        // What is not text has no lines to look at.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File { path: project::shown(&path).replace('\\', "/"), text });
        }
    }
    Ok(files)
}

/// All files but build outputs and what git keeps for itself.
fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        let skipped = ["target", ".git", "ptx", "__pycache__"].iter().any(|skipped| name == *skipped);
        if path.is_symlink() || skipped {
            continue;
        }
        match path.is_dir() {
            true => collect(&path, paths)?,
            false => paths.push(path),
        }
    }
    Ok(())
}

fn findings(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        if file.path.ends_with(".rs") {
            source(file, &mut findings);
        }
        words(file, &mut findings);
    }
    project_wide(files, &mut findings);
    findings
}

/// Rules for Rust files.
fn source(file: &File, findings: &mut Vec<String>) {
    let File { path, text } = file;
    let lines = text.lines().count();
    if lines > MAX_LINES {
        findings.push(format!("{path} has {lines} lines, more than {MAX_LINES}: part it"));
    }
    // The driver crate's stubs are no device code, but jumps that Rust cannot write.
    let may_hold_assembly = path.starts_with("kernels/cuda_std/") || path.starts_with("host/driver/");
    if !may_hold_assembly && text.contains(concat!("asm", "!(")) {
        findings.push(format!("{path} holds inline assembly, which belongs into kernels/cuda_std"));
    }
    let kernel = path.starts_with("kernels/src/forward/") && text.contains("cuda_std::kernel");
    for section in ["# Safety", "# Thread mapping"] {
        if kernel && !text.contains(section) {
            findings
                .push(format!("{path} has a kernel without the section `{section}` in its documentation"));
        }
    }
}

/// Words that no text of the project holds. They are written in two parts here, or this file would hold them.
fn words(file: &File, findings: &mut Vec<String>) {
    let unfinished =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimple", "mented!(")];
    let switched_off = [concat!("allow(", "dead_code"), concat!("allow(", "unused"), concat!("#[", "ignore")];
    let machine =
        [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];
    let rules: [(&[&str], &str); 3] = [
        (&unfinished, "is unfinished"),
        (&switched_off, "switches a check off"),
        (&machine, "names a place on one machine"),
    ];
    for (number, line) in file.text.lines().enumerate() {
        for (words, complaint) in rules {
            if let Some(word) = words.iter().find(|word| line.contains(*word)) {
                findings.push(format!("{}:{}: {word} {complaint}", file.path, number + 1));
            }
        }
    }
}

/// Rules for the project as a whole.
fn project_wide(files: &[File], findings: &mut Vec<String>) {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    for (path, needed) in [
        ("LICENSE-MIT", "MIT License"),
        ("LICENSE-APACHE", "Apache License"),
        ("Cargo.toml", "license = \"MIT OR Apache-2.0\""),
        (".ci/run", "cargo xtask test"),
        ("README.md", "cargo xtask test"),
    ] {
        match find(path) {
            Some(file) if file.text.contains(needed) => {}
            Some(_) => findings.push(format!("{path} does not hold `{needed}`")),
            None => findings.push(format!("{path} is missing")),
        }
    }
    let programs: Vec<&str> = files
        .iter()
        .filter_map(|file| file.path.strip_prefix("host/tests/"))
        .filter(|path| path.ends_with(".rs") && (!path.contains('/') || path.ends_with("/main.rs")))
        .filter(|path| path.matches('/').count() <= 1)
        .collect();
    if programs.len() > 1 {
        findings
            .push(format!("host/tests has several programs ({}): one, with modules", programs.join(", ")));
    }
    let error_enums: Vec<&str> = files
        .iter()
        .filter(|file| file.path.starts_with("host/src/") && file.text.contains("pub enum Error"))
        .map(|file| file.path.as_str())
        .collect();
    if error_enums.len() > 1 {
        findings.push(format!("the library has several error enums: {}", error_enums.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        let file = File { path: path.into(), text: text.into() };
        source(&file, &mut findings);
        words(&file, &mut findings);
        findings
    }

    #[test]
    fn the_project_is_tidy() {
        run().unwrap();
    }

    #[test]
    fn each_rule_finds_its_fault() {
        assert_eq!(found("a.rs", "fn f() {}\n"), [""; 0]);
        assert_eq!(found("a.rs", &"\n".repeat(501)), ["a.rs has 501 lines, more than 500: part it"]);
        let assembly = concat!("asm", "!(\"nop\")");
        assert!(found("kernels/src/tile/mod.rs", assembly)[0].contains("holds inline assembly"));
        assert_eq!(found("kernels/cuda_std/src/mma.rs", assembly), [""; 0]);
        assert_eq!(found("a.md", concat!("x\nTO", "DO: y")), [concat!("a.md:2: TO", "DO is unfinished")]);
        assert!(found("a.rs", concat!("#![allow(", "dead_code)]"))[0].contains("switches a check off"));
        assert!(found("a.py", concat!("open('/ho", "me/me/x')"))[0].contains("names a place on one machine"));
        let kernel = "#[cuda_std::kernel(threads = 1)]\n/// # Safety\n";
        assert_eq!(found("kernels/src/forward/x.rs", kernel).len(), 1);
        assert_eq!(found("kernels/src/forward/x.rs", &format!("{kernel}/// # Thread mapping\n")), [""; 0]);
    }

    #[test]
    fn missing_files_of_the_project_are_named() {
        let mut findings = Vec::new();
        project_wide(&[File { path: "README.md".into(), text: "nothing".into() }], &mut findings);
        assert!(findings.contains(&"LICENSE-MIT is missing".to_owned()), "{findings:?}");
        assert!(findings.contains(&"README.md does not hold `cargo xtask test`".to_owned()), "{findings:?}");
    }
}
