//! Standard attention beside a run: how much time and memory the same call takes where the scores are written down.

use std::time::Duration;

/// What a call costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Time of a call.
    pub time: Duration,
    /// Most memory in use at once beside the tensors, where it is known.
    pub workspace: Option<u64>,
}

/// The yardstick of a run: on a GPU the kernel `standard`, on the CPU the plain run.
#[derive(Clone, Debug)]
pub enum Standard {
    /// What it costs; that of all rows, from the time of those that were run.
    Ran {
        cost: Cost,
        /// Rows that were run, of how many.
        rows: (usize, usize),
    },
    /// Why it was not run.
    Skipped(String),
}

impl Standard {
    /// The cost, if it was run.
    pub fn cost(&self) -> Option<Cost> {
        match self {
            Standard::Ran { cost, .. } => Some(*cost),
            Standard::Skipped(_) => None,
        }
    }

    /// What the plain run costs that has taken `time` for the rows that were checked. It takes them one by one, so
    /// that its time goes with their number.
    pub fn plain(time: Duration, workspace: u64, rows: (usize, usize)) -> Self {
        let time = time.mul_f64(rows.1 as f64 / rows.0.max(1) as f64);
        Standard::Ran { cost: Cost { time, workspace: Some(workspace) }, rows }
    }
}

/// Most that `compare` spends on the scores of the kernel `standard`.
const MOST_BYTES: u64 = 4 << 30;

/// Why scores of `bytes` are too large for a run on the side on a GPU with `free` bytes of memory, if they are.
pub fn too_large(bytes: u64, free: u64) -> Option<String> {
    let most = MOST_BYTES.min(free / 4);
    (bytes > most).then(|| {
        let [bytes, most] = [bytes, most].map(bytes_text);
        format!("its scores take {bytes}, more than the {most} spent on it here; --kernel standard runs it")
    })
}

/// A size in the unit that suits it.
pub fn bytes_text(bytes: u64) -> String {
    let scaled = |unit: u64| bytes as f64 / unit as f64;
    match bytes {
        0 => "nothing".into(),
        b if b >= 1 << 30 => format!("{:.1} GiB", scaled(1 << 30)),
        b if b >= 1 << 20 => format!("{:.1} MiB", scaled(1 << 20)),
        _ => format!("{:.1} KiB", scaled(1 << 10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_fit_on_the_side_or_the_reason_has_both_sizes() {
        const GIB: u64 = 1 << 30;
        assert_eq!(too_large(4 * GIB, 16 * GIB), None);
        insta::assert_snapshot!(too_large(4 * GIB + 1, 100 * GIB).unwrap(), @"its scores take 4.0 GiB, more than the 4.0 GiB spent on it here; --kernel standard runs it");
        insta::assert_snapshot!(too_large(3 * GIB, 10 * GIB).unwrap(), @"its scores take 3.0 GiB, more than the 2.5 GiB spent on it here; --kernel standard runs it");
    }

    #[test]
    fn a_part_of_the_rows_stands_for_all() {
        let cost = Standard::plain(Duration::from_millis(3), 10, (4, 20)).cost().unwrap();
        assert_eq!((cost.time, cost.workspace), (Duration::from_millis(15), Some(10)));
    }
}
