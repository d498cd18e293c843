//! Finds ptxas and the disassemblers: the system's CUDA, else the Python wheels, unpacked into a folder.

use crate::Provision;
use crate::error::{At, CudaBuilderError, Rejected, Result};
use crate::process::{Report, run, run_watching};
use crate::toolchain::{children, executable, parse_version};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest release whose ptxas knows every architecture of the table.
pub const OLDEST: (u32, u32) = (12, 8);
/// The ptxas that the shipped kernels are checked with: the release of the oldest driver in the field that is asked
/// for.
pub const PINNED: &str = "13.0.88";

/// A program of the CUDA toolkit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Where it lies.
    pub path: PathBuf,
    /// Its version, such as `13.0.88`.
    pub version: String,
    /// In words, where it comes from.
    pub origin: String,
}

/// The programs of the CUDA toolkit that a build uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaTools {
    /// The assembler.
    pub ptxas: Tool,
    /// The disassembler of cubins.
    pub nvdisasm: Tool,
    /// The reader of cubins.
    pub cuobjdump: Tool,
}

impl CudaTools {
    /// Looks for the programs in the system's CUDA and in what was unpacked earlier; fetches the wheels where
    /// `provision` allows it.
    ///
    /// # Errors
    /// A table of what each candidate lacked, with the ways out.
    pub fn find(provision: &Provision, report: Report<'_>) -> Result<CudaTools> {
        Ok(CudaTools {
            ptxas: find("ptxas", "nvidia-cuda-nvcc", Some(PINNED), provision, report)?,
            nvdisasm: find("nvdisasm", "nvidia-cuda-nvdisasm", None, provision, report)?,
            cuobjdump: find("cuobjdump", "nvidia-cuda-cuobjdump", None, provision, report)?,
        })
    }
}

fn find(
    name: &str,
    wheel: &str,
    pinned: Option<&str>,
    provision: &Provision,
    report: Report<'_>,
) -> Result<Tool> {
    report(&format!("looking for {name}"), None);
    let unpacked = provision.cuda_folder().join(name);
    let mut tried = Vec::new();
    let mut candidates: Vec<(PathBuf, &str)> =
        system_folders().into_iter().map(|folder| (folder, "system")).collect();
    candidates.extend(wheel_folder(&unpacked).map(|folder| (folder, "unpacked wheel")));
    for (folder, origin) in candidates {
        let path = folder.join(executable(name));
        match inspect(&path) {
            Ok(version) => return Ok(Tool { path, version, origin: origin.into() }),
            Err(Some(lacks)) => tried.push(Rejected::new(format!("{origin}: {}", path.display()), lacks)),
            Err(None) => {}
        }
    }
    if tried.is_empty() {
        tried.push(Rejected::new("system", "no CUDA in CUDA_HOME, CUDA_PATH, PATH or the usual folders"));
    }
    match provision.offline {
        true => tried.push(Rejected::new("Python wheel", "not fetched, because of --offline")),
        false => match fetch(wheel, pinned, &unpacked, report) {
            Ok(()) => {
                let path = wheel_folder(&unpacked).unwrap_or_default().join(executable(name));
                match inspect(&path) {
                    Ok(version) => return Ok(Tool { path, version, origin: "unpacked wheel".into() }),
                    Err(lacks) => {
                        let lacks = lacks.unwrap_or_else(|| format!("holds no {name}"));
                        tried.push(Rejected::new(format!("Python wheel {wheel}"), lacks));
                    }
                }
            }
            Err(error) => tried.push(Rejected::new(format!("Python wheel {wheel}"), error.to_string())),
        },
    }
    Err(CudaBuilderError::Missing {
        what: format!("{name} ({}.{} or newer)", OLDEST.0, OLDEST.1),
        tried,
        remedies: vec![
            "set CUDA_HOME to a CUDA toolkit".into(),
            "or install Python 3 with pip, and have a network: the program's wheel is then unpacked below target/".into(),
        ],
    })
}

fn system_folders() -> Vec<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let usual = ["/usr/local/cuda", "/opt/cuda"].into_iter().map(PathBuf::from);
    let mut folders: Vec<PathBuf> = homes.chain(usual).map(|home| home.join("bin")).collect();
    folders.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    folders
}

/// The version, or what is wrong with the program; `None` where it is not there at all.
fn inspect(path: &Path) -> Result<String, Option<String>> {
    if !path.is_file() {
        return Err(None);
    }
    let said = run(Command::new(path).arg("--version"));
    let said = said.map_err(|error| Some(format!("does not run: {error}")))?;
    let version = version_in(&said).ok_or(Some("does not say its version".to_owned()))?;
    match parse_version(&version) >= Some(OLDEST) {
        true => Ok(version),
        false => Err(Some(format!("is {version}, older than {}.{}", OLDEST.0, OLDEST.1))),
    }
}

/// `13.0.88` of "Cuda compilation tools, release 13.0, V13.0.88".
fn version_in(text: &str) -> Option<String> {
    text.split_whitespace().find_map(|word| {
        let number = word.strip_prefix('V')?;
        number.starts_with(|c: char| c.is_ascii_digit()).then(|| number.to_owned())
    })
}

fn wheel_folder(unpacked: &Path) -> Option<PathBuf> {
    children(&unpacked.join("nvidia")).into_iter().map(|folder| folder.join("bin")).find(|bin| bin.is_dir())
}

fn fetch(wheel: &str, pinned: Option<&str>, unpacked: &Path, report: Report<'_>) -> Result<()> {
    let python = python()?;
    let unfinished = unpacked.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).at(&unfinished)?;
    }
    fs::create_dir_all(&unfinished).at(&unfinished)?;
    let requirement = match pinned {
        Some(version) => format!("{wheel}=={version}"),
        // The disassemblers read older machine code: the newest of the major release.
        None => format!("{wheel}>=13,<14"),
    };
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]);
    pip.arg(&unfinished).arg(&requirement);
    run_watching(&mut pip, &format!("fetching {requirement}"), &unfinished, None, report)?;
    for file in children(&unfinished) {
        report(&format!("unpacking {wheel}"), None);
        run(Command::new(python).args(["-m", "zipfile", "-e"]).arg(&file).arg(&unfinished))?;
        fs::remove_file(&file).at(&file)?;
    }
    // The module forgets who may run what.
    for file in
        wheel_folder(&unfinished).iter().flat_map(|folder| children(folder)).filter(|path| path.is_file())
    {
        make_executable(&file)?;
    }
    if unpacked.exists() {
        fs::remove_dir_all(unpacked).at(unpacked)?;
    }
    fs::rename(&unfinished, unpacked).at(unpacked)
}

fn python() -> Result<&'static str> {
    let works = |name: &&str| run(Command::new(name).args(["-m", "pip", "--version"])).is_ok();
    ["python3", "python"].into_iter().find(works).ok_or_else(|| CudaBuilderError::Missing {
        what: "Python 3 with pip".into(),
        tried: vec![],
        remedies: vec![],
    })
}

#[cfg(unix)]
fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).at(file)
}

#[cfg(not(unix))]
fn make_executable(_file: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_banner() {
        let banner = "ptxas: NVIDIA (R) Ptx optimizing assembler\nBuilt on Wed_Aug_20\nCuda compilation tools, release \
                      13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.36424714_0\n";
        assert_eq!(version_in(banner).as_deref(), Some("13.0.88"));
        assert_eq!(version_in("Version unknown"), None);
    }
}
