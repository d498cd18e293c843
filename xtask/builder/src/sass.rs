//! Reads machine code: in which order a kernel's hot loops multiply, wait and exponentiate.
//!
//! A Hopper kernel is fast because the exponentials of one tile run while the tensor cores multiply the next. ptxas
//! decides at which instruction the wait for the product stands, and a new version may decide otherwise without a
//! warning. The order is visible in the disassembly, without a GPU.

use crate::cuda::Tool;
use crate::error::Result;
use crate::process::run;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::process::Command;

/// An instruction whose place in the loop matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `HGMMA`: a product of tiles is issued.
    Multiply,
    /// `WARPGROUP.DEPBAR`: products are waited for, until so many groups of them are left in flight.
    Wait(u32),
    /// `MUFU.EX2`: an exponential.
    Exponential,
}

impl Event {
    fn of(instruction: &str) -> Option<Event> {
        if instruction.starts_with("HGMMA") {
            Some(Event::Multiply)
        } else if instruction.starts_with("WARPGROUP.DEPBAR") {
            // `WARPGROUP.DEPBAR.LE gsb0, 0x1 ;`
            let left = instruction.rsplit("0x").next()?.trim_end_matches([' ', ';']);
            Some(Event::Wait(u32::from_str_radix(left, 16).unwrap_or(0)))
        } else if instruction.starts_with("MUFU.EX2") {
            Some(Event::Exponential)
        } else {
            None
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Multiply => f.write_str("HGMMA"),
            Event::Wait(left) => write!(f, "DEPBAR({left})"),
            Event::Exponential => f.write_str("MUFU"),
        }
    }
}

/// The events of one pass through an innermost loop, equal neighbours counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotLoop(Vec<(Event, usize)>);

impl HotLoop {
    fn new(events: impl Iterator<Item = Event>) -> Self {
        let mut runs: Vec<(Event, usize)> = Vec::new();
        for event in events {
            match runs.last_mut() {
                Some((last, count)) if *last == event => *count += 1,
                _ => runs.push((event, 1)),
            }
        }
        HotLoop(runs)
    }

    /// Whether exponentials are computed while a product is in flight.
    pub fn overlaps(&self) -> bool {
        let mut in_flight = false;
        self.0.iter().any(|(event, _)| {
            match event {
                Event::Multiply => in_flight = true,
                Event::Wait(left) => in_flight &= *left > 0,
                Event::Exponential => return in_flight,
            }
            false
        })
    }
}

impl fmt::Display for HotLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (event, count)) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            match count {
                1 => write!(f, "{space}{event}")?,
                _ => write!(f, "{space}{event}*{count}")?,
            }
        }
        Ok(())
    }
}

/// The machine code of a cubin as text.
///
/// # Errors
/// Where the disassembler cannot be run or refuses the file.
pub fn disassemble(nvdisasm: &Tool, cubin: &Path) -> Result<String> {
    run(Command::new(&nvdisasm.path).arg("-c").arg(cubin))
}

/// The innermost loops that multiply, in the order of the text.
pub fn hot_loops(disassembly: &str) -> Vec<HotLoop> {
    let mut labels = HashMap::new();
    let mut instructions = Vec::new();
    let mut branches = Vec::new();
    for line in disassembly.lines().map(str::trim) {
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, instructions.len());
        } else if let Some(instruction) = instruction(line) {
            if let Some(target) = branch_target(instruction) {
                branches.push((instructions.len(), target));
            }
            instructions.push(instruction);
        }
    }
    let multiplies = |from: usize, to: usize| instructions[from..=to].iter().any(|i| i.starts_with("HGMMA"));
    let mut loops: Vec<(usize, usize)> = branches
        .iter()
        .filter_map(|(at, target)| Some((*labels.get(target)?, *at)))
        .filter(|&(from, to)| from <= to && multiplies(from, to))
        .collect();
    // A branch back from code that was moved out of the way spans whatever lies between, so the short ones are the
    // loops, and what crosses or holds one of them is none.
    loops.sort_by_key(|(from, to)| to - from);
    let mut innermost: Vec<(usize, usize)> = Vec::new();
    for (from, to) in loops {
        if innermost.iter().all(|&(start, end)| to < start || end < from) {
            innermost.push((from, to));
        }
    }
    innermost.sort_unstable();
    innermost
        .into_iter()
        .map(|(from, to)| HotLoop::new(instructions[from..=to].iter().filter_map(|i| Event::of(i))))
        .collect()
}

/// The instruction of a line `/*0120*/ @!P0 BRA …`, without its address and predicate.
fn instruction(line: &str) -> Option<&str> {
    let (_address, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let rest = rest.trim_start();
    match rest.strip_prefix('@') {
        Some(predicated) => predicated.split_once(' ').map(|(_, instruction)| instruction.trim_start()),
        None if rest.is_empty() => None,
        None => Some(rest),
    }
}

/// The label in "BRA `(.L_x_1) ;".
fn branch_target(instruction: &str) -> Option<&str> {
    if !instruction.starts_with("BRA") {
        return None;
    }
    let (_, rest) = instruction.split_once("`(")?;
    rest.split_once(')').map(|(label, _)| label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        hot_loops(text).iter().map(HotLoop::to_string).collect()
    }

    const LOOP: &str = "
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0 ;
        /*0020*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
.L_x_1:
.L_x_7:
        /*0030*/                   WARPGROUP.ARRIVE ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT ;
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
.L_x_2:
        /*0060*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3 ;
        /*0070*/              @!P0 BRA `(.L_x_2) ;
        /*0080*/                   MUFU.EX2 R4, R4 ;
        /*0090*/               @P3 MUFU.EX2 R5, R5 ;
        /*00a0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*00b0*/                   MUFU.EX2 R5, R5 ;
        /*00c0*/                   MUFU.RCP R5, R5 ;
        /*00d0*/               @P1 BRA `(.L_x_1) ;
        /*00e0*/                   EXIT ;
";

    #[test]
    fn the_hot_loop_is_the_innermost_that_multiplies() {
        assert_eq!(shown(LOOP), ["HGMMA*2 MUFU*2 DEPBAR(1) MUFU"]);
        assert!(hot_loops(LOOP)[0].overlaps());
    }

    #[test]
    fn loops_around_it_and_jumps_back_from_afar_do_not_count() {
        let around =
            LOOP.replace("EXIT ;", "@P0 BRA `(.L_x_0) ;").replace(".text.kernel:", ".text.kernel:\n.L_x_0:");
        let afar = format!("{around}        /*00f0*/                   BRA `(.L_x_2) ;\n");
        assert_eq!(shown(&afar), ["HGMMA*2 MUFU*2 DEPBAR(1) MUFU"]);
    }

    #[test]
    fn a_wait_before_the_exponentials_is_no_overlap() {
        let late = ".L_x_1:\n /*0010*/ HGMMA.64x64x16.F32 R1 ;\n /*0020*/ WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\n \
                    /*0030*/ MUFU.EX2 R4, R4 ;\n /*0040*/ BRA `(.L_x_1) ;\n";
        assert_eq!(shown(late), ["HGMMA DEPBAR(0) MUFU"]);
        assert!(!hot_loops(late)[0].overlaps());
        // One group may stay in flight: the product of the tile before.
        let one_left = late.replace("0x0", "0x1");
        assert!(hot_loops(&one_left)[0].overlaps());
    }

    #[test]
    fn two_loops_are_listed_in_order_and_others_left_out() {
        let second = LOOP
            .replace("L_x_", "L_y_")
            .replace("HGMMA", "IMAD")
            .replace("IMAD.64x128x16.F32.BF16 R24, gdesc[UR8], R24", "HGMMA.64x128x16 R24");
        assert_eq!(
            shown(&format!("{LOOP}{second}")),
            ["HGMMA*2 MUFU*2 DEPBAR(1) MUFU", "HGMMA MUFU*2 DEPBAR(1) MUFU"]
        );
        assert_eq!(shown(&LOOP.replace("HGMMA", "IMAD")), [""; 0]);
        assert_eq!(shown(""), [""; 0]);
    }
}
