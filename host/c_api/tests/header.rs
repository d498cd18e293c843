//! The committed header is what cbindgen makes of the sources.

use std::path::Path;

#[test]
fn the_header_is_what_the_sources_say() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut text = Vec::new();
    ["lib.rs", "args.rs", "status.rs"]
        .iter()
        .fold(cbindgen::Builder::new().with_config(config), |builder, file| {
            builder.with_src(package.join("src").join(file))
        })
        .generate()
        .expect("a header")
        .write(&mut text);
    let text = String::from_utf8(text).expect("UTF-8");
    let path = package.join("include/flash_attention.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &text).expect("the header is writable");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "{} is out of date: run UPDATE_HEADER=1 cargo test -p flash-attention-c-api, and commit it",
        path.display()
    );
}
