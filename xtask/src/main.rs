//! The project's commands: `cargo xtask <command>`.

mod build_ptx;
mod cargo;
mod compare;
mod dist;
mod interop;
mod manifest;
mod package_test;
mod progress;
mod project;
mod readme;
mod same_ptx;
mod sass_record;
mod setup;
mod test;
mod tidy;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// The project's commands
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Find or fetch what compiles and checks the kernels; nothing is installed outside target/
    Setup {
        /// Use only what is there
        #[arg(long)]
        offline: bool,
    },
    /// Compile the kernels to PTX, check them, and put them where the library embeds them
    BuildPtx(build_ptx::Options),
    /// Build the kernels and run the example `compare`: on the GPU if there is one, else on the CPU
    Compare {
        /// Arguments of the example
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// Everything that CI runs
    #[command(visible_alias = "ci")]
    Test {
        /// Use only the tools that are there
        #[arg(long)]
        offline: bool,
    },
    /// Pack what runs on a GPU machine without Rust into one folder
    Dist {
        /// The folder; target/dist if left out
        #[arg(long)]
        out: Option<PathBuf>,
        #[command(flatten)]
        options: build_ptx::Options,
    },
    /// Pack what would be published, and build and run it from nothing as a stranger does
    PackageTest,
    /// Compile the kernels without the simulated device too: the PTX must be the same
    SamePtx {
        /// Use only the tools that are there
        #[arg(long)]
        offline: bool,
    },
    /// Check what no compiler checks: lengths of files, licences, unfinished places
    #[command(name = tidy::COMMAND)]
    Tidy,
}

fn main() -> ExitCode {
    flash_attention_builder::exit_if_linker();
    let done = |()| ExitCode::SUCCESS;
    let result = match Cli::parse().command {
        Command::Setup { offline } => setup::run(offline).map(done),
        Command::BuildPtx(options) => build_ptx::run(&options).map(done),
        Command::Compare { arguments } => compare::run(&arguments),
        Command::Test { offline } => test::run(offline),
        Command::Dist { out, options } => {
            dist::run(&out.unwrap_or_else(|| project::target().join("dist")), &options).map(done)
        }
        Command::PackageTest => package_test::run().map(done),
        Command::SamePtx { offline } => same_ptx::run(offline).map(done),
        Command::Tidy => tidy::run().map(done),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
