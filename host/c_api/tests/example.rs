//! examples/forward.c compiles without warnings as C, the header also as C++, and the program runs anywhere.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_c_example_compiles_and_runs() {
    let library = super::library_path();
    let folder = library.parent().expect("the library's folder");
    let program = scratch("forward");
    let compiled = compile("cc", |cc| {
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-o"]).arg(&program);
        cc.arg(package().join("examples/forward.c"));
        cc.arg("-L").arg(folder).args(["-lflash_attention", "-ldl", "-lm"]);
        cc.arg(format!("-Wl,-rpath,{}", folder.display()));
    });
    if !compiled {
        return;
    }
    let output = Command::new(&program).output().expect("the example starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let version = format!("flash-attention {}", env!("CARGO_PKG_VERSION"));
    assert!(text.starts_with(&version), "{text}");
    assert!(text.contains("forward: ok") || text.contains("forward: status 2: "), "{text}");
}

#[test]
fn the_header_is_also_cpp_and_says_the_layout() {
    let source = scratch("layout.cpp");
    let text = r#"
        #include <cstddef>
        #include "flash_attention.h"
        typedef flash_attention_forward_args args;
        static_assert(sizeof(args) == 232 && offsetof(args, q) == 8 && offsetof(args, batch) == 48, "");
        static_assert(offsetof(args, q_stride) == 104 && offsetof(args, o_stride) == 176, "");
        static_assert(offsetof(args, scale) == 200 && offsetof(args, kernel) == 224, "");
        int32_t (*forward)(const args *, void *) = flash_attention_forward;
        const char *(*last_error)(void) = flash_attention_last_error;
    "#;
    std::fs::write(&source, text).expect("the scratch folder is writable");
    compile("c++", |cpp| {
        cpp.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).arg(&source);
    });
}

/// Runs a compiler that must succeed; false, and loudly, where there is none.
fn compile(compiler: &str, arguments: impl FnOnce(&mut Command)) -> bool {
    let mut command = Command::new(compiler);
    command.arg("-I").arg(package().join("include"));
    arguments(&mut command);
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(error) => {
            eprintln!("SKIPPED: no compiler {compiler} to check the C interface with ({error})");
            false
        }
    }
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
