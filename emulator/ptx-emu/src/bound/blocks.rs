//! The basic blocks of a section of machine code, and which follow which.

use super::disassembly::{Function, Instruction};
use std::collections::HashMap;

/// A branch whose target is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "instruction at {address:#06x} of the disassembly: required a known target, actual `{actual}`"
)]
pub struct GraphError {
    /// The address of its first instruction.
    pub address: u64,
    /// Its text.
    pub actual: String,
}

/// Instructions that are executed one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<'a> {
    /// The instructions.
    pub instructions: &'a [Instruction],
    /// Threads may end in it.
    pub exits: bool,
    /// Whether it ends in a trap.
    pub traps: bool,
}

/// Blocks, the first of which is where a kernel begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph<'a> {
    /// Blocks in the order of the code.
    pub blocks: Vec<Block<'a>>,
    /// Edges from and to, each pair once.
    pub edges: Vec<(usize, usize)>,
}

/// The successors of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// The next one.
    Next,
    /// Its targets, and the next one if it is conditional.
    Jump { conditional: bool },
    /// Its targets and the next one.
    Maybe,
    /// Its target, and from a return the next one.
    Call,
    /// The instruction behind some call, or none.
    Return,
    /// Nowhere; to the next one if it is conditional.
    End { conditional: bool },
    /// Nowhere, with the whole launch; to the next one if it is conditional.
    Trap { conditional: bool },
}

impl Flow {
    fn of(instruction: &Instruction) -> Self {
        let guarded = instruction.guard.as_deref().is_some_and(|guard| guard != "PT");
        // `BRA.U UP0, ..` and `BRA.DIV` have their condition among the operands.
        let tested = !instruction.operands.starts_with('`');
        match instruction.base() {
            // Taken by warps that have diverged, to a longer way to the same results.
            "BRA" if instruction.has("DIV") => Self::Next,
            "BRA" | "JMP" => Self::Jump { conditional: guarded || tested },
            "BRX" | "BRXU" | "JMX" | "JMXU" => Self::Jump { conditional: guarded },
            "WARPSYNC" if instruction.has("COLLECTIVE") => Self::Call,
            "CALL" if guarded => Self::Maybe,
            "CALL" => Self::Call,
            "RET" | "ENDCOLLECTIVE" => Self::Return,
            "EXIT" | "KILL" => Self::End { conditional: guarded },
            "BPT" => Self::Trap { conditional: guarded },
            _ => Self::Next,
        }
    }
}

impl<'a> Graph<'a> {
    /// The blocks of a section.
    ///
    /// # Errors
    /// [`GraphError`]: a branch without a target that is known.
    pub fn of(code: &'a Function) -> Result<Self, GraphError> {
        let all = &code.instructions;
        let labels: HashMap<&str, usize> =
            code.labels.iter().map(|(label, at)| (label.as_str(), *at)).collect();
        let mut starts = vec![0];
        starts.extend(code.labels.iter().map(|(_, at)| *at));
        let ends = all.iter().enumerate().filter(|(_, one)| Flow::of(one) != Flow::Next);
        starts.extend(ends.map(|(at, _)| at + 1));
        starts.retain(|at| *at < all.len());
        starts.sort_unstable();
        starts.dedup();
        let block_at = |at: usize| starts.partition_point(|start| *start <= at) - 1;
        let after_calls: Vec<usize> = all
            .iter()
            .enumerate()
            .filter(|(at, one)| {
                matches!(Flow::of(one), Flow::Call | Flow::Maybe) && at + 1 < all.len()
            })
            .map(|(at, _)| block_at(at + 1))
            .collect();
        let (mut blocks, mut edges) = (Vec::new(), Vec::new());
        for (from, &start) in starts.iter().enumerate() {
            let end = starts.get(from + 1).copied().unwrap_or(all.len());
            let instructions = &all[start..end];
            let last = &instructions[instructions.len() - 1];
            let next = (end < all.len()).then_some(from + 1);
            let flow = Flow::of(last);
            let mut targets = Vec::new();
            let mut exits = false;
            match flow {
                Flow::Next => {}
                Flow::Jump { .. } | Flow::Maybe | Flow::Call => {
                    for label in last.targets() {
                        match labels.get(label) {
                            Some(at) if *at < all.len() => targets.push(block_at(*at)),
                            // A function with its own section, which returns.
                            _ if matches!(flow, Flow::Call | Flow::Maybe) => {
                                targets.extend(next);
                            }
                            _ => return Err(unknown(last)),
                        }
                    }
                    if targets.is_empty() && flow != Flow::Call {
                        return Err(unknown(last));
                    }
                    // A call through a register.
                    if targets.is_empty() {
                        targets.extend(next);
                    }
                }
                Flow::Return => {
                    targets.clone_from(&after_calls);
                    exits = targets.is_empty();
                }
                Flow::End { .. } => exits = true,
                Flow::Trap { .. } => {}
            }
            match flow {
                Flow::Next
                | Flow::Maybe
                | Flow::Jump { conditional: true }
                | Flow::End { conditional: true }
                | Flow::Trap { conditional: true } => {
                    targets.extend(next);
                    exits |= next.is_none();
                }
                Flow::Call | Flow::Return if last.guard.is_some() => targets.extend(next),
                Flow::Call
                | Flow::Return
                | Flow::Jump { conditional: false }
                | Flow::End { conditional: false }
                | Flow::Trap { conditional: false } => {}
            }
            targets.sort_unstable();
            targets.dedup();
            edges.extend(targets.into_iter().map(|to| (from, to)));
            let traps = flow == Flow::Trap { conditional: false };
            blocks.push(Block { instructions, exits, traps });
        }
        Ok(Self { blocks, edges })
    }
}

fn unknown(instruction: &Instruction) -> GraphError {
    let Instruction { address, opcode, operands, .. } = instruction;
    GraphError { address: *address, actual: format!("{opcode} {operands}") }
}
