//! The project's commands: `cargo xtask <command>`.

mod build_ptx;
mod manifest;
mod progress;
mod project;
mod sass_record;
mod setup;

use clap::{Parser, Subcommand};
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
}

fn main() -> ExitCode {
    flash_attention_builder::exit_if_linker();
    let result = match Cli::parse().command {
        Command::Setup { offline } => setup::run(offline),
        Command::BuildPtx(options) => build_ptx::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
