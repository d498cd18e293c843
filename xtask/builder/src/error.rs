//! Why a build ended.

use std::path::{Path, PathBuf};

/// Result of this crate's calls.
pub type Result<T, E = CudaBuilderError> = std::result::Result<T, E>;

/// Why a build ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaBuilderError {
    /// A program that the build needs is not here, and could not be fetched.
    #[error("{what} is missing\n{tried}{remedies}", tried = table(.tried), remedies = list(.remedies))]
    Missing {
        /// What is missing.
        what: String,
        /// What was looked at, and what each lacked.
        tried: Vec<Rejected>,
        /// The ways out.
        remedies: Vec<String>,
    },
    /// The compiler or cargo failed; its own messages went to the terminal or are in `output`.
    #[error("{what} failed ({status})\n{output}")]
    Failed {
        /// What was run.
        what: String,
        /// How it ended.
        status: String,
        /// What it said.
        output: String,
    },
    /// The PTX or the machine code is not fit to ship.
    #[error("refused:\n{}", list(.0))]
    Refused(Vec<String>),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A candidate that was looked at and cannot serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Where it lies or comes from.
    pub candidate: String,
    /// Why it cannot serve.
    pub lacks: String,
}

impl Rejected {
    pub(crate) fn new(candidate: impl std::fmt::Display, lacks: impl Into<String>) -> Self {
        let lacks: String = lacks.into();
        // What other programs say comes in several lines; a row of the table is one.
        let lines: Vec<&str> = lacks.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Rejected { candidate: candidate.to_string(), lacks: lines.join("; ") }
    }
}

/// Names the file in an error of the file system.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|source| CudaBuilderError::Io { path: path.to_path_buf(), source })
    }
}

fn table(rows: &[Rejected]) -> String {
    let width = rows.iter().map(|row| row.candidate.chars().count()).max().unwrap_or(0);
    rows.iter().map(|row| format!("  {:width$}  {}\n", row.candidate, row.lacks)).collect()
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  - {line}\n")).collect()
}
