//! `dist`: one folder that runs on a machine with a GPU and without Rust.

use crate::cargo::cargo;
use crate::{build_ptx, interop, project};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The script that runs what lies beside it.
const RUN: &str = include_str!("dist/run.sh");
/// Small enough to be carried anywhere.
const MAX_BYTES: u64 = 60 << 20;

/// The command; `out` is emptied first.
pub fn run(out: &Path, options: &build_ptx::Options) -> Result<()> {
    build_ptx::run(options)?;
    let mut arguments = vec!["build", "--release", "-p", "flash-attention", "-p", "flash-attention-c-api"];
    arguments.extend(["--lib", "--example", "compare", "--test", "main"]);
    let messages = "--message-format=json-render-diagnostics";
    arguments.push(messages);
    let mut artifacts = artifacts(&arguments)?;
    // The library's own tests, of which some want a GPU, in a program of their own.
    let units = ["test", "--no-run", "--release", "-p", "flash-attention", "--lib", messages];
    artifacts.extend(self::artifacts(&units)?.into_iter().filter(Artifact::is_of_units));
    let cudarc = cudarc_example(options.offline)?;

    if out.exists() {
        // A folder that something else lives in is not this command's to empty.
        ensure!(out.join("run.sh").exists(), "{} exists and was not made by dist", out.display());
        fs::remove_dir_all(out).with_context(|| format!("emptying {}", out.display()))?;
    }
    fs::create_dir_all(out)?;
    let compare = artifacts.iter().find(|artifact| artifact.is("example", "compare"));
    copy(&compare.context("no example `compare`")?.file, &out.join("compare"))?;
    let library = artifacts.iter().find(|artifact| artifact.file.ends_with("libflash_attention.so"));
    copy(&library.context("no libflash_attention.so")?.file, &out.join("libflash_attention.so"))?;
    let is_test = |artifact: &&Artifact| artifact.kind == "test" || artifact.is_of_units();
    for test in artifacts.iter().filter(|artifact| artifact.package == "flash-attention").filter(is_test) {
        copy(&test.file, &out.join("gpu-tests").join(&test.name))?;
    }
    copy(&cudarc, &out.join("examples/cudarc"))?;
    let c_api = project::root().join("host/c_api");
    copy(&c_api.join("include/flash_attention.h"), &out.join("include/flash_attention.h"))?;
    compile_c(&c_api.join("examples/forward.c"), out, &out.join("examples/c"))?;
    copy_tree(&project::ptx(), &out.join("ptx"))?;
    copy_tree(&project::root().join("host/tests/fixtures"), &out.join("tests/fixtures"))?;
    for script in fs::read_dir(project::root().join("benches"))? {
        let script = script?.path();
        if script.extension().is_some_and(|extension| extension == "py") {
            copy(&script, &out.join("python").join(script.file_name().unwrap_or_default()))?;
        }
    }
    let run = out.join("run.sh");
    fs::write(&run, RUN)?;
    make_executable(&run)?;

    let bytes = size(out)?;
    println!(
        "{}: {:.1} MiB; start ./run.sh in it on a machine with a GPU",
        out.display(),
        bytes as f64 / 1048576.0
    );
    ensure!(bytes < MAX_BYTES, "the folder is larger than {} MiB", MAX_BYTES >> 20);
    Ok(())
}

/// Builds the example with cudarc.
fn cudarc_example(offline: bool) -> Result<PathBuf> {
    let mut arguments = vec!["build", "--release", "--message-format=json-render-diagnostics"];
    let common = interop::common(offline);
    arguments.extend(common.iter().map(String::as_str));
    let built = artifacts(&arguments).context(interop::REMEDY)?;
    let program = built.into_iter().find(|artifact| artifact.kind == "bin");
    Ok(program.context("no program among what cargo built for the example with cudarc")?.file)
}

/// Compiles the C example against the header and the library in `out`.
fn compile_c(source: &Path, out: &Path, program: &Path) -> Result<()> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=c11", "-O1", "-o"]).arg(program).arg(source);
    command.arg("-I").arg(out.join("include")).arg("-L").arg(out);
    command.args(["-lflash_attention", "-ldl", "-lm", "-Wl,-rpath,$ORIGIN/.."]);
    let status = command.status().with_context(|| {
        format!("starting {compiler:?}; install a C compiler or name one in the variable CC")
    })?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// A file that cargo built.
struct Artifact {
    package: String,
    kind: String,
    name: String,
    file: PathBuf,
}

impl Artifact {
    fn is(&self, kind: &str, name: &str) -> bool {
        self.kind == kind && self.name == name
    }

    /// Whether it is the program of a library's own tests: a plain library is no artifact here.
    fn is_of_units(&self) -> bool {
        self.kind == "lib"
    }
}

fn artifacts(arguments: &[&str]) -> Result<Vec<Artifact>> {
    let output =
        cargo(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("cargo {} ended with {}", arguments.join(" "), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().flat_map(artifacts_of).collect())
}

/// The files of one message of cargo that a dist may want: programs and shared libraries.
fn artifacts_of(message: &str) -> Vec<Artifact> {
    let message: Value = serde_json::from_str(message).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if message["reason"] != "compiler-artifact" {
        return Vec::new();
    }
    let manifest = PathBuf::from(text(&message["manifest_path"]));
    let folder = manifest.parent().and_then(|folder| folder.strip_prefix(project::root()).ok());
    let package = match folder.and_then(Path::to_str) {
        Some("host") => "flash-attention".to_owned(),
        _ => text(&message["package_id"]),
    };
    let kind = text(&message["target"]["kind"][0]);
    let name = text(&message["target"]["name"]);
    let executable = message["executable"].as_str();
    let shared = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let shared = shared.filter(|file| file.ends_with(".so") && kind == "cdylib");
    executable
        .into_iter()
        .chain(shared)
        .map(|file| Artifact {
            package: package.clone(),
            kind: kind.clone(),
            name: name.clone(),
            file: file.into(),
        })
        .collect()
}

/// Copies a file, without the symbols that only a debugger reads where it is a program.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("the file lies in a folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    let is_program = fs::read(to)?.starts_with(b"\x7fELF") && to.extension().is_none_or(|e| e == "so");
    if is_program {
        // Smaller, but no worse, where there is no such tool.
        let _ = Command::new("strip").arg("--strip-debug").arg(to).stderr(Stdio::null()).status();
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let path = entry?.path();
        let target = to.join(path.file_name().context("the entry has a name")?);
        match path.is_dir() {
            true => copy_tree(&path, &target)?,
            false if path.ends_with(".gitignore") => {}
            false => copy(&path, &target)?,
        }
    }
    Ok(())
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

#[cfg(unix)]
fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn make_executable(_file: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_shared_libraries_are_read_from_cargos_messages() {
        let manifest = project::root().join("host/Cargo.toml");
        let message = format!(
            r#"{{"reason":"compiler-artifact","package_id":"p","manifest_path":{:?},"target":{{"kind":["test"],"name":"gpu"}},"filenames":["a"],"executable":"/x/gpu-1"}}"#,
            manifest.display().to_string()
        );
        let found = artifacts_of(&message);
        assert_eq!((found[0].package.as_str(), found[0].name.as_str()), ("flash-attention", "gpu"));
        assert!(found[0].is("test", "gpu"));
        let units = message.replace(r#"["test"]"#, r#"["lib"]"#);
        assert!(artifacts_of(&units)[0].is_of_units());
        assert!(artifacts_of(&units.replace(r#""/x/gpu-1""#, "null")).is_empty());
        let library = r#"{"reason":"compiler-artifact","package_id":"c","manifest_path":"/c/Cargo.toml","target":{"kind":["cdylib"],"name":"flash_attention"},"filenames":["/x/libflash_attention.so"],"executable":null}"#;
        assert_eq!(artifacts_of(library)[0].file, Path::new("/x/libflash_attention.so"));
        assert!(artifacts_of("{\"reason\":\"build-finished\"}").is_empty());
        assert!(artifacts_of("no json").is_empty());
    }
}
