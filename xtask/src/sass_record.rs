//! `xtask/sass/<arch>.txt`: the order of products, waits and exponentials in the hot loops, as it was when it was
//! last measured to be fast.

use crate::manifest::write_if_changed;
use crate::project;
use crate::setup::Tools;
use anyhow::Result;
use flash_attention_builder::CudaArch;
use flash_attention_builder::sass::HotLoop;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// The hot loops of each kernel.
pub type Loops = BTreeMap<String, Vec<String>>;

/// What a comparison with the record found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Differences under the versions that the record was made with: something in the source changed the order.
    pub refused: Vec<String>,
    /// Differences under other versions, and kernels without a record.
    pub warnings: Vec<String>,
}

/// Holds the hot loops of all kernels of `arch` against the record, or writes the record anew.
pub fn check(
    arch: CudaArch,
    hot: &BTreeMap<String, Vec<HotLoop>>,
    tools: &Tools,
    bless: bool,
) -> Result<Verdict> {
    let shown = |loops: &Vec<HotLoop>| loops.iter().map(HotLoop::to_string).collect();
    let loops: Loops = hot.iter().map(|(name, loops)| (name.clone(), shown(loops))).collect();
    let (path, versions) = (path(arch), versions(tools));
    let mut verdict = match bless {
        true => {
            fs::create_dir_all(path.parent().expect("the record lies in a folder"))?;
            write_if_changed(&path, render(&versions, &loops).as_bytes())?;
            Verdict::default()
        }
        false => compare(&fs::read_to_string(&path).unwrap_or_default(), &versions, &loops),
    };
    for (name, _) in hot.iter().filter(|(_, loops)| !loops.iter().any(HotLoop::overlaps)) {
        verdict
            .warnings
            .push(format!("{name}: in no loop are exponentials computed while a product is in flight"));
    }
    Ok(verdict)
}

fn path(arch: CudaArch) -> PathBuf {
    project::root().join("xtask/sass").join(format!("{}.txt", arch.name()))
}

fn versions(tools: &Tools) -> String {
    let (toolchain, ptxas) = (&tools.toolchain, &tools.cuda.ptxas);
    format!("rustc {}, LLVM {}, ptxas {}", toolchain.release, toolchain.llvm, ptxas.version)
}

fn render(versions: &str, loops: &Loops) -> String {
    let mut text = format!("{versions}\n");
    for (name, loops) in loops {
        text += &format!("\n{name}\n");
        for line in loops {
            text += &format!("  {line}\n");
        }
    }
    text
}

fn parse(record: &str) -> (&str, Loops) {
    let mut lines = record.lines();
    let versions = lines.next().unwrap_or_default();
    let mut loops = Loops::new();
    let mut name = String::new();
    for line in lines.filter(|line| !line.is_empty()) {
        match line.strip_prefix("  ") {
            Some(hot) => loops.entry(name.clone()).or_default().push(hot.to_owned()),
            None => {
                name = line.to_owned();
                loops.entry(name.clone()).or_default();
            }
        }
    }
    (versions, loops)
}

fn compare(record: &str, versions: &str, loops: &Loops) -> Verdict {
    let (recorded_versions, recorded) = parse(record);
    let mut verdict = Verdict::default();
    for (name, now) in loops {
        match recorded.get(name) {
            None => {
                verdict.warnings.push(format!("{name}: no record of its hot loops (build-ptx --bless-sass)"))
            }
            Some(before) if before != now => {
                let found = format!(
                    "{name}: the hot loops have another order of products, waits and exponentials\n      was {}\n      \
                     is  {}",
                    before.join(" | "),
                    now.join(" | ")
                );
                if versions == recorded_versions {
                    let remedy = "measure it, then record it by build-ptx --bless-sass";
                    verdict.refused.push(format!("{found}\n      {remedy}"));
                } else {
                    verdict.warnings.push(format!("{found}\n      recorded with {recorded_versions}"));
                }
            }
            Some(_) => {}
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops(hot: &str) -> Loops {
        Loops::from([("k1".to_owned(), vec![hot.to_owned(), "HGMMA".to_owned()]), ("k2".to_owned(), vec![])])
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let text = render("rustc 1, LLVM 2, ptxas 3", &loops("HGMMA*8 MUFU*21 DEPBAR"));
        assert_eq!(parse(&text), ("rustc 1, LLVM 2, ptxas 3", loops("HGMMA*8 MUFU*21 DEPBAR")));
        assert_eq!(
            compare(&text, "rustc 1, LLVM 2, ptxas 3", &loops("HGMMA*8 MUFU*21 DEPBAR")),
            Verdict::default()
        );
    }

    #[test]
    fn another_order_is_refused_under_the_recorded_versions_and_warned_of_under_others() {
        let record = render("v1", &loops("HGMMA*8 MUFU*21 DEPBAR"));
        let now = loops("HGMMA*8 DEPBAR MUFU*21");
        let same = compare(&record, "v1", &now);
        assert!(same.refused[0].contains("was HGMMA*8 MUFU*21 DEPBAR | HGMMA\n"), "{same:?}");
        assert!(same.refused[0].contains("is  HGMMA*8 DEPBAR MUFU*21 | HGMMA\n"), "{same:?}");
        assert_eq!((same.refused.len(), same.warnings.len()), (1, 0));
        let other = compare(&record, "v2", &now);
        assert_eq!((other.refused.len(), other.warnings.len()), (0, 1));
    }

    #[test]
    fn a_kernel_without_a_record_is_warned_of() {
        let verdict = compare("", "v1", &loops("HGMMA"));
        assert_eq!((verdict.refused.len(), verdict.warnings.len()), (0, 2));
    }
}
