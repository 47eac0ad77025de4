//! The mutants of an instruction, each of which removes or weakens one synchronisation.

use super::{Edit, Mutation};
use ptx_emu_core::syntax::ast::{Block, Guard, Imm, Instruction, Operand, Pos, RegDecl, Statement};

/// Register that a mutant declares for itself.
const SCRATCH: &str = "%mutated";
/// Change of an `expect_tx` byte count: the smallest copy.
const BYTES: i64 = 16;

/// Threads of a warp. They arrive together: one more or less of many is noticed only when
/// a number of phases have added up.
const WARP: i64 = 32;

/// The mutants of one instruction, in a fixed order.
pub(super) fn mutants(ins: &Instruction) -> Vec<(Mutation, Edit)> {
    let modifier = |at: usize| ins.modifiers.get(at).map_or("", String::as_str);
    let named = |name: &str| ins.modifiers.iter().any(|m| m == name);
    let mut found = match (ins.opcode.as_str(), modifier(0)) {
        ("bar" | "barrier", "warp") => vec![remove()],
        ("barrier", "cluster") => {
            let mut found = vec![remove()];
            if named("arrive") {
                found.extend(relaxed(ins, &["release"], false));
            }
            found
        }
        ("bar" | "barrier", _) => barrier(ins),
        ("mbarrier", operation) => mbarrier(ins, operation),
        ("cp", _) => copies(ins),
        ("fence" | "membar", _) => vec![remove()],
        ("griddepcontrol", "wait") => vec![remove()],
        ("wgmma", "fence" | "commit_group") => vec![remove()],
        ("wgmma", "wait_group") => [vec![remove()], more_groups(ins)].concat(),
        ("tcgen05", operation)
            if ["commit", "wait::", "fence::"].iter().any(|name| operation.starts_with(name)) =>
        {
            vec![remove()]
        }
        _ => Vec::new(),
    };
    if matches!(ins.opcode.as_str(), "atom" | "red" | "ld" | "st") {
        found.extend(relaxed(ins, &["acq_rel", "acquire", "release"], true));
    }
    found
}

fn remove() -> (Mutation, Edit) {
    (Mutation::Remove, Edit::Remove)
}

fn replace(mutation: Mutation, ins: Instruction) -> (Mutation, Edit) {
    (mutation, Edit::Replace(vec![Statement::Instruction(ins)]))
}

/// `bar`, `barrier.cta`: removed, or for another number of threads. In the place of a reduction stands its result
/// among threads that all have this one's predicate; the count of a `popc` is 1, or 0.
fn barrier(ins: &Instruction) -> Vec<(Mutation, Edit)> {
    let reduces = ins.modifiers.iter().any(|m| m == "red");
    let mut found = if reduces { alone(ins).into_iter().collect() } else { vec![remove()] };
    let count = if reduces { 2 } else { 1 };
    if ins.operands.len() > count + usize::from(reduces) {
        found.extend(changed(ins, count, 32, Mutation::BarrierCount));
        found.extend(changed(ins, count, -32, Mutation::BarrierCount));
    }
    found
}

/// A reduction that waits for no thread.
fn alone(ins: &Instruction) -> Option<(Mutation, Edit)> {
    let (result, predicate) = (ins.operands.first()?.clone(), ins.operands.last()?.clone());
    let (opcode, modifiers, operands) = match ins.modifiers.last()?.as_str() {
        // `selp` takes no negated predicate.
        "u32" => match predicate {
            Operand::Unary { op: '!', operand } => {
                ("selp", ["u32"].as_slice(), vec![result, number(0), number(1), *operand])
            }
            predicate => {
                ("selp", ["u32"].as_slice(), vec![result, number(1), number(0), predicate])
            }
        },
        _ => match predicate {
            Operand::Unary { op: '!', operand } => {
                ("not", ["pred"].as_slice(), vec![result, *operand])
            }
            predicate => ("mov", ["pred"].as_slice(), vec![result, predicate]),
        },
    };
    let modifiers = modifiers.iter().map(|&name| name.to_owned()).collect();
    let done = Instruction { opcode: opcode.to_owned(), modifiers, operands, ..ins.clone() };
    Some(replace(Mutation::Remove, done))
}

fn mbarrier(ins: &Instruction, operation: &str) -> Vec<(Mutation, Edit)> {
    let last = ins.operands.len().saturating_sub(1);
    let both = |at, by, mutation: fn(i64) -> Mutation| {
        [changed(ins, at, by, mutation), changed(ins, at, -by, mutation)].into_iter().flatten()
    };
    match operation {
        "init" => {
            let many = |bits| (bits as i64) > WARP;
            let threads = matches!(ins.operands.get(1), Some(Operand::Imm(Imm::Int { bits, .. })) if many(*bits));
            both(1, if threads { WARP } else { 1 }, Mutation::InitCount).collect()
        }
        "expect_tx" | "complete_tx" => {
            let mut found = vec![remove()];
            found.extend(both(last, BYTES, Mutation::Bytes));
            found
        }
        "arrive" | "arrive_drop" => {
            let mut found = vec![remove()];
            if ins.modifiers.iter().any(|m| m == "expect_tx") {
                found.extend(both(last, BYTES, Mutation::Bytes));
            }
            found.extend(relaxed(ins, &["release"], false));
            found
        }
        "test_wait" | "try_wait" => {
            let mut found = vec![no_wait(ins)];
            if ins.modifiers.iter().any(|m| m == "parity") {
                found.extend(flipped(ins));
            }
            found.extend(relaxed(ins, &["acquire"], false));
            found
        }
        _ => Vec::new(),
    }
}

/// A wait that finds its phase over at once.
fn no_wait(ins: &Instruction) -> (Mutation, Edit) {
    let done = Instruction {
        opcode: "setp".to_owned(),
        modifiers: ["eq", "u32"].map(str::to_owned).to_vec(),
        operands: ins.operands.first().cloned().into_iter().chain([number(0), number(0)]).collect(),
        ..ins.clone()
    };
    replace(Mutation::Remove, done)
}

/// A wait for the phase of the other parity.
fn flipped(ins: &Instruction) -> Option<(Mutation, Edit)> {
    with_operand(ins, 2, Mutation::Parity, |operand| match operand {
        Operand::Imm(Imm::Int { bits, .. }) => {
            Some(Operand::Imm(Imm::Int { bits: bits ^ 1, unsigned: true }))
        }
        _ => None,
    })
    .or_else(|| computed(ins, 2, Mutation::Parity, "xor", "b32", number(1)))
}

fn copies(ins: &Instruction) -> Vec<(Mutation, Edit)> {
    let named = |name: &str| ins.modifiers.iter().any(|m| m == name);
    if named("mbarrier") && named("arrive") {
        let mut other = ins.clone();
        if named("noinc") {
            other.modifiers.retain(|m| m != "noinc");
        } else {
            // `cp.async.mbarrier.arrive.noinc...`
            other.modifiers.insert(3, "noinc".to_owned());
        }
        return vec![remove(), replace(Mutation::Increment, other)];
    }
    if named("commit_group") || named("wait_all") {
        return vec![remove()];
    }
    if !named("wait_group") {
        return Vec::new();
    }
    let mut found = vec![remove()];
    found.extend(more_groups(ins));
    if named("bulk") && !named("read") {
        let mut weaker = ins.clone();
        let at = weaker.modifiers.iter().position(|m| m == "wait_group").map_or(0, |at| at + 1);
        weaker.modifiers.insert(at, "read".to_owned());
        found.push(replace(Mutation::SourcesOnly, weaker));
    }
    found
}

/// `wait_group N` that leaves one more group in flight.
fn more_groups(ins: &Instruction) -> Vec<(Mutation, Edit)> {
    changed(ins, 0, 1, Mutation::Groups).into_iter().collect()
}

/// Semantics weakened to `.relaxed`. `stated`: only where one of `names` stands;
/// else they are the default, which an operation without any has too.
fn relaxed(ins: &Instruction, names: &[&str], stated: bool) -> Option<(Mutation, Edit)> {
    let at = ins.modifiers.iter().position(|m| names.contains(&m.as_str()));
    let relaxed = "relaxed".to_owned();
    if ins.modifiers.contains(&relaxed) || stated && at.is_none() {
        return None;
    }
    let mut weaker = ins.clone();
    match at {
        Some(at) => weaker.modifiers[at] = relaxed,
        None => {
            // Behind the operation and its variants; the scope is required then.
            let variants = ["arrive", "arrive_drop", "expect_tx", "noComplete", "parity"];
            let operations = ["test_wait", "try_wait", "cluster"];
            let known =
                |m: &String| variants.contains(&m.as_str()) || operations.contains(&m.as_str());
            let end = ins.modifiers.iter().take_while(|m| known(m)).count();
            weaker.modifiers.insert(end, relaxed);
            if ins.opcode == "mbarrier" {
                weaker.modifiers.insert(end + 1, "cta".to_owned());
            }
        }
    }
    Some(replace(Mutation::Relaxed, weaker))
}

fn number(value: u32) -> Operand {
    Operand::Imm(Imm::Int { bits: value.into(), unsigned: true })
}

/// The instruction with operand `at` passed through `change`.
fn with_operand(
    ins: &Instruction,
    at: usize,
    mutation: Mutation,
    change: impl FnOnce(&Operand) -> Option<Operand>,
) -> Option<(Mutation, Edit)> {
    let operand = change(ins.operands.get(at)?)?;
    let mut other = ins.clone();
    other.operands[at] = operand;
    Some(replace(mutation, other))
}

/// The instruction with `by` added to operand `at`; none where a count would not
/// be positive.
fn changed(
    ins: &Instruction,
    at: usize,
    by: i64,
    mutation: fn(i64) -> Mutation,
) -> Option<(Mutation, Edit)> {
    if let Operand::Imm(Imm::Int { bits, .. }) = ins.operands.get(at)? {
        let changed = (*bits as i64).checked_add(by).filter(|&value| value > 0)?;
        return with_operand(ins, at, mutation(by), |_| {
            Some(Operand::Imm(Imm::Int { bits: changed as u64, unsigned: false }))
        });
    }
    let amount = Operand::Imm(Imm::Int { bits: by as u64, unsigned: false });
    computed(ins, at, mutation(by), "add", "s32", amount)
}

/// The instruction with register operand `at` replaced by `opcode` of it and
/// `value`, in its own scope.
fn computed(
    ins: &Instruction,
    at: usize,
    mutation: Mutation,
    opcode: &str,
    ty: &str,
    value: Operand,
) -> Option<(Mutation, Edit)> {
    let operand @ Operand::Ident(_) = ins.operands.get(at)? else {
        return None;
    };
    let pos = ins.pos;
    let scratch = || Operand::Ident(SCRATCH.to_owned());
    let compute = Instruction {
        pos,
        guard: None::<Guard>,
        opcode: opcode.to_owned(),
        modifiers: vec![ty.to_owned()],
        operands: vec![scratch(), operand.clone(), value],
    };
    let mut other = ins.clone();
    other.operands[at] = scratch();
    let declaration =
        RegDecl { pos, vector: 1, ty: "b32".to_owned(), names: vec![(SCRATCH.to_owned(), None)] };
    let block = Block {
        statements: vec![
            Statement::Registers(declaration),
            Statement::Instruction(compute),
            Statement::Instruction(other),
        ],
        end: Pos::default(),
    };
    Some((mutation, Edit::Replace(vec![Statement::Block(block)])))
}
