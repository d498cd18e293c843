//! Instructions that all lanes of a warp have to meet together, where the compiled code lets only some of them come.
//!
//! rustc does not tell LLVM that an `asm!` is such an instruction, so LLVM may copy it into both sides of a branch or
//! sink it into one. Nothing notices: the sources are right, the simulated device runs the sources, and the assembler
//! takes the text. A warp whose lanes meet two copies of a block barrier arrives twice, and the block hangs.
//!
//! Which registers may differ between the lanes of a warp is followed from the thread's index through the text, and a
//! branch on such a register is taken to last until all its ways meet again. What lies in memory counts as equal for
//! all lanes where its address does.

use std::collections::{BTreeMap, BTreeSet};

/// One instruction.
struct Instruction<'a> {
    predicate: Option<&'a str>,
    opcode: &'a str,
    operands: Vec<&'a str>,
}

/// Instructions that follow each other, and where they lead.
#[derive(Default)]
struct Block<'a> {
    instructions: Vec<Instruction<'a>>,
    next: Vec<usize>,
}

/// The instructions of an entry that must not be where they are.
pub(crate) fn misplaced(text: &str) -> Vec<&str> {
    let blocks = blocks(text);
    let reached = reached_by_some(&blocks);
    let instructions = reached.iter().flat_map(|&block| &blocks[block].instructions);
    let found: BTreeSet<&str> = instructions.filter(|i| i.needs_the_warp()).map(|i| i.opcode).collect();
    found.into_iter().collect()
}

impl<'a> Instruction<'a> {
    fn parse(statement: &'a str) -> Option<Self> {
        let mut rest = statement.trim().trim_start_matches(['{', '}']).trim_start();
        // A label of an inline text's own, such as that of a loop of one instruction.
        if let Some((label, after)) = rest.split_once(':')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            rest = after.trim_start();
        }
        let mut predicate = None;
        if let Some(guarded) = rest.strip_prefix('@') {
            let (name, after) = guarded.split_once(char::is_whitespace)?;
            (predicate, rest) = (Some(name.trim_start_matches('!')), after.trim_start());
        }
        let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if !opcode.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let mut all = Vec::new();
        let (mut depth, mut start) = (0, 0);
        for (at, c) in operands.char_indices() {
            match c {
                '{' | '[' => depth += 1,
                '}' | ']' => depth -= 1,
                ',' if depth == 0 => {
                    all.push(operands[start..at].trim());
                    start = at + 1;
                }
                _ => {}
            }
        }
        all.push(operands[start..].trim());
        Some(Instruction { predicate, opcode, operands: all })
    }

    fn family(&self) -> &str {
        self.opcode.split('.').next().unwrap_or_default()
    }

    fn needs_the_warp(&self) -> bool {
        self.opcode.contains(".aligned") || self.family() == "bar" && !self.opcode.starts_with("bar.warp")
    }

    fn branches_to(&self) -> Option<&'a str> {
        (self.family() == "bra").then(|| self.operands[0]).filter(|label| label.starts_with('$'))
    }

    /// The registers that it writes.
    fn written(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let silent = ["bar", "bra", "cp", "fence", "red", "st", "wgmma"].contains(&self.family());
        let first = self.operands[0];
        let written = !silent && !first.starts_with('[');
        registers(if written { first } else { "" })
    }

    /// Whether what it writes may differ between lanes, if these registers may.
    fn varies(&self, varying: &BTreeSet<&str>) -> bool {
        let any = |operands: &[&str]| {
            operands.iter().flat_map(|o| registers(o)).any(|register| varying.contains(register))
        };
        let predicated = self.predicate.is_some_and(|register| varying.contains(register));
        let rest = &self.operands[1..];
        let result = match self.family() {
            "atom" | "ldmatrix" | "mma" => true,
            "vote" | "mbarrier" => false,
            // Lanes that all read one lane get the same.
            "shfl" if self.opcode.contains(".idx") => any(rest.get(1..2).unwrap_or_default()),
            _ => any(rest) || rest.iter().any(|o| o.starts_with("%tid") || o.starts_with("%lane")),
        };
        predicated || result
    }

    /// The bits of its result that differ between lanes, where it takes bits out of the thread's index.
    fn lane_bits(&self, known: &BTreeMap<&str, u32>) -> Option<u32> {
        if self.family() == "mov" {
            return (self.operands.get(1) == Some(&"%tid.x")).then_some(31);
        }
        let [_, from, number] = self.operands[..] else { return None };
        let (bits, number) = (*known.get(from)?, number.parse::<i32>().ok()?);
        match self.family() {
            "shr" => Some(bits.unbounded_shr(number as u32)),
            "shl" => Some(bits.unbounded_shl(number as u32)),
            "and" => Some(bits & number as u32),
            _ => None,
        }
    }
}

/// The registers that an operand names.
fn registers(operand: &str) -> impl Iterator<Item = &str> {
    operand
        .split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '%' | '.' | '_' | '$')))
        .filter(|word| word.starts_with('%') && !word.contains('.') || matches!(*word, "p" | "q" | "done"))
}

/// The blocks of an entry, in the order of the text.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let body = text.split_once(".entry").map_or("", |(_, entry)| entry);
    let body = body.split_once('{').map_or("", |(_, body)| body);
    let mut blocks = vec![Block::default()];
    let mut labels = BTreeMap::new();
    for line in body.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
        if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with('$')) {
            blocks.push(Block::default());
            labels.insert(label, blocks.len() - 1);
            continue;
        }
        for instruction in line.split(';').filter_map(Instruction::parse) {
            let ends = instruction.branches_to().is_some() || ["ret", "exit"].contains(&instruction.opcode);
            let last = blocks.last_mut().expect("there is a first block");
            last.instructions.push(instruction);
            if ends {
                blocks.push(Block::default());
            }
        }
    }
    for index in 0..blocks.len() {
        let last = blocks[index].instructions.last();
        let target = last.and_then(Instruction::branches_to).and_then(|label| labels.get(label));
        let always =
            last.is_some_and(|i| i.predicate.is_none() && ["bra", "ret", "exit"].contains(&i.family()));
        let follower = Some(index + 1).filter(|&next| !always && next < blocks.len());
        blocks[index].next = target.copied().into_iter().chain(follower).collect();
    }
    blocks
}

/// The blocks that only some lanes of a warp may reach.
fn reached_by_some(blocks: &[Block<'_>]) -> BTreeSet<usize> {
    let mut lane_bits = BTreeMap::new();
    for instruction in blocks.iter().flat_map(|block| &block.instructions) {
        if let Some(bits) = instruction.lane_bits(&lane_bits) {
            lane_bits.extend(instruction.written().map(|register| (register, bits)));
        }
    }
    // Numbers of warps, and what else all lanes have in common.
    let same = |register| lane_bits.get(register) == Some(&0);
    let meetings = meetings(blocks);
    // The registers that may differ between lanes where a block begins.
    let mut varying = vec![BTreeSet::new(); blocks.len()];
    let mut reached = BTreeSet::new();
    let mut open: BTreeSet<usize> = (0..blocks.len()).collect();
    while let Some(index) = open.pop_first() {
        let block = &blocks[index];
        let mut now: BTreeSet<&str> = varying[index].clone();
        for instruction in &block.instructions {
            let varies = instruction.varies(&now);
            for register in instruction.written() {
                if varies && !same(register) {
                    now.insert(register);
                } else if instruction.predicate.is_none() {
                    now.remove(register);
                }
            }
        }
        let branch = block.instructions.last().filter(|_| block.next.len() > 1);
        let parts = branch.and_then(|i| i.predicate).is_some_and(|register| now.contains(register));
        if parts {
            let between = between(blocks, index, meetings[index]);
            if let Some(meeting) = meetings[index] {
                // Lanes come from different ways.
                let instructions = between.iter().flat_map(|&block| &blocks[block].instructions);
                let before = varying[meeting].len();
                varying[meeting].extend(instructions.flat_map(Instruction::written));
                open.extend(Some(meeting).filter(|&meeting| varying[meeting].len() > before));
            }
            reached.extend(between);
        }
        for &next in &block.next {
            let before = varying[next].len();
            varying[next].extend(&now);
            open.extend(Some(next).filter(|&next| varying[next].len() > before));
        }
    }
    reached
}

/// For each block, the first one that all ways from it go through.
fn meetings(blocks: &[Block<'_>]) -> Vec<Option<usize>> {
    let mut after: Vec<BTreeSet<usize>> = vec![(0..blocks.len()).collect(); blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..blocks.len()).rev() {
            let mut common = match blocks[index].next.as_slice() {
                [] => BTreeSet::new(),
                [next] => after[*next].clone(),
                [next, others @ ..] => {
                    others.iter().fold(after[*next].clone(), |common, other| &common & &after[*other])
                }
            };
            common.insert(index);
            if common != after[index] {
                after[index] = common;
                changed = true;
            }
        }
    }
    let first = |index: usize| {
        let later = after[index].iter().copied().filter(|&block| block != index);
        later.max_by_key(|&block| after[block].len())
    };
    (0..blocks.len()).map(first).collect()
}

/// The blocks on the ways from a branch to where they meet.
fn between(blocks: &[Block<'_>], branch: usize, meeting: Option<usize>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = blocks[branch].next.clone();
    while let Some(block) = open.pop() {
        if Some(block) != meeting && found.insert(block) {
            open.extend(&blocks[block].next);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(body: &str) -> Vec<String> {
        let text = format!(
            ".version 8.3\n.visible .entry a(\n\t.param .b64 a_param_0\n)\n.maxntid 128, 1, 1\n{{\n\t.reg .b32 %r<9>;\n{body}\tret;\n}}\n"
        );
        misplaced(&text).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_barrier_on_both_sides_of_a_branch_is_found() {
        let copied = "\tmov.u32 %r1, %tid.x;\n\tsetp.ne.b32 \t%p1, %r1, 0;\n\t@%p1 bra \t$L__BB2_2;\n\tbra.uni \t$L__BB2_1;
$L__BB2_2:\n\tbar.sync 0;\n\tbra.uni \t$L__BB2_3;\n$L__BB2_1:\n\tmbarrier.init.shared::cta.b64 [%r7], %r2;\n\tbar.sync 0;\n$L__BB2_3:\n";
        assert_eq!(found_in(copied), ["bar.sync"]);
        let uniform = copied.replace("mov.u32 %r1, %tid.x", "mov.u32 %r1, %ctaid.x");
        assert_eq!(found_in(&uniform), [""; 0]);
    }

    #[test]
    fn what_comes_after_the_ways_have_met_is_right() {
        let body = "\tmov.u32 %r1, %laneid;\n\tsetp.ne.b32 %p1, %r1, 0;\n\t@%p1 bra $L__BB0_2;\n\tmbarrier.arrive.shared::cta.b64 _, [%r7];
$L__BB0_2:\n\t{ .reg .pred done;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%r7], %r8;\n@!done bra WAIT; }\n\tbar.sync \t0;
\twgmma.fence.sync.aligned;\n\tbar.warp.sync -1;\n";
        assert_eq!(found_in(body), [""; 0]);
    }

    #[test]
    fn a_value_that_lanes_bring_from_different_ways_differs() {
        let body = |before: &str| {
            format!(
                "\tmov.u32 %r1, %tid.x;\n{before}\tsetp.lt.u32 %p1, %r2, 7;\n\tmov.b32 %r3, 0;\n\t@%p1 bra $L__BB0_2;\n\tmov.b32 %r3, 1;
$L__BB0_2:\n\tsetp.eq.b32 %p2, %r3, 0;\n\t@%p2 bra $L__BB0_4;\n\tldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r4, %r5, %r6, %r7}}, [%r8];
$L__BB0_4:\n"
            )
        };
        let ldmatrix = ["ldmatrix.sync.aligned.m8n8.x4.shared.b16"];
        assert_eq!(found_in(&body("\tadd.s32 %r2, %r1, 5;\n")), ldmatrix);
        assert_eq!(found_in(&body("\tld.global.b32 %r2, [%r1];\n")), ldmatrix);
        assert_eq!(found_in(&body("\tshfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;\n")), ldmatrix);
        assert_eq!(found_in(&body("\tshr.u32 %r2, %r1, 4;\n")), ldmatrix);
        // The number of a warp, the value of one lane, the opinion of all, and a register that was something else.
        assert_eq!(found_in(&body("\tshr.u32 %r2, %r1, 5;\n")), [""; 0]);
        assert_eq!(found_in(&body("\tshr.u32 %r2, %r1, 1;\n\tand.b32 %r2, %r2, -16;\n")), [""; 0]);
        assert_eq!(found_in(&body("\tshfl.sync.idx.b32 %r2, %r1, 0, 31, -1;\n")), [""; 0]);
        assert_eq!(found_in(&body("\tmov.b32 %r2, %r1;\n\tmov.b32 %r2, 6;\n")), [""; 0]);
        let vote = "\t{ .reg .pred p, q; setp.ne.u32 p, %r1, 0; vote.sync.any.pred q, p, -1; selp.u32 %r2, 1, 0, q; }\n";
        assert_eq!(found_in(&body(vote)), [""; 0]);
    }

    #[test]
    fn a_loop_that_lanes_leave_one_by_one_has_no_barrier() {
        let body = |inside: &str, after: &str| {
            format!(
                "\tmov.u32 %r1, %tid.x;\n$L__BB0_1:\n{inside}\tadd.s32 %r1, %r1, 128;\n\tsetp.lt.u32 %p1, %r1, 200;\n\t@%p1 bra $L__BB0_1;\n{after}"
            )
        };
        assert_eq!(found_in(&body("\tbar.sync 0;\n", "")), ["bar.sync"]);
        assert_eq!(found_in(&body("", "\tbar.sync 0;\n")), [""; 0]);
    }

    #[test]
    fn what_is_not_ptx_has_nothing_misplaced() {
        for text in [
            "",
            "ELF {{{ ;;; }}}",
            ".entry",
            ".entry a() {\n@\n@%p1 bra;\nshr;\nmov x;\nshfl.sync.idx y;\n%tid.x\n",
            "täglich; ÄÖ{}",
        ] {
            assert_eq!(misplaced(text), [""; 0], "{text}");
        }
    }
}
