//! The example with cudarc: a workspace of its own, so that nothing of cudarc reaches the library's lock file.

use crate::cargo::cargo;
use crate::project;
use std::process::Command;

/// Its manifest, from the workspace's folder.
const MANIFEST: &str = "host/interop/cudarc/Cargo.toml";

/// What to do where cargo fails for want of a download.
pub const REMEDY: &str = "if a crate could not be downloaded: run `cargo fetch --locked --manifest-path \
                          host/interop/cudarc/Cargo.toml` once with a network, then this command again";

/// The formatter, which only looks.
pub fn formatting() -> Command {
    cargo(&["fmt", "--check", "--manifest-path", MANIFEST])
}

/// The linter.
pub fn lints(offline: bool) -> Command {
    let mut command = cargo(&["clippy", "--quiet"]);
    command.args(common(offline)).args(["--", "-D", "warnings"]);
    command
}

/// What comes after `cargo build --release`.
pub fn common(offline: bool) -> Vec<String> {
    // Beside the workspace's own outputs: what both depend on is built once.
    let target = project::target().display().to_string();
    let mut arguments =
        ["--locked", "--manifest-path", MANIFEST, "--target-dir", &target].map(str::to_owned).to_vec();
    if offline {
        arguments.push("--offline".to_owned());
    }
    arguments
}
