//! Runs cargo for the host's side.

use crate::project;
use std::env;
use std::process::Command;

/// The cargo that runs this program, in the workspace's folder.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(project::root()).args(arguments);
    command
}
