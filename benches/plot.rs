//! Draws the charts of a comparison with the rivals.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use flash_attention_benches::chart;

/// Draws TFLOP/s over sequence length, one SVG for each element type.
#[derive(Parser)]
struct Arguments {
    /// JSON files of the comparison: arrays of rows with `dtype`, `head_dim`, `heads`, `batch`, `seqlen`, `causal`
    /// and `ms` by contestant. A later file's figures for the same shape replace an earlier one's.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Folder for the charts.
    #[arg(long, default_value = "docs")]
    out: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut rows: Vec<chart::Row> = Vec::new();
    for file in &arguments.files {
        for new in chart::read(file)? {
            let shape = |row: &chart::Row| (row.dtype.clone(), row.head_dim, row.seqlen, row.causal);
            match rows.iter_mut().find(|row| shape(row) == shape(&new)) {
                Some(row) => row.ms.extend(new.ms),
                None => rows.push(new),
            }
        }
    }
    for path in chart::draw_all(&rows, &arguments.out)? {
        println!("{}", path.display());
    }
    Ok(())
}
