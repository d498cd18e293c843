//! Compresses what lies in `ptx/` and writes the table that `src/embedded.rs` includes.
//!
//! The files come from `cargo xtask build-ptx`. Without them the table is empty: the library still builds, and says
//! at run time how to get the kernels.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=ptx");
    let source = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("ptx");
    let target = PathBuf::from(variable("OUT_DIR"));

    let mut table = String::from("&[\n");
    for arch in children(&source)?.iter().filter(|path| path.is_dir()) {
        for ptx in children(arch)?.iter().filter(|path| has_extension(path, "ptx")) {
            let name = text(ptx.file_stem());
            let cubin = ptx.with_extension("cubin");
            let ptx = compress(ptx, &target.join(format!("{name}.ptx.z")))?;
            let cubin = match cubin.exists() {
                true => format!("Some({})", compress(&cubin, &target.join(format!("{name}.cubin.z")))?),
                false => "None".to_owned(),
            };
            let arch = text(arch.file_name());
            writeln!(table, "    Packed {{ name: {name:?}, arch: {arch:?}, ptx: {ptx}, cubin: {cubin} }},")
                .expect("a String takes any text");
        }
    }
    table += "]\n";
    fs::write(target.join("embedded_table.rs"), table)
}

/// Writes the compressed copy of `from` and gives back the expression that includes it.
fn compress(from: &Path, to: &Path) -> io::Result<String> {
    let bytes = fs::read(from)?;
    // Level 6 is the knee: 9 gains 1 % and takes twice the time.
    fs::write(to, miniz_oxide::deflate::compress_to_vec(&bytes, 6))?;
    Ok(format!("include_bytes!({:?})", text(Some(to.as_os_str()))))
}

/// The entries of a folder in a fixed order; none where there is no folder.
fn children(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e == extension)
}

fn text(name: Option<&std::ffi::OsStr>) -> &str {
    name.and_then(|n| n.to_str()).expect("paths of the build are valid UTF-8")
}

fn variable(name: &str) -> String {
    env::var(name).expect("cargo sets the variables of build scripts")
}
