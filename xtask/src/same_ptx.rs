//! `same-ptx`: the kernels compiled once more from a copy without the simulated device and its planted bugs. The text
//! must be the same, byte for byte: what helps the tests costs the GPU nothing.

use crate::build_ptx;
use crate::progress::Progress;
use crate::project;
use crate::setup;
use anyhow::{Context as _, Result, bail, ensure};
use flash_attention_builder::{CudaArch, CudaBuilder};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

/// The packages that the device build consists of.
const PACKAGES: [&str; 3] = ["kernels", "kernels/cuda_std", "kernels/cuda_std/macros"];
/// The files and folders of the simulated device, below the workspace.
const SIMULATOR: [&str; 2] = ["kernels/cuda_std/src/sim", "kernels/src/simulate.rs"];
/// An expression with a planted bug.
const MUTANT: &str = "mutant!(";

/// The command.
pub fn run(offline: bool) -> Result<()> {
    let tools = setup::find(offline)?;
    let copy = project::target().join("without-simulator");
    let removed = copy_without_simulator(&copy)?;
    println!("removed {} lines in {} files, and {} planted bugs", removed.lines, removed.files, removed.bugs);
    for arch in CudaArch::ALL {
        let progress = Progress::new(&format!("compiling the kernels for {} twice", arch.name()));
        let builder = CudaBuilder::new(copy.join("kernels"))
            .arch(arch)
            .toolchain(tools.toolchain.clone())
            .target_dir(project::target().join("device-without-simulator"));
        // Each compilation keeps one processor busy.
        let (with, without) = thread::scope(|scope| {
            let without = scope.spawn(|| builder.build());
            (build_ptx::compile(arch, &tools), without.join().expect("the builder does not panic"))
        });
        let (with, without) = (fs::read_to_string(with?)?, fs::read_to_string(without?)?);
        drop(progress);
        if let Some(line) = first_difference(&with, &without) {
            bail!("the PTX for {} differs without the simulated device, from line {line} on", arch.name());
        }
        println!(
            "{}: {} bytes of PTX, the same with and without the simulated device",
            arch.name(),
            with.len()
        );
    }
    Ok(())
}

/// The first line that is not the same.
fn first_difference(a: &str, b: &str) -> Option<usize> {
    let differs = a.lines().zip(b.lines()).position(|(a, b)| a != b);
    let ends = (a != b).then(|| a.lines().count().min(b.lines().count()));
    differs.or(ends).map(|line| line + 1)
}

/// What the copy lacks.
#[derive(Default)]
struct Removed {
    files: usize,
    lines: usize,
    bugs: usize,
}

/// Copies what the device build reads into an emptied folder.
fn copy_without_simulator(copy: &Path) -> Result<Removed> {
    if copy.exists() {
        fs::remove_dir_all(copy).with_context(|| format!("clearing {}", copy.display()))?;
    }
    let root = project::root();
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    let write = |path: &Path, text: &str| -> Result<()> {
        let path = copy.join(path);
        fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
        Ok(fs::write(path, text)?)
    };
    let manifest = read(&root.join("Cargo.toml"))?;
    write(Path::new("Cargo.toml"), &with_members(&manifest, &PACKAGES)?)?;
    write(Path::new("Cargo.lock"), &read(&root.join("Cargo.lock"))?)?;
    let mut removed = Removed::default();
    for package in PACKAGES {
        let manifest = Path::new(package).join("Cargo.toml");
        write(&manifest, &manifest_without_simulator(&read(&root.join(&manifest))?))?;
        let mut sources = Vec::new();
        rust_files(&root.join(package).join("src"), &mut sources)?;
        for source in sources {
            let (text, path) = (read(&source)?, source.strip_prefix(root)?);
            if SIMULATOR.iter().any(|simulator| path.starts_with(simulator)) {
                removed.files += 1;
                removed.lines += text.lines().count();
                continue;
            }
            let (text, bugs) = without_bugs(&without_modules(&text))
                .with_context(|| format!("planted bugs of {}", path.display()))?;
            removed.bugs += bugs;
            // What is left over, such as imports, is no reason for warnings here.
            let quiet = if path.ends_with("src/lib.rs") { "#![allow(warnings)]\n" } else { "" };
            write(path, &format!("{quiet}{text}"))?;
        }
    }
    ensure!(
        removed.files > 0 && removed.bugs > 0,
        "there was nothing to remove: the check looks at the wrong places"
    );
    Ok(removed)
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        match path.is_dir() {
            true => rust_files(&path, files)?,
            false if path.extension().is_some_and(|extension| extension == "rs") => files.push(path),
            false => {}
        }
    }
    Ok(())
}

/// The workspace's manifest with these members only.
fn with_members(manifest: &str, members: &[&str]) -> Result<String> {
    let (before, rest) = manifest.split_once("\nmembers = [").context("Cargo.toml lists members")?;
    let (_, after) = rest.split_once(']').context("the list of members ends")?;
    // The lists that name other packages go too.
    let after =
        after.replace("exclude = ", "# exclude = ").replace("default-members = ", "# default-members = ");
    Ok(format!("{before}\nmembers = {members:?}{after}"))
}

/// A package's manifest without the feature, its dependency and the tests.
fn manifest_without_simulator(manifest: &str) -> String {
    let sections = manifest.split_inclusive('\n').fold(Vec::<String>::new(), |mut sections, line| {
        match sections.last_mut() {
            Some(section) if !line.starts_with('[') => section.push_str(line),
            _ => sections.push(line.to_owned()),
        }
        sections
    });
    let kept = sections
        .iter()
        .filter(|section| !section.starts_with("[[test]]"))
        .flat_map(|section| section.lines());
    let lines = kept.filter(|line| !line.starts_with("sim = ") && !line.starts_with("corosensei = "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The text without the declarations of the simulated device's modules.
fn without_modules(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines() {
        if matches!(line, "pub mod sim;" | "pub mod simulate;") {
            // The condition under which it is there.
            lines.pop();
        } else {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

/// The text with the right expressions only, and how many had a bug beside them.
fn without_bugs(text: &str) -> Result<(String, usize)> {
    let (mut clean, mut rest, mut bugs) = (String::new(), text, 0);
    while let Some((before, after)) = rest.split_once(MUTANT) {
        clean += before;
        // Its own definition and documentation stand in comments and macros.
        if before.lines().next_back().is_some_and(|line| line.trim_start().starts_with("//")) {
            clean += MUTANT;
            rest = after;
            continue;
        }
        if let Some(path) = clean.strip_suffix("crate::") {
            clean.truncate(path.len());
        }
        let (mut depth, mut commas, mut end) = (1, Vec::new(), None);
        for (at, c) in after.char_indices() {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                ',' if depth == 1 => commas.push(at),
                _ => {}
            }
            if depth == 0 {
                end = Some(at);
                break;
            }
        }
        let (Some(end), [_, second, ..]) = (end, commas.as_slice()) else {
            bail!("{MUTANT} takes a name and two expressions");
        };
        clean += &format!("({})", after[second + 1..end].trim().trim_end_matches(','));
        rest = &after[end + 1..];
        bugs += 1;
    }
    Ok((clean + rest, bugs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_expressions_stay() {
        let text = "/// `mutant!(Name, a, b)`\nlet a = 1 + mutant!(A, 1, f(2, [3, 4]));\ncrate::mutant!(\n    B,\n    x,\n    y,\n);\n";
        let (clean, bugs) = without_bugs(text).unwrap();
        assert_eq!(
            (clean.as_str(), bugs),
            ("/// `mutant!(Name, a, b)`\nlet a = 1 + (f(2, [3, 4]));\n(y);\n", 2)
        );
        assert!(without_bugs("mutant!(A, 1)").is_err());
    }

    #[test]
    fn manifests_and_modules_lose_the_simulator() {
        let manifest = "[package]\nname = \"a\"\n\n[[test]]\nname = \"t\"\n\n[features]\nsim = []\n\n[dependencies]\nb = \"1\"\ncorosensei = \"1\"\n";
        let kept = "[package]\nname = \"a\"\n\n[features]\n\n[dependencies]\nb = \"1\"\n";
        assert_eq!(manifest_without_simulator(manifest), kept);
        assert_eq!(
            without_modules("pub mod a;\n#[cfg(x)]\npub mod sim;\npub mod b;\n"),
            "pub mod a;\npub mod b;\n"
        );
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(2));
    }
}
