//! Builds a crate of CUDA kernels in Rust to PTX by rustc's own NVPTX backend.
//!
//! [`CudaBuilder`] keeps the names of rust-cuda's builder. What it needs beside cargo, it finds or fetches:
//! [`Toolchain`] is a compiler with its library sources, [`CudaTools`] are ptxas and the disassemblers. [`ptx`] cuts
//! a module into one text an entry, [`check`] says what is not fit to ship.

pub mod check;
mod convergence;
pub mod cuda;
mod debian;
pub mod error;
mod process;
pub mod ptx;
pub mod ptxas;
pub mod sass;
pub mod toolchain;

pub use cuda::CudaTools;
pub use error::{CudaBuilderError, Rejected, Result};
pub use process::Report;
pub use toolchain::Toolchain;

use error::At;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// In the environment of the compiler, makes the program that it takes for a linker end at once.
const AS_LINKER: &str = "FLASH_ATTENTION_BUILDER_AS_LINKER";

/// Ends the program with success if the compiler called it as a linker. To be called first in `main` of a program
/// that uses [`CudaBuilder`].
///
/// rustc insists on linking the library that the PTX is emitted beside. There is nothing to link, and the program
/// that builds is the one that exists on every system.
pub fn exit_if_linker() {
    if env::var_os(AS_LINKER).is_some() {
        std::process::exit(0);
    }
}

/// Where programs that are missing may come from.
#[derive(Clone, Debug)]
pub struct Provision {
    folder: PathBuf,
    offline: bool,
}

impl Provision {
    /// Unpacks below `folder` what is missing.
    pub fn below(folder: impl Into<PathBuf>) -> Self {
        Provision { folder: folder.into(), offline: false }
    }

    /// Whether only what is there already may be used.
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Where a compiler is unpacked.
    pub fn toolchain_folder(&self) -> PathBuf {
        self.folder.join("device-toolchain")
    }

    /// Where the programs of the CUDA toolkit are unpacked.
    pub fn cuda_folder(&self) -> PathBuf {
        self.folder.join("cuda")
    }
}

/// An architecture that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CudaArch {
    /// Ampere and everything after it.
    Sm80,
    /// Hopper only, with its own instructions.
    Sm90a,
}

impl CudaArch {
    /// All of them.
    pub const ALL: [CudaArch; 2] = [CudaArch::Sm80, CudaArch::Sm90a];

    /// The name that the compiler and the PTX use.
    pub const fn name(self) -> &'static str {
        match self {
            CudaArch::Sm80 => "sm_80",
            CudaArch::Sm90a => "sm_90a",
        }
    }

    /// The lowest PTX version with the instructions that the kernels use: the lower, the more drivers take it.
    pub const fn ptx_version(self) -> &'static str {
        match self {
            CudaArch::Sm80 => "7.4",
            CudaArch::Sm90a => "8.3",
        }
    }
}

impl std::str::FromStr for CudaArch {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        CudaArch::ALL.into_iter().find(|arch| arch.name() == name).ok_or_else(|| {
            let known: Vec<&str> = CudaArch::ALL.iter().map(|arch| arch.name()).collect();
            format!("{name} is not an architecture of the kernels; these are: {}", known.join(", "))
        })
    }
}

/// Builds a crate of kernels to one PTX file.
///
/// ```no_run
/// # fn main() -> flash_attention_builder::Result<()> {
/// use flash_attention_builder::{CudaArch, CudaBuilder};
/// flash_attention_builder::exit_if_linker();
/// let ptx = CudaBuilder::new("kernels").arch(CudaArch::Sm80).copy_to("kernels.ptx").build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    path_to_crate: PathBuf,
    arch: CudaArch,
    copy_to: Option<PathBuf>,
    build_args: Vec<String>,
    target_dir: Option<PathBuf>,
    toolchain: Option<Toolchain>,
    linker: Option<PathBuf>,
}

impl CudaBuilder {
    /// A builder for the crate in that folder.
    pub fn new(path_to_crate: impl Into<PathBuf>) -> Self {
        CudaBuilder {
            path_to_crate: path_to_crate.into(),
            arch: CudaArch::Sm80,
            copy_to: None,
            build_args: Vec::new(),
            target_dir: None,
            toolchain: None,
            linker: None,
        }
    }

    /// The architecture to compile for; `sm_80` where it is not called.
    pub fn arch(mut self, arch: CudaArch) -> Self {
        self.arch = arch;
        self
    }

    /// Copies the PTX there as well.
    pub fn copy_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.copy_to = Some(path.into());
        self
    }

    /// Further arguments for cargo.
    pub fn build_args(mut self, arguments: &[impl AsRef<str>]) -> Self {
        self.build_args.extend(arguments.iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// The folder of cargo's build outputs; `target/device` beside the crate where it is not called.
    pub fn target_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.target_dir = Some(folder.into());
        self
    }

    /// The compiler; found by [`Toolchain::find`], without fetching anything, where it is not called.
    pub fn toolchain(mut self, toolchain: Toolchain) -> Self {
        self.toolchain = Some(toolchain);
        self
    }

    /// A program that does nothing and succeeds, whatever its arguments: this program where it is not called, which
    /// must then call [`exit_if_linker`].
    pub fn linker(mut self, program: impl Into<PathBuf>) -> Self {
        self.linker = Some(program.into());
        self
    }

    /// Compiles, puts the launch bounds in, and gives back the path of the PTX.
    ///
    /// # Errors
    /// Where there is no compiler, or it refuses the crate; its messages go to standard error.
    pub fn build(self) -> Result<PathBuf> {
        let target = self.target_dir.clone().unwrap_or_else(|| self.path_to_crate.join("target/device"));
        fs::create_dir_all(&target).at(&target)?;
        let target = target.canonicalize().at(&target)?;
        let toolchain = match &self.toolchain {
            Some(toolchain) => toolchain.clone(),
            None => Toolchain::find(&Provision::below(&target).offline(true), &|_, _| {})?,
        };
        let raw = target.join(format!("{}.raw.ptx", self.arch.name()));
        self.compile(&toolchain, &target, &raw)?;
        if !raw.exists() {
            // Cargo takes the crate for fresh when only the text is gone; a changed argument makes it compile again.
            let stale = target.join("nvptx64-nvidia-cuda/release/.fingerprint");
            fs::remove_dir_all(&stale).at(&stale)?;
            self.compile(&toolchain, &target, &raw)?;
        }
        let text = fs::read_to_string(&raw).at(&raw)?;
        let ptx = target.join(format!("{}.ptx", self.arch.name()));
        fs::write(&ptx, ptx::Module::parse(&text).whole()).at(&ptx)?;
        if let Some(copy) = &self.copy_to {
            fs::copy(&ptx, copy).at(copy)?;
        }
        Ok(ptx)
    }

    fn compile(&self, toolchain: &Toolchain, target: &Path, ptx: &Path) -> Result<()> {
        let linker = match &self.linker {
            Some(program) => program.clone(),
            None => env::current_exe().at(Path::new("this program"))?,
        };
        let cargo = env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
        let mut command = toolchain.command(&cargo);
        command.current_dir(&self.path_to_crate);
        command.env("RUSTC", &toolchain.rustc).env("RUSTC_BOOTSTRAP", "1").env(AS_LINKER, "1");
        // Flags of the host's build mean nothing here, and would build core anew.
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
            command.env_remove(name);
        }
        // One unit and fat LTO make the text complete; without unwinding there is nothing to unwind to.
        for (key, value) in [
            ("LTO", "fat"),
            ("CODEGEN_UNITS", "1"),
            ("PANIC", "abort"),
            ("DEBUG", "false"),
            ("INCREMENTAL", "false"),
        ] {
            command.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
        }
        command.args([
            "rustc",
            "--quiet",
            "--lib",
            "--release",
            "--crate-type",
            "cdylib",
            "-Zbuild-std=core",
        ]);
        command.args(["--target", "nvptx64-nvidia-cuda", "--target-dir"]).arg(target);
        command.args(&self.build_args);
        // What differs between architectures comes after the dashes: it is for this crate only, and core is built
        // once for all.
        let (arch, version) = (self.arch.name(), self.arch.ptx_version().replace('.', ""));
        command.arg("--").arg(format!("--emit=asm={}", ptx.display()));
        command.arg("-C").arg(format!("linker={}", linker.display()));
        command.arg("-C").arg(format!("target-cpu={arch}"));
        command.arg("-C").arg(format!("target-feature=+ptx{version}"));
        command.arg("--cfg").arg(format!("device_arch=\"{arch}\""));
        // Loops over arrays of registers must vanish, or the arrays go to local memory.
        command.args(["-C", "llvm-args=-unroll-threshold=20000"]);
        let status = process::run_filtered(&mut command, is_noise).at(&cargo)?;
        match status.success() {
            true => Ok(()),
            false => Err(CudaBuilderError::Failed {
                what: format!("the compilation of the kernels for {arch}"),
                status: status.to_string(),
                output: "its messages are above".into(),
            }),
        }
    }
}

/// rustc warns of every PTX version that is asked for, at each compilation.
fn is_noise(message: &str) -> bool {
    message.contains("unstable feature specified for `-Ctarget-feature`: `ptx")
        || message == "warning: 1 warning emitted"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_read_by_name() {
        assert_eq!("sm_90a".parse(), Ok(CudaArch::Sm90a));
        assert_eq!(
            "sm_75".parse::<CudaArch>(),
            Err("sm_75 is not an architecture of the kernels; these are: sm_80, sm_90a".into())
        );
    }
}
