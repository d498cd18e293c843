//! Charts of a comparison with the rivals: TFLOP/s over sequence length, a panel for each head dim and mask.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use serde::Deserialize;

/// One shape, measured: the comparison script writes a JSON array of these.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    /// Element type; "fp16" in a file is read as "f16".
    pub dtype: String,
    /// Columns of Q, K and V.
    pub head_dim: usize,
    /// Heads.
    pub heads: usize,
    /// Sequences.
    pub batch: usize,
    /// Rows of Q and of K.
    pub seqlen: usize,
    /// Whether there is a causal mask.
    pub causal: bool,
    /// Milliseconds of a call, by contestant.
    pub ms: BTreeMap<String, f64>,
}

impl Row {
    /// Speed of each contestant, by the convention `4 b h n² d`, half of it for causal.
    pub fn tflops(&self) -> impl Iterator<Item = (&str, f64)> {
        let pairs = (self.batch * self.heads) as f64 * (self.seqlen as f64).powi(2);
        let flop = pairs * 4.0 * self.head_dim as f64 / if self.causal { 2.0 } else { 1.0 };
        self.ms.iter().map(move |(name, ms)| (name.as_str(), flop / ms / 1e9))
    }
}

/// Reads the rows of one file.
///
/// # Errors
/// The file is not there or is something else.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut rows: Vec<Row> = serde_json::from_str(&text)
        .with_context(|| format!("{}: not a comparison's rows", path.display()))?;
    for row in rows.iter_mut().filter(|row| row.dtype == "fp16") {
        row.dtype = "f16".into();
    }
    Ok(rows)
}

/// Draws one chart for each element type into `folder` and returns the files.
///
/// # Errors
/// There are no rows, or the folder cannot be written.
pub fn draw_all(rows: &[Row], folder: &Path) -> Result<Vec<PathBuf>> {
    ensure!(!rows.is_empty(), "no rows to draw");
    let mut by_dtype: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        by_dtype.entry(&row.dtype).or_default().push(row);
    }
    by_dtype
        .into_iter()
        .map(|(dtype, rows)| {
            let path = folder.join(format!("forward-{dtype}.svg"));
            std::fs::write(&path, draw(dtype, &rows)?).with_context(|| path.display().to_string())?;
            Ok(path)
        })
        .collect()
}

const PANEL: (u32, u32) = (440, 260);
const HEAD: u32 = 60;
const INK: RGBColor = RGBColor(45, 45, 45);
/// Contestants in the order of the legend, and their colours: ours stands out, and no two differ by hue alone.
const CONTESTANTS: [(&str, &str, RGBColor); 6] = [
    ("ours", "this library", RGBColor(213, 72, 24)),
    ("fa3", "FlashAttention-3", RGBColor(31, 90, 160)),
    ("cudnn", "cuDNN", RGBColor(90, 140, 50)),
    ("triton", "Triton", RGBColor(140, 100, 170)),
    ("fa2", "FlashAttention-2", RGBColor(120, 170, 215)),
    ("standard", "standard attention", RGBColor(150, 150, 150)),
];

/// The chart of one element type, as SVG text.
fn draw(dtype: &str, rows: &[&Row]) -> Result<String> {
    let mut dims: Vec<usize> = rows.iter().map(|row| row.head_dim).collect();
    dims.sort_unstable();
    dims.dedup();
    let mut text = String::new();
    {
        let size = (2 * PANEL.0, HEAD + dims.len() as u32 * PANEL.1);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, panels) = root.split_vertically(HEAD);
        legend(&head, dtype, rows)?;
        let panels = panels.split_evenly((dims.len(), 2));
        let shapes = dims.iter().flat_map(|&dim| [(dim, false), (dim, true)]);
        for (area, (dim, causal)) in panels.iter().zip(shapes) {
            let rows: Vec<_> =
                rows.iter().filter(|row| (row.head_dim, row.causal) == (dim, causal)).copied().collect();
            panel(area, dim, causal, &rows)?;
        }
        root.present()?;
    }
    Ok(text)
}

fn legend<B: DrawingBackend>(area: &DrawingArea<B, Shift>, dtype: &str, rows: &[&Row]) -> Result<()>
where
    B::ErrorType: 'static,
{
    let title = format!("Attention forward, {dtype}: TFLOP/s over sequence length (higher is better)");
    area.draw(&Text::new(title, (16, 10), ("sans-serif", 18).into_font().color(&INK)))?;
    let mut x = 16;
    for (_, label, color) in
        CONTESTANTS.iter().filter(|(name, ..)| rows.iter().any(|row| row.ms.contains_key(*name)))
    {
        area.draw(&PathElement::new(vec![(x, 45), (x + 22, 45)], color.stroke_width(3)))?;
        area.draw(&Text::new(*label, (x + 28, 38), ("sans-serif", 13).into_font().color(&INK)))?;
        x += 50 + 7 * label.len() as i32;
    }
    Ok(())
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    dim: usize,
    causal: bool,
    rows: &[&Row],
) -> Result<()>
where
    B::ErrorType: 'static,
{
    let mut lengths: Vec<f64> = rows.iter().map(|row| (row.seqlen as f64).log2()).collect();
    lengths.sort_by(f64::total_cmp);
    lengths.dedup();
    let (Some(&first), Some(&last)) = (lengths.first(), lengths.last()) else {
        return Ok(());
    };
    let top = rows.iter().flat_map(|row| row.tflops()).map(|(_, speed)| speed).fold(0.0, f64::max);
    let caption = format!("head dim {dim}, {}", if causal { "causal" } else { "full" });
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 15).into_font().color(&INK))
        .margin(10)
        .margin_right(20)
        .x_label_area_size(24)
        .y_label_area_size(44)
        .build_cartesian_2d(first - 0.1..last + 0.1, 0.0..top * 1.08)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(RGBColor(225, 225, 225))
        .light_line_style(TRANSPARENT)
        .axis_style(RGBColor(150, 150, 150))
        .y_labels(6)
        .y_label_formatter(&|speed| format!("{speed:.0}"))
        .x_labels(0)
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .draw()?;
    for (name, _, color) in CONTESTANTS.iter().rev() {
        let mut points: Vec<(f64, f64)> = rows
            .iter()
            .flat_map(|row| {
                let x = (row.seqlen as f64).log2();
                row.tflops().filter(|(who, _)| who == name).map(move |(_, speed)| (x, speed))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let width = if *name == "ours" { 3 } else { 2 };
        chart.draw_series(points.iter().map(|&point| Circle::new(point, width + 1, color.filled())))?;
        chart.draw_series(LineSeries::new(points, color.stroke_width(width)))?;
    }
    // The lengths themselves, not round numbers of their logarithm.
    let (_, bottom) = chart.backend_coord(&(first, 0.0));
    let (left, upper) = area.get_base_pixel();
    for length in lengths {
        let n = length.exp2().round() as usize;
        let label =
            if n >= 1024 && n.is_multiple_of(1024) { format!("{}k", n / 1024) } else { n.to_string() };
        let (x, _) = chart.backend_coord(&(length, 0.0));
        let place = (x - left - 4 * label.len() as i32, bottom - upper + 6);
        area.draw(&Text::new(label, place, ("sans-serif", 12).into_font().color(&INK)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(head_dim: usize, seqlen: usize, causal: bool, ms: &[(&str, f64)]) -> Row {
        Row {
            dtype: "bf16".into(),
            head_dim,
            heads: 2048 / head_dim,
            batch: 16384 / seqlen,
            seqlen,
            causal,
            ms: ms.iter().map(|&(name, ms)| (name.to_owned(), ms)).collect(),
        }
    }

    #[test]
    fn speed_counts_half_for_causal() {
        let speed = |causal| row(128, 16384, causal, &[("ours", 1.0)]).tflops().map(|(_, x)| x).sum::<f64>();
        // 4 * 16 heads * 16384² * 128 = 2.199 TFLOP in a millisecond.
        assert!((speed(false) - 2199.02).abs() < 0.01, "{}", speed(false));
        assert!((speed(true) - 1099.51).abs() < 0.01, "{}", speed(true));
    }

    #[test]
    fn a_chart_has_a_panel_for_each_shape_and_a_line_for_each_contestant() {
        let rows: Vec<Row> = [64, 128]
            .iter()
            .flat_map(|&d| [512, 1024].map(|n| row(d, n, true, &[("ours", 1.0), ("fa3", 1.1)])))
            .collect();
        let svg = draw("bf16", &rows.iter().collect::<Vec<_>>()).unwrap();
        for text in ["Attention forward, bf16", "head dim 64, causal", "head dim 128, causal", "512", "1k"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.contains("this library") && svg.contains("FlashAttention-3") && !svg.contains("cuDNN"));
        // Two panels, two contestants, and their legend.
        let lines = svg.matches("<polyline").count();
        assert!(lines >= 6, "{lines}");
        assert!(draw_all(&[], Path::new(".")).is_err());
    }
}
