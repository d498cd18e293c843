//! The program from its command line to its exit status and output.

use super::run;
use std::path::PathBuf;

struct Result {
    status: u8,
    out: String,
    log: String,
}

/// Runs on the CPU, so that the tests mean the same everywhere.
fn compare(arguments: &[&str]) -> Result {
    compare_on("cpu", arguments)
}

fn compare_on(device: &str, arguments: &[&str]) -> Result {
    let (mut out, mut log) = (Vec::new(), Vec::new());
    let device = format!("--device={device}");
    let arguments = ["compare", &device].into_iter().chain(arguments.iter().copied()).map(Into::into);
    let status = run(arguments, &mut out, &mut log);
    Result { status, out: String::from_utf8(out).unwrap(), log: String::from_utf8(log).unwrap() }
}

/// The result of a case that is wrong in itself.
fn refused(arguments: &[&str]) -> String {
    let result = compare(arguments);
    assert_eq!(result.status, 2, "{arguments:?}: {} {}", result.out, result.log);
    assert_eq!(result.out, "", "{arguments:?}");
    result.log
}

const SMALL: [&str; 3] = ["--heads=2", "--seqlen=24", "--head-dim=16"];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().chain(more).copied().collect()
}

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    path.to_str().unwrap().into()
}

/// A folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("compare-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn json_is_one_line_with_the_promised_keys() {
    let result = compare(&small(&["--json", "--causal", "--dtype=bf16", "--kv-heads=1", "--kv-seqlen=30"]));
    assert_eq!(result.status, 0, "{}", result.log);
    assert_eq!(result.out.lines().count(), 1);
    let object: serde_json::Value = serde_json::from_str(&result.out).unwrap();
    for (key, value) in [
        ("ok", serde_json::json!(true)),
        ("dtype", "bf16".into()),
        ("batch", 1.into()),
        ("heads", 2.into()),
        ("kv_heads", 1.into()),
        ("seqlen", 24.into()),
        ("kv_seqlen", 30.into()),
        ("head_dim", 16.into()),
        ("causal", true.into()),
        ("checked_rows", 48.into()),
    ] {
        assert_eq!(object[key], value, "{key}");
    }
    for key in ["rel_error", "max_abs_error", "lse_max_abs_error", "ms", "tflops"] {
        assert!(object[key].is_number(), "{key}: {}", object[key]);
    }
    assert!(object["device"].is_string() && object["kernel"].is_string());
    // Standard attention beside it: on the CPU the plain run, of which the check takes all rows here.
    for key in ["speedup_over_standard", "standard_ms", "standard_workspace_bytes", "workspace_bytes"] {
        assert!(object[key].as_f64().unwrap() > 0.0, "{key}: {}", object[key]);
    }
    // Q and O of 24 rows, K and V of 30, all of 16 columns; and LSE.
    let tensors = (2 * 24 * 2 + 2 * 30) * 16 * 2 + 24 * 2 * 4;
    for (peak, workspace) in
        [("peak_bytes", "workspace_bytes"), ("standard_peak_bytes", "standard_workspace_bytes")]
    {
        let beside = object[peak].as_u64().unwrap() - tensors;
        assert_eq!(Some(beside), object[workspace].as_u64(), "{peak}");
    }
    assert_eq!((&object["standard_rows"], &object["workspace_source"]), (&48.into(), &"measured".into()));
}

#[test]
fn what_standard_attention_costs_is_estimated_from_the_rows_that_were_run() {
    let result = compare(&small(&["--check=rows=5"]));
    for part in
        ["times as fast as the plain run (", ", estimated from 5 of 48 rows)", " of tensors; beside them "]
    {
        assert!(result.out.contains(part), "{part} is not in\n{}", result.out);
    }
    let result = compare(&small(&["--check=none"]));
    let reason = "the plain run was not run: it is part of the check, and --check is none";
    assert!(result.out.contains(reason), "{}", result.out);
}

#[test]
fn standard_attention_itself_says_what_its_scores_take() {
    let result = compare_on("sim", &small(&["--kernel=standard", "--json"]));
    assert_eq!(result.status, 0, "{} {}", result.out, result.log);
    let object: serde_json::Value = serde_json::from_str(&result.out).unwrap();
    // Two heads of 24 rows, each of a block of 64 keys.
    assert_eq!(object["workspace_bytes"], 2 * 24 * 64 * 4);
    assert_eq!(
        (&object["workspace_source"], object["speedup_over_standard"].is_null()),
        (&"computed".into(), true)
    );
}

#[test]
fn the_page_shows_errors_and_verdict() {
    let result = compare(&small(&["--layout=bshd", "--dtype=f32", "--window-left=3", "--softcap=20"]));
    assert_eq!(result.status, 0, "{}", result.log);
    for part in
        ["f32, batch 1, heads 2, seqlen 24", "window left 3", "softcap 20", "allowed", "worst O at", "\nok"]
    {
        assert!(result.out.contains(part), "{part} is not in\n{}", result.out);
    }
}

#[test]
fn empty_problems_are_ordinary() {
    for sizes in
        [["--batch=0", "--seqlen=4"], ["--seqlen=0", "--kv-seqlen=5"], ["--seqlen=5", "--kv-seqlen=0"]]
    {
        let result = compare(&[&sizes[..], &["--heads=2", "--head-dim=8"]].concat());
        assert_eq!(result.status, 0, "{sizes:?} {}", result.log);
    }
}

#[test]
fn numbers_that_cannot_be_right_are_refused_by_name() {
    for (argument, message) in [
        (
            "--head-dim=12",
            "head_dim is 12, but must be a multiple of 8 for f16; pad the head with zeros or use f32",
        ),
        ("--head-dim=0", "head_dim is 0, but must be 1 to 256"),
        ("--head-dim=264", "head_dim is 264, but must be 1 to 256"),
        ("--head-dim-v=7", "head_dim_v is 7, but must be a multiple of 8"),
        ("--heads=0", "heads is 0, but must be at least 1"),
        (
            "--kv-heads=3",
            "heads is 2, but must be a multiple of kv_heads = 3; repeat or drop key heads until it is",
        ),
        ("--scale=0", "scale is 0, but must be finite and greater than 0; leave it out for 1/sqrt(head_dim)"),
        ("--scale=-1", "scale is -1, but must be finite"),
        ("--scale=inf", "scale is inf, but must be finite"),
        ("--scale=NaN", "scale is NaN, but must be finite"),
        ("--softcap=0", "softcap is 0, but must be finite and greater than 0; leave it out for no cap"),
        ("--window-left=-1", "invalid value '-1' for '--window-left"),
        ("--check=rows=0", "must be auto, full, none, or rows=N with N at least 1"),
        ("--dtype=f64", "[possible values: f16, bf16, f32]"),
        ("--batch=18446744073709551615", "does not fit in memory"),
        ("--output=o.txt", "must end in .safetensors or .npy"),
        ("--kernel=tiled", "tiled is a kernel of the GPU, but the device is the CPU"),
    ] {
        let arguments: Vec<&str> =
            SMALL.into_iter().filter(|a| a.split('=').next() != argument.split('=').next()).collect();
        let log = refused(&[&arguments[..], &[argument]].concat());
        assert!(log.contains(message), "{argument}: {log}");
    }
}

#[test]
fn a_refused_case_says_so_in_json_too() {
    let result = compare(&["--head-dim=12", "--json"]);
    assert_eq!(result.status, 2);
    let object: serde_json::Value = serde_json::from_str(&result.out).unwrap();
    assert_eq!(object["ok"], false);
    assert!(object["error"].as_str().unwrap().starts_with("head_dim is 12"));
}

#[test]
fn real_tensors_agree_with_the_result_in_their_file() {
    for mask in ["--causal=false", "--causal=true"] {
        let input = format!("--input={}", fixture("minilm-layer5.safetensors"));
        let result = compare(&[&input, mask, "--check=rows=64", "--json"]);
        assert_eq!(result.status, 0, "{}", result.log);
        let object: serde_json::Value = serde_json::from_str(&result.out).unwrap();
        assert!(object["file_rel_error"].as_f64().unwrap() < 1e-3);
    }
}

#[test]
fn a_wrong_result_in_the_file_is_a_mismatch_with_both_values() {
    let folder = Folder::new("mismatch");
    let path = folder.file("spoiled.safetensors");
    let mut bytes = std::fs::read(fixture("minilm-layer5.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(bytes[8..8 + header].to_vec()).unwrap();
    let tensors: serde_json::Value = serde_json::from_str(&text).unwrap();
    let at = 8 + header + tensors["out"]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 4].copy_from_slice(&9f32.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let result = compare(&[&format!("--input={path}"), "--check=full"]);
    assert_eq!(result.status, 1, "{}", result.log);
    assert!(result.out.ends_with("MISMATCH\n"), "{}", result.out);
    assert!(result.log.contains("O at batch 0, row 0, head 0, column 0: "), "{}", result.log);
    assert!(
        result.log.contains("where the reference has 9 (against the file's own result)"),
        "{}",
        result.log
    );
}

#[test]
fn options_that_contradict_the_file_are_refused() {
    let input = format!("--input={}", fixture("minilm-layer0.safetensors"));
    let log = refused(&[&input, "--dtype=bf16"]);
    assert!(log.contains("--dtype is bf16, but the input file holds f16; leave the option out"), "{log}");
    let log = refused(&[&input, "--seqlen=100"]);
    assert!(log.contains("--seqlen is 100, but the input file has 512; leave the option out"), "{log}");
    let log = refused(&["--input=nowhere.safetensors"]);
    assert!(log.contains("nowhere.safetensors: "), "{log}");
    let log = refused(&["--input=a.npy,b.npy"]);
    assert!(log.contains("must be FILE.safetensors, a folder with q.npy"), "{log}");
}

#[test]
fn broken_files_are_refused_with_their_name() {
    let folder = Folder::new("broken");
    let whole = std::fs::read(fixture("minilm-layer0.safetensors")).unwrap();
    for (name, bytes) in [("cut", &whole[..whole.len() / 2]), ("empty", &[]), ("huge", &[0xff; 64])] {
        let path = folder.file(&format!("{name}.safetensors"));
        std::fs::write(&path, bytes).unwrap();
        let log = refused(&[&format!("--input={path}")]);
        assert!(log.contains(&format!("{name}.safetensors: ")), "{log}");
    }
    let path = folder.file("q.npy");
    std::fs::write(&path, b"\x93NUMPY nonsense").unwrap();
    let log = refused(&[&format!("--input={path},{path},{path}")]);
    assert!(log.contains("q.npy: "), "{log}");
    let log = refused(&[&format!("--input={}", std::env::temp_dir().join("compare-none").display())]);
    assert!(log.starts_with("error: --input is "), "{log}");
}

#[test]
fn npy_files_go_round() {
    let folder = Folder::new("npy");
    let out = folder.file("o.npy");
    let result = compare(&small(&["--dtype=f32", &format!("--output={out}")]));
    assert_eq!(result.status, 0, "{}", result.log);
    assert!(PathBuf::from(folder.file("o.lse.npy")).exists());
    let result = compare(&[&format!("--input={out},{out},{out}"), "--json"]);
    assert_eq!(result.status, 0, "{}", result.log);
    let object: serde_json::Value = serde_json::from_str(&result.out).unwrap();
    assert_eq!((object["dtype"].as_str(), object["seqlen"].as_u64()), (Some("f32"), Some(24)));
    let log = refused(&small(&["--dtype=bf16", &format!("--output={out}")]));
    assert!(log.contains("NumPy has no bf16; write FILE.safetensors"), "{log}");
}

#[test]
fn output_holds_out_and_lse_that_agree_when_read_again() {
    let folder = Folder::new("output");
    let out = folder.file("o.safetensors");
    let result = compare(&small(&["--dtype=bf16", "--layout=bshd", &format!("--output={out}")]));
    assert_eq!(result.status, 0, "{}", result.log);
    let bytes = std::fs::read(&out).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let o = tensors.tensor("out").unwrap();
    assert_eq!((o.dtype(), o.shape()), (safetensors::Dtype::BF16, &[1, 24, 2, 16][..]));
    let lse = tensors.tensor("lse").unwrap();
    assert_eq!((lse.dtype(), lse.shape()), (safetensors::Dtype::F32, &[1, 2, 24][..]));
}

#[test]
fn a_list_of_cases_runs_to_its_end() {
    let folder = Folder::new("configs");
    let path = folder.file("cases.json");
    let cases = r#"[{"heads": 2, "seqlen": 20, "head_dim": 16, "causal": true, "dtype": "f32"},
        {"seqlen": 20, "head_dim": 12, "heads": 1},
        {"seqlens": 20},
        {"seqlen": 8, "heads": 1, "head_dim": 8, "causal": "top-left"}]"#;
    std::fs::write(&path, cases).unwrap();
    let result = compare(&[&format!("--configs={path}"), "--json", "--seed=3"]);
    assert_eq!(result.status, 2);
    let lines: Vec<serde_json::Value> =
        result.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ok: Vec<bool> = lines.iter().map(|line| line["ok"].as_bool().unwrap()).collect();
    assert_eq!(ok, [true, false, false, true]);
    assert!(
        lines[2]["error"].as_str().unwrap().contains("case 3: unexpected argument '--seqlens'"),
        "{}",
        lines[2]
    );
    assert_eq!(lines[3]["causal"], "top-left");
    assert!(result.log.contains("2 of 4 cases could not be run"), "{}", result.log);

    // What was printed can be run again.
    std::fs::write(&path, format!("[{},{}]", lines[0], lines[3])).unwrap();
    let again = compare(&[&format!("--configs={path}")]);
    assert_eq!(again.status, 0, "{}", again.log);
    assert_eq!(again.out.lines().filter(|line| line.starts_with("ok ")).count(), 2, "{}", again.out);

    std::fs::write(&path, "{}").unwrap();
    assert!(refused(&[&format!("--configs={path}")]).contains("not a JSON list of objects"));
}

#[test]
fn the_simulated_device_runs_a_kernel_of_the_gpu() {
    let result = compare_on("sim", &small(&["--kernel=sm80", "--causal", "--json"]));
    assert_eq!(result.status, 0, "{} {}", result.out, result.log);
    let object: serde_json::Value = serde_json::from_str(&result.out).unwrap();
    assert_eq!((object["kernel"].as_str(), object["device"].as_str()), (Some("sm80"), Some("simulated GPU")));
}

#[test]
fn without_a_gpu_cuda_is_refused_and_auto_takes_the_cpu() {
    let result = compare_on("auto", &small(&["--json"]));
    assert_eq!(result.status, 0, "{} {}", result.out, result.log);
    let result = compare_on("cuda", &small(&["--json"]));
    let object: serde_json::Value = serde_json::from_str(&result.out).unwrap();
    match result.status {
        0 => assert_eq!(object["ok"], true),
        status => {
            assert_eq!(status, 2);
            // The machine has no driver, no GPU, or the build no kernels; each says what to do instead.
            assert!(object["error"].as_str().unwrap().contains("; "), "{object}");
        }
    }
}

#[test]
fn help_is_no_error() {
    let result = compare(&["--help"]);
    assert_eq!(result.status, 0);
    assert!(result.out.contains("--kv-seqlen"));
}
