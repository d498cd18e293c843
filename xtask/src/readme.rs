//! The commands of README.md, so that they cannot rot.

use crate::project;
use anyhow::{Context as _, Result};
use std::fs;

/// The lines of the README's `sh` blocks: what CI runs, one after the other.
pub fn commands() -> Result<Vec<String>> {
    let path = project::root().join("README.md");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(blocks(&text, "sh"))
}

/// The lines of the README's `console` blocks: shown, but too long to run in CI.
#[cfg(test)]
fn shown() -> Result<Vec<String>> {
    Ok(blocks(&fs::read_to_string(project::root().join("README.md"))?, "console"))
}

fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(opened) = line.strip_prefix("```") {
            inside = !inside && opened == language;
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            lines.push(line.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser as _;

    #[test]
    fn only_the_blocks_of_the_language_count() {
        let text = "a\n```sh\n# comment\ncargo xtask compare\n\n```\ncargo no\n```rust\nfn f() {}\n```\n```console\nx\n```\n";
        assert_eq!(blocks(text, "sh"), ["cargo xtask compare"]);
        assert_eq!(blocks(text, "console"), ["x"]);
    }

    #[test]
    fn the_commands_of_the_readme_exist() {
        let all = [commands().unwrap(), shown().unwrap()].concat();
        let ours: Vec<&str> = all.iter().filter_map(|line| line.strip_prefix("cargo xtask ")).collect();
        assert!(ours.contains(&"compare") && ours.contains(&"test"), "{ours:?}");
        for line in ours {
            let words = std::iter::once("xtask").chain(line.split_whitespace());
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("README: cargo xtask {line}: {error}");
            }
        }
    }
}
