//! The command line, and the rows of a list of cases, which take the same options.

use crate::measure::Failure;
use clap::{Parser, ValueEnum};
use flash_attention::problem::default_scale;
use flash_attention::{Causal, DType, Problem, Strides, Window};
use std::path::{Path, PathBuf};

/// Runs attention forward, checks it against a 64-bit reference and times it.
///
/// Exit status: 0 the result is right, 1 it is not, 2 the call could not be made.
#[derive(Clone, Debug, Parser)]
#[command(name = "compare", version)]
pub struct Options {
    #[command(flatten)]
    pub case: CaseOptions,
    /// Where to run; auto is the GPU if there is one, else the CPU. sim runs the GPU's kernels on the CPU, slowly, and
    /// checks every access.
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceChoice,
    /// Print one JSON object for each case instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Run a list of cases: a JSON file with a list of objects whose keys are the options of this program (`seqlen`,
    /// `head_dim`, ...). Options on the command line hold where a case has none of its own.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["input", "output"])]
    pub configs: Option<PathBuf>,
    /// Take q, k and v from a file: FILE.safetensors, a folder with q.npy, k.npy and v.npy, or the three .npy files with
    /// commas between. out, lse, out_causal and lse_causal are compared too where the file has them.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub input: Vec<PathBuf>,
    /// Write `out` and `lse` to FILE.safetensors, or to FILE.npy and FILE.lse.npy.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What one case is. Everything has a default.
#[derive(Clone, Debug, Default, Parser)]
pub struct CaseOptions {
    /// Element type [default: f16, or that of the input file]
    #[arg(long, value_enum)]
    pub dtype: Option<DTypeChoice>,
    /// Sequences [default: 1]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Query heads [default: 8]
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Key and value heads [default: as many as query heads]
    #[arg(long, value_name = "N")]
    pub kv_heads: Option<usize>,
    /// Query rows of a sequence [default: 1024]
    #[arg(long, value_name = "N")]
    pub seqlen: Option<usize>,
    /// Key rows of a sequence [default: as many as query rows]
    #[arg(long, value_name = "N")]
    pub kv_seqlen: Option<usize>,
    /// Columns of Q and K [default: 64]
    #[arg(long, value_name = "N")]
    pub head_dim: Option<usize>,
    /// Columns of V and O [default: as many as those of Q and K]
    #[arg(long, value_name = "N")]
    pub head_dim_v: Option<usize>,
    /// Causal mask; true aligns it bottom-right [default: false]
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "true")]
    pub causal: Option<CausalChoice>,
    /// Keys to the left of the diagonal that a query sees [default: all]
    #[arg(long, value_name = "N")]
    pub window_left: Option<usize>,
    /// Keys to the right of the diagonal that a query sees [default: all]
    #[arg(long, value_name = "N")]
    pub window_right: Option<usize>,
    /// Factor on q . k [default: 1/sqrt(head dim)]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub scale: Option<f32>,
    /// Cap on the scores [default: none]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub softcap: Option<f32>,
    /// Kernel family on the GPU, or cpu on the CPU [default: auto]
    #[arg(long, value_enum)]
    pub kernel: Option<KernelChoice>,
    /// Order of the tensors' dimensions: batch, head, sequence, dim or batch, sequence, head, dim [default: bhsd]
    #[arg(long, value_enum)]
    pub layout: Option<Layout>,
    /// Seed of the random tensors [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Rows to hold against the reference: auto, full, rows=N or none; auto is full up to 2^31 operations, else
    /// rows=1024 [default: auto]
    #[arg(long, value_name = "WHICH", value_parser = parse_check)]
    pub check: Option<Check>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    #[default]
    Auto,
    Cuda,
    Cpu,
    Sim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DTypeChoice {
    F16,
    Bf16,
    F32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CausalChoice {
    #[default]
    False,
    True,
    TopLeft,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KernelChoice {
    #[default]
    Auto,
    Standard,
    Tiled,
    Sm80,
    Sm90,
    Cpu,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    #[default]
    Bhsd,
    Bshd,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    #[default]
    Auto,
    Full,
    Rows(usize),
    None,
}

fn parse_check(text: &str) -> Result<Check, String> {
    match text {
        "auto" => Ok(Check::Auto),
        "full" => Ok(Check::Full),
        "none" => Ok(Check::None),
        _ => match text.strip_prefix("rows=").map(str::parse) {
            Some(Ok(rows)) if rows > 0 => Ok(Check::Rows(rows)),
            _ => Err("must be auto, full, none, or rows=N with N at least 1".into()),
        },
    }
}

impl DTypeChoice {
    pub fn dtype(self) -> DType {
        match self {
            DTypeChoice::F16 => DType::F16,
            DTypeChoice::Bf16 => DType::Bf16,
            DTypeChoice::F32 => DType::F32,
        }
    }
}

/// Sizes of Q, K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub batch: usize,
    pub seqlen_q: usize,
    pub seqlen_k: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub head_dim_v: usize,
}

impl CaseOptions {
    /// The sizes that the options ask for, before anything is known about a file.
    pub fn sizes(&self) -> Sizes {
        let heads = self.heads.unwrap_or(8);
        let seqlen_q = self.seqlen.unwrap_or(1024);
        let head_dim = self.head_dim.unwrap_or(64);
        Sizes {
            batch: self.batch.unwrap_or(1),
            seqlen_q,
            seqlen_k: self.kv_seqlen.unwrap_or(seqlen_q),
            heads,
            kv_heads: self.kv_heads.unwrap_or(heads),
            head_dim,
            head_dim_v: self.head_dim_v.unwrap_or(head_dim),
        }
    }

    /// Refuses a size option that the tensors of a file contradict.
    pub fn agree_with(&self, sizes: &Sizes) -> Result<(), Failure> {
        for (name, asked, found) in [
            ("--batch", self.batch, sizes.batch),
            ("--heads", self.heads, sizes.heads),
            ("--kv-heads", self.kv_heads, sizes.kv_heads),
            ("--seqlen", self.seqlen, sizes.seqlen_q),
            ("--kv-seqlen", self.kv_seqlen, sizes.seqlen_k),
            ("--head-dim", self.head_dim, sizes.head_dim),
            ("--head-dim-v", self.head_dim_v, sizes.head_dim_v),
        ] {
            if let Some(asked) = asked
                && asked != found
            {
                return Err(Failure::new(format!(
                    "{name} is {asked}, but the input file has {found}; leave the option out"
                )));
            }
        }
        Ok(())
    }

    /// The checked problem for tensors of these sizes.
    pub fn problem(&self, dtype: DType, sizes: Sizes) -> Result<Problem, Failure> {
        let Sizes { batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, head_dim_v } = sizes;
        let strides = match self.layout.unwrap_or_default() {
            Layout::Bhsd => Strides::bhsd,
            Layout::Bshd => Strides::bshd,
        };
        for (seqlen, heads, dim) in
            [(seqlen_q, heads, head_dim), (seqlen_k, kv_heads, head_dim), (seqlen_k, kv_heads, head_dim_v)]
        {
            let elements =
                [seqlen, heads, dim].iter().try_fold(batch.max(1), |n, &m| n.checked_mul(m.max(1)));
            if elements.is_none_or(|n| n > isize::MAX as usize / 4) {
                return Err(Failure::new(format!(
                    "a tensor of {batch} x {seqlen} x {heads} x {dim} elements does not fit in memory; ask for less"
                )));
            }
        }
        let problem = Problem {
            dtype,
            batch,
            seqlen_q,
            seqlen_k,
            heads,
            kv_heads,
            head_dim,
            head_dim_v,
            q: strides(seqlen_q, heads, head_dim),
            k: strides(seqlen_k, kv_heads, head_dim),
            v: strides(seqlen_k, kv_heads, head_dim_v),
            o: strides(seqlen_q, heads, head_dim_v),
            scale: self.scale.unwrap_or_else(|| default_scale(head_dim)),
            causal: match self.causal.unwrap_or_default() {
                CausalChoice::False => Causal::No,
                CausalChoice::True => Causal::BottomRight,
                CausalChoice::TopLeft => Causal::TopLeft,
            },
            window: Window { left: self.window_left, right: self.window_right },
            softcap: self.softcap,
        };
        problem.check()?;
        Ok(problem)
    }
}

/// Keys of this program's own results, which a list of cases may carry along.
const RESULT_KEYS: [&str; 22] = [
    "ok",
    "device",
    "entry",
    "plan",
    "checked_rows",
    "rel_error",
    "max_abs_error",
    "lse_max_abs_error",
    "ms",
    "tflops",
    "peak_bytes",
    "workspace_bytes",
    "workspace_source",
    "standard_ms",
    "standard_rows",
    "standard_peak_bytes",
    "standard_workspace_bytes",
    "standard_skipped",
    "speedup_over_standard",
    "failures",
    "error",
    "file_rel_error",
];

/// The cases of a list: each the options of its row on top of `base`, or why the row makes no sense.
pub fn read_configs(path: &Path, base: &CaseOptions) -> Result<Vec<Result<CaseOptions, Failure>>, Failure> {
    let at = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| at(&error))?;
    let rows: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(&text)
        .map_err(|error| at(&format!("not a JSON list of objects with options: {error}")))?;
    let row_options = |(n, row): (usize, &serde_json::Map<String, serde_json::Value>)| {
        let mut case = base.clone();
        case.try_update_from(arguments(row)).map_err(|error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            at(&format!("case {}: {first}", n + 1))
        })?;
        Ok(case)
    };
    Ok(rows.iter().enumerate().map(row_options).collect())
}

/// A row as a command line: `{"kv_heads": 2, "causal": true}` is `--kv-heads=2 --causal=true`.
fn arguments(row: &serde_json::Map<String, serde_json::Value>) -> Vec<String> {
    let mut arguments = vec!["compare".to_string()];
    for (key, value) in row {
        if RESULT_KEYS.contains(&key.as_str()) || value.is_null() {
            continue;
        }
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        arguments.push(format!("--{}={value}", key.replace('_', "-")));
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_the_options_and_skips_results() {
        let row = serde_json::json!({"kv_heads": 2, "causal": "top-left", "ms": 1.5, "dtype": null});
        let mut case = CaseOptions { heads: Some(4), ..Default::default() };
        case.try_update_from(arguments(row.as_object().unwrap())).unwrap();
        assert_eq!((case.kv_heads, case.heads), (Some(2), Some(4)));
        assert_eq!(case.causal, Some(CausalChoice::TopLeft));
        let row = serde_json::json!({"head_dims": 2});
        assert!(case.try_update_from(arguments(row.as_object().unwrap())).is_err());
    }

    #[test]
    fn check_reads_its_four_forms() {
        assert_eq!(parse_check("rows=12"), Ok(Check::Rows(12)));
        assert_eq!(parse_check("none"), Ok(Check::None));
        assert!(parse_check("rows=0").is_err());
        assert!(parse_check("most").is_err());
    }
}
