//! Instructions whose machine code executes as often as the PTX does.

use super::blocks::Graph;
use crate::{Executed, Issued};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The freedom of ptxas with an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The instruction has an effect: it is executed as often as PTX says.
    Effect,
    /// The instruction has none: ptxas might take it out of a loop, but not repeat its line
    /// elsewhere.
    Value,
}

/// The machine code of a PTX instruction: one machine instruction of these opcodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Becomes {
    kind: Kind,
    opcodes: &'static [&'static str],
}

/// Returns the machine instruction that a PTX opcode becomes; `None` if it is no anchor.
///
/// Polls are no anchors, because a poll that fails is no work that a launch must do: waits for
/// mbarriers, strong loads, atomics with a result.
fn becomes(opcode: &str) -> Option<Becomes> {
    let has = |part: &str| opcode.split('.').any(|one| one == part);
    let begins = |start: &str| opcode.starts_with(start);
    let effect = |opcodes| Some(Becomes { kind: Kind::Effect, opcodes });
    let value = |opcodes| Some(Becomes { kind: Kind::Value, opcodes });
    match opcode.split('.').next().unwrap_or_default() {
        "st" if has("param") || has("async") => None,
        "st" => effect(&["ST", "STG", "STS", "STL", "STAS"]),
        "ld" if ["param", "const", "acquire", "relaxed", "volatile", "mmio"]
            .map(has)
            .contains(&true) =>
        {
            None
        }
        "ld" => value(&["LD", "LDG", "LDS", "LDL"]),
        "red" if !has("async") => effect(&["RED", "REDG"]),
        "bar" | "barrier" if begins("bar.warp") || has("cluster") => None,
        "bar" | "barrier" => effect(&["BAR"]),
        "mbarrier" if begins("mbarrier.arrive") || begins("mbarrier.init") => effect(&["SYNCS"]),
        "cp" if has("bulk") && (has("commit_group") || has("wait_group") || has("prefetch")) => {
            None
        }
        "cp" if begins("cp.async.bulk") => effect(&["UBLKCP", "UTMALDG", "UTMASTG"]),
        "cp" if begins("cp.async.ca") || begins("cp.async.cg") => effect(&["LDGSTS"]),
        "wgmma" if begins("wgmma.mma_async") => effect(&["HGMMA", "QGMMA", "IGMMA"]),
        "mma" => value(&["HMMA", "IMMA", "QMMA", "OMMA"]),
        "ldmatrix" => value(&["LDSM"]),
        "stmatrix" => effect(&["STSM"]),
        "shfl" => value(&["SHFL"]),
        "tcgen05" if begins("tcgen05.mma") => effect(&["UTCHMMA", "UTCQMMA", "UTCOMMA", "UTCIMMA"]),
        "tcgen05" if begins("tcgen05.cp") => effect(&["UTCCP"]),
        "tcgen05" if begins("tcgen05.ld") => value(&["LDTM"]),
        "tcgen05" if begins("tcgen05.st") => effect(&["STTM"]),
        _ => None,
    }
}

/// A line of PTX and the blocks that have its machine instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// Line of PTX.
    pub line: u32,
    /// The number of executions with its guard true.
    pub executed: Executed,
    /// Blocks, and how many copies of the instruction each has.
    pub copies: Vec<(usize, u64)>,
    /// Blocks that execute no more often than the line.
    pub at_most: Vec<usize>,
}

impl Anchor {
    /// Warps that executed the line, at least.
    #[must_use]
    pub fn warps(&self) -> u64 {
        self.executed.first_lanes.max(self.executed.threads.div_ceil(32))
    }
}

/// Opcode of a line of PTX, and whether it has a predicate.
fn opcode_of(line: &str) -> (&str, bool) {
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || c == '{');
    let (guarded, rest) = match line.strip_prefix('@') {
        Some(rest) => (true, rest.split_once(char::is_whitespace).map_or("", |(_, rest)| rest)),
        None => (false, line),
    };
    let end = |c: char| c.is_whitespace() || c == ';';
    (rest.trim_start().split(end).next().unwrap_or_default(), guarded)
}

/// The anchors of a kernel: those with an effect, and those without.
///
/// A line with several instructions is none, and neither is one whose machine instruction is not there:
/// ptxas merges loads and stores. If it merged some instruction with an effect, others of the same opcodes
/// may stand for it, and then no block is said to execute no more often than they.
#[must_use]
pub fn anchors(ptx: &str, issued: &[Issued], graph: &Graph<'_>) -> (Vec<Anchor>, Vec<Anchor>) {
    let lines: Vec<&str> = ptx.lines().collect();
    let mut by_line: BTreeMap<u32, Vec<Issued>> = BTreeMap::new();
    for one in issued {
        by_line.entry(one.line).or_default().push(*one);
    }
    let mut machine: HashMap<u32, Vec<(usize, &str, bool)>> = HashMap::new();
    for (at, block) in graph.blocks.iter().enumerate() {
        for one in block.instructions {
            if let Some(line) = one.line {
                let guarded = one.guard.is_some();
                machine.entry(line).or_default().push((at, one.base(), guarded));
            }
        }
    }
    let mut merged: BTreeSet<&'static [&'static str]> = BTreeSet::new();
    let (mut effects, mut values) = (Vec::new(), Vec::new());
    for (line, found) in by_line {
        let text = lines.get(line as usize - 1).copied().unwrap_or_default();
        let (opcode, guarded) = opcode_of(text);
        let Some(Becomes { kind, opcodes }) = becomes(opcode) else { continue };
        let mut copies: BTreeMap<usize, u64> = BTreeMap::new();
        let mut at_most = BTreeSet::new();
        for &(block, base, predicated) in machine.get(&line).into_iter().flatten() {
            if opcodes.contains(&base) {
                *copies.entry(block).or_default() += 1;
                if kind == Kind::Effect && !guarded && !predicated {
                    at_most.insert(block);
                }
            }
        }
        let [issued] = found[..] else {
            merged.insert(opcodes);
            continue;
        };
        if copies.is_empty() {
            if kind == Kind::Effect && issued.executed.threads != 0 {
                merged.insert(opcodes);
            }
            continue;
        }
        let anchor = Anchor {
            line,
            executed: issued.executed,
            copies: copies.into_iter().collect(),
            at_most: at_most.into_iter().collect(),
        };
        match kind {
            Kind::Effect => effects.push((opcodes, anchor)),
            Kind::Value => values.push(anchor),
        }
    }
    let effects = effects.into_iter().map(|(opcodes, mut anchor)| {
        if merged.contains(opcodes) {
            anchor.at_most.clear();
        }
        anchor
    });
    (effects.collect(), values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_no_anchors() {
        for opcode in [
            "mbarrier.try_wait.parity.shared::cta.b64",
            "ld.acquire.gpu.global.b32",
            "ld.param.b64",
            "atom.global.cas.b32",
            "bar.warp.sync",
            "cp.async.bulk.commit_group",
        ] {
            assert_eq!(becomes(opcode), None, "{opcode}");
        }
        assert_eq!(becomes("st.release.gpu.global.b32").map(|one| one.kind), Some(Kind::Effect));
        assert_eq!(becomes("ld.global.nc.b32").map(|one| one.kind), Some(Kind::Value));
    }

    #[test]
    fn opcodes_of_lines() {
        assert_eq!(opcode_of("\tst.shared.b32 \t[%r1], %r2;"), ("st.shared.b32", false));
        assert_eq!(opcode_of("\t@!%p1 bra \t$L__BB0_2;"), ("bra", true));
        assert_eq!(opcode_of("\tret;"), ("ret", false));
    }
}
