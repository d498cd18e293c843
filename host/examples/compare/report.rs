//! Results as a page, as a line of a list and as JSON.

use crate::device::CPU;
use crate::measure::{Failure, Outcome};
use crate::options::{CaseOptions, CausalChoice, Layout};
use crate::standard::{Cost, Standard, bytes_text};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use flash_attention::{Causal, Problem};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A single case at length.
pub fn page(outcome: &Outcome) -> String {
    let problem = &outcome.problem;
    let mut text = format!(
        "Attention forward: {}\nDevice  {}\nPlan    {}\n",
        shape(problem, outcome.layout),
        outcome.device,
        outcome.plan
    );
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Disabled);
    if let Some(report) = &outcome.report {
        let (run, plain, limits) = (&report.run, &report.plain, &report.limits);
        table.set_header(["against the f64 reference", "this run", "plain run", "allowed", ""]);
        for (name, found, plain, limit) in [
            ("relative error of O", run.relative, plain.relative, limits.relative),
            ("worst row of O", run.worst_row, plain.worst_row, limits.worst_row),
            ("worst element of O", run.max_abs, plain.max_abs, limits.max_abs),
        ] {
            table.add_row([name, &number(found), &number(plain), &number(limit), tick(found <= limit)]);
        }
        let lse = |errors: &flash_attention::check::Errors| errors.lse_max_abs.map_or("-".into(), number);
        let lse_ok = !report.failures.iter().any(|failure| failure.starts_with("LSE"));
        table.add_row(["worst element of LSE", &lse(run), &lse(plain), "1e-4 max(1, |lse|)", tick(lse_ok)]);
    } else {
        table.set_header(["not checked", "", "", "", ""]);
    }
    if let Some(report) = &outcome.file_report {
        let (run, plain, limits) = (&report.run, &report.plain, &report.limits);
        table.add_row([
            "relative error against the file's result",
            &number(run.relative),
            &number(plain.relative),
            &number(limits.relative),
            tick(report.ok()),
        ]);
    }
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text += &format!("{table}\n");
    if let Some(report) = &outcome.report {
        let (rows, total) = outcome.checked;
        let which = if rows == total { "all rows".into() } else { format!("{rows} of {total} rows") };
        let worst = report.run.worst.map_or("no difference at all".into(), |pair| format!("worst {pair}"));
        text += &format!("Checked {which}; {worst}\n");
    }
    text += &format!("{}\n{}", time_line(outcome), memory_line(outcome));
    text += if outcome.ok() { "\nok" } else { "\nMISMATCH" };
    text
}

/// What standard attention is called on the device of the run.
fn standard_name(outcome: &Outcome) -> &'static str {
    if outcome.kernel == CPU { "the plain run" } else { "the standard kernel" }
}

/// The time of a call, and how it stands to standard attention.
fn time_line(outcome: &Outcome) -> String {
    let mut text = format!("Time    {}", duration(outcome.cost.time));
    if let Some(tflops) = outcome.tflops() {
        text += &format!(", {tflops:.3} TFLOP/s");
    }
    let name = standard_name(outcome);
    match (&outcome.standard, outcome.speedup()) {
        (Some(Standard::Ran { cost, rows }), Some(speedup)) => {
            let all = if rows.0 == rows.1 {
                String::new()
            } else {
                format!(", estimated from {} of {} rows", rows.0, rows.1)
            };
            text += &format!("; {speedup:.1} times as fast as {name} ({}{all})", duration(cost.time));
        }
        (Some(Standard::Skipped(why)), _) => text += &format!("\n        {name} was not run: {why}"),
        _ => {}
    }
    text
}

/// The memory of the tensors, and what the run and standard attention take beside them.
fn memory_line(outcome: &Outcome) -> String {
    let mut text = format!("Memory  {} of tensors", bytes_text(outcome.tensor_bytes));
    if let Some(bytes) = outcome.cost.workspace {
        text += &format!("; beside them {}", bytes_text(bytes));
    }
    if let Some(bytes) = outcome.standard_cost().and_then(|cost| cost.workspace) {
        text += &format!(", {} {}", standard_name(outcome), bytes_text(bytes));
    }
    text + &format!(" ({})", memory_source(outcome))
}

/// Where the figures of the memory beside the tensors come from: on the CPU the allocator has counted, on a GPU they are
/// the sizes that the library allocates by.
fn memory_source(outcome: &Outcome) -> &'static str {
    if outcome.kernel == CPU { "measured" } else { "computed" }
}

/// The heading over the lines of a list.
pub fn list_header() -> String {
    format!("{:<8} {:>9} {:>9} {:>10} {:>8}  case", "verdict", "rel error", "max error", "time", "TFLOP/s")
}

/// One case in one line.
pub struct Line {
    object: Map<String, Value>,
    text: String,
}

impl Line {
    pub fn new(case: &CaseOptions, outcome: &Result<Outcome, Failure>) -> Self {
        match outcome {
            Ok(outcome) => Line { object: object(outcome), text: text(outcome) },
            Err(failure) => {
                let object = json!({"ok": false, "error": failure.to_string(), "causal": asked_causal(case)});
                let Value::Object(object) = object else { unreachable!("it is an object") };
                Line { object, text: format!("{:<8} {failure}", "refused") }
            }
        }
    }

    pub fn json(&self) -> String {
        Value::Object(self.object.clone()).to_string()
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

fn text(outcome: &Outcome) -> String {
    let (relative, max) = match &outcome.report {
        Some(report) => (number(report.run.relative), number(report.run.max_abs)),
        None => ("-".into(), "-".into()),
    };
    format!(
        "{:<8} {relative:>9} {max:>9} {:>10} {:>8}  {}; {}",
        if outcome.ok() { "ok" } else { "MISMATCH" },
        duration(outcome.cost.time),
        outcome.tflops().map_or("-".into(), |tflops| format!("{tflops:.3}")),
        shape(&outcome.problem, outcome.layout),
        outcome.kernel
    )
}

fn object(outcome: &Outcome) -> Map<String, Value> {
    let p = &outcome.problem;
    let report = outcome.report.as_ref();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let standard = outcome.standard_cost();
    let peak = |cost: Cost| cost.workspace.map(|bytes| outcome.tensor_bytes + bytes);
    let (ran_rows, skipped) = match &outcome.standard {
        Some(Standard::Ran { rows, .. }) => (Some(rows.0), None),
        Some(Standard::Skipped(why)) => (None, Some(why)),
        None => (None, None),
    };
    let causal = match p.causal {
        Causal::No => json!(false),
        Causal::BottomRight => json!(true),
        Causal::TopLeft => json!("top-left"),
    };
    let value = json!({
        "ok": outcome.ok(),
        "device": outcome.device,
        "kernel": outcome.kernel,
        "plan": outcome.plan,
        "dtype": p.dtype.name(),
        "batch": p.batch,
        "heads": p.heads,
        "kv_heads": p.kv_heads,
        "seqlen": p.seqlen_q,
        "kv_seqlen": p.seqlen_k,
        "head_dim": p.head_dim,
        "head_dim_v": p.head_dim_v,
        "causal": causal,
        "window_left": p.window.left,
        "window_right": p.window.right,
        "scale": p.scale,
        "softcap": p.softcap,
        "layout": layout_name(outcome.layout),
        "checked_rows": outcome.checked.0,
        "rel_error": report.map(|r| r.run.relative),
        "max_abs_error": report.map(|r| r.run.max_abs),
        "lse_max_abs_error": report.and_then(|r| r.run.lse_max_abs),
        "file_rel_error": outcome.file_report.as_ref().map(|r| r.run.relative),
        "ms": ms(outcome.cost.time),
        "tflops": outcome.tflops(),
        "peak_bytes": peak(outcome.cost),
        "workspace_bytes": outcome.cost.workspace,
        "workspace_source": memory_source(outcome),
        "standard_ms": standard.map(|cost| ms(cost.time)),
        "standard_rows": ran_rows,
        "standard_peak_bytes": standard.and_then(peak),
        "standard_workspace_bytes": standard.and_then(|cost| cost.workspace),
        "standard_skipped": skipped,
        "speedup_over_standard": outcome.speedup(),
        "failures": outcome.failures(),
    });
    match value {
        Value::Object(object) => object,
        _ => unreachable!("it is an object"),
    }
}

fn asked_causal(case: &CaseOptions) -> Value {
    match case.causal.unwrap_or_default() {
        CausalChoice::False => json!(false),
        CausalChoice::True => json!(true),
        CausalChoice::TopLeft => json!("top-left"),
    }
}

fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::Bhsd => "bhsd",
        Layout::Bshd => "bshd",
    }
}

/// The problem in words.
fn shape(p: &Problem, layout: Layout) -> String {
    let pair = |a: usize, b: usize| if a == b { a.to_string() } else { format!("{a}/{b}") };
    let mut text = format!(
        "{}, batch {}, heads {}, seqlen {}, head dim {}, {}",
        p.dtype.name(),
        p.batch,
        pair(p.heads, p.kv_heads),
        pair(p.seqlen_q, p.seqlen_k),
        pair(p.head_dim, p.head_dim_v),
        layout_name(layout)
    );
    match p.causal {
        Causal::No => {}
        Causal::BottomRight => text += ", causal",
        Causal::TopLeft => text += ", causal from the top left",
    }
    for (side, bound) in [("left", p.window.left), ("right", p.window.right)] {
        if let Some(bound) = bound {
            text += &format!(", window {side} {bound}");
        }
    }
    if let Some(cap) = p.softcap {
        text += &format!(", softcap {cap}");
    }
    text
}

fn number(x: f64) -> String {
    if x == 0.0 { "0".into() } else { format!("{x:.2e}") }
}

fn tick(ok: bool) -> &'static str {
    if ok { "✓" } else { "✗" }
}

fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}
