//! The C ABI as its callers meet it: the built library, the header, and a C program.

mod example;
mod header;
mod library;
mod python;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The shared library, built by the cargo that runs these tests: for tests alone cargo does not build a cdylib.
fn library_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--package",
            env!("CARGO_PKG_NAME"),
            "--message-format=json-render-diagnostics",
        ]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
        let output = cargo.output().expect("cargo runs");
        assert!(output.status.success(), "the library builds");
        String::from_utf8_lossy(&output.stdout).lines().find_map(shared_library).expect("a cdylib")
    })
}

/// The file that one of cargo's messages says it made, if it is this package's shared library.
fn shared_library(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_cdylib = message["target"]["crate_types"] == serde_json::json!(["cdylib"]);
    let file = message["filenames"].as_array()?.first()?.as_str()?;
    is_cdylib.then(|| PathBuf::from(file))
}
