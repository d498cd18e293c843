//! benches/ours.py describes the same structure, and reaches the library, even without PyTorch or a GPU.

use std::path::Path;
use std::process::Command;

/// PyTorch is replaced by the three names that the module needs when it is imported.
const SCRIPT: &str = r#"
import ast, ctypes, pathlib, sys, types
folder, library = sys.argv[1:]
sys.dont_write_bytecode = True
for script in pathlib.Path(folder).glob("*.py"):
    ast.parse(script.read_text(), str(script))
sys.modules["torch"] = types.SimpleNamespace(float16="f16", bfloat16="bf16", float32="f32")
sys.path.insert(0, folder)
import ours

args = ours.ForwardArgs
assert ctypes.sizeof(args) == 232, ctypes.sizeof(args)
for name, offset in dict(q=8, lse=40, batch=48, head_dim_v=96, q_stride=104, o_stride=176, scale=200, kernel=224).items():
    assert getattr(args, name).offset == offset, (name, getattr(args, name).offset)
ours = ours.Library(library)
assert ours.library.flash_attention_forward(None, None) == 1
print(ours.version, ours.library.flash_attention_last_error().decode())
"#;

#[test]
fn the_python_binding_fits_the_library() {
    let benches = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches");
    let output = match Command::new("python3")
        .args(["-c", SCRIPT])
        .arg(&benches)
        .arg(super::library_path())
        .output()
    {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIPPED: no python3 to check {} with ({error})", benches.display());
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with(concat!(env!("CARGO_PKG_VERSION"), " args is NULL, but must")), "{said}");
}
