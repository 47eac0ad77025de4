//! Whether an instruction's modifiers are those of one of its forms.

use super::forms::{FORMS, SETS, VECTORS};
use crate::syntax::ast::Instruction;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Opcodes, separated by `|`, and a form of theirs: slots for modifiers, separated by spaces. A slot is
///
/// | slot | takes |
/// |---|---|
/// | `a\|b` | one of these modifiers, which must be there |
/// | `a\|b?` | one of these, if it is there |
/// | `>a\|b` | one of these behind the modifier of the slot before |
///
/// Every modifier needs a slot; but for `>` their order does not matter, as it does not to ptxas. `@name`
/// stands for the set, or for the several forms, of that name.
pub(super) struct Form(pub(super) &'static str, pub(super) &'static str);

struct Slot {
    names: Vec<&'static str>,
    optional: bool,
    behind: bool,
}

impl Slot {
    fn parse(word: &'static str) -> Self {
        let (word, optional) = match word.strip_suffix('?') {
            Some(word) => (word, true),
            None => (word, false),
        };
        let (word, behind) = match word.strip_prefix('>') {
            Some(word) => (word, true),
            None => (word, false),
        };
        let set = |name: &'static str| {
            let found = SETS.iter().find(|(set, _)| *set == name);
            found.map_or(name, |(_, names)| names).split('|')
        };
        Self { names: word.split('|').flat_map(set).collect(), optional, behind }
    }
}

/// The forms by opcode.
static SHAPES: LazyLock<HashMap<&'static str, Vec<Vec<Slot>>>> = LazyLock::new(|| {
    let mut shapes: HashMap<&str, Vec<Vec<Slot>>> = HashMap::new();
    for Form(opcodes, slots) in FORMS {
        for opcode in opcodes.split('|') {
            let of_opcode = shapes.entry(opcode).or_default();
            let words: Vec<&str> = slots.split_whitespace().collect();
            let vectors =
                words.iter().find_map(|word| VECTORS.iter().find(|(name, _)| name == word));
            let Some((name, expansions)) = vectors else {
                of_opcode.push(words.into_iter().map(Slot::parse).collect());
                continue;
            };
            for expansion in *expansions {
                let others = words.iter().filter(|word| *word != name).copied();
                let all = others.chain(expansion.split_whitespace());
                of_opcode.push(all.map(Slot::parse).collect());
            }
        }
    }
    shapes
});

/// Whether the slots take all modifiers.
fn fits(slots: &[Slot], modifiers: &[String]) -> bool {
    let mut used = 0u64;
    let mut last = 0;
    for Slot { names, optional, behind } in slots {
        let first = if *behind { last } else { 0 };
        let mut free = (first..modifiers.len().min(64)).filter(|at| used >> at & 1 == 0);
        match free.find(|&at| names.contains(&modifiers[at].as_str())) {
            Some(at) => {
                used |= 1 << at;
                last = at;
            }
            None if *optional => {}
            None => return false,
        }
    }
    used.count_ones() as usize == modifiers.len()
}

/// Says that no form of the instruction has its modifiers.
pub(crate) fn misshapen(ins: &Instruction) -> Option<String> {
    let shapes = SHAPES.get(ins.opcode.as_str())?;
    if shapes.iter().any(|slots| fits(slots, &ins.modifiers)) {
        return None;
    }
    let modifiers = ins.modifiers.join(".");
    Some(format!("no form of {} has the modifiers .{modifiers}", ins.opcode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_sets_that_there_are() {
        let known = |name: &str| {
            !name.starts_with('@')
                || SETS.iter().any(|(set, _)| *set == name)
                || VECTORS.iter().any(|(set, _)| *set == name)
        };
        for Form(opcodes, slots) in FORMS {
            for word in slots.split_whitespace() {
                let word = word.trim_end_matches('?').trim_start_matches('>');
                assert!(word.split('|').all(known), "{opcodes}: {word}");
            }
        }
        assert_eq!(SHAPES["add"].iter().filter(|slots| slots.len() == 1).count(), 2);
    }

    #[test]
    fn modifiers_need_a_slot_each() {
        let slots: Vec<Slot> = ["rn|rz", "ftz?", "f32", ">f16|bf16"].map(Slot::parse).into();
        let fit = |modifiers: &[&str]| {
            let modifiers: Vec<String> = modifiers.iter().map(|&name| name.to_owned()).collect();
            fits(&slots, &modifiers)
        };
        assert!(fit(&["rn", "f32", "f16"]) && fit(&["ftz", "rz", "f32", "bf16"]));
        assert!(!fit(&["f32", "f16"]) && !fit(&["rn", "f16", "f32"]));
        assert!(!fit(&["rn", "rn", "f32", "f16"]) && !fit(&["rn", "f32"]));
    }
}
