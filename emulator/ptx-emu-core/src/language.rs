//! The targets and PTX versions that instructions, special registers and directives need. A module
//! is refused for what its own `.target` and `.version` lack, whichever machine loads it, as ptxas
//! does; a later machine runs it if its text is right.
//!
//! Not noticed: differences between targets before `sm_75`.

mod forms;
mod shape;
mod table;

pub(crate) use shape::misshapen;

use crate::gpu::Target;
use crate::syntax::ast::{Instruction, Operand};
use shape::Form;
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;
use table::{DIRECTIVES, FEATURES, REGISTERS, STATIC_SHARED, TARGETS, VERSIONS};

/// A version of PTX, major and minor.
type Version = (u32, u32);

/// Targets that have a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Targets {
    /// This one and all later ones; 0 for all.
    From(u32),
    /// `sm_NNa` of these numbers.
    Own(&'static [u32]),
    /// `sm_NNf` and `sm_NNa` of the families that begin with these numbers.
    Family(&'static [u32]),
}

/// One way to have a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    version: Version,
    targets: Targets,
}

const fn version(major: u32, minor: u32) -> Need {
    from(0, (major, minor))
}

const fn from(number: u32, version: Version) -> Need {
    Need { version, targets: Targets::From(number) }
}

const fn own(numbers: &'static [u32], version: Version) -> Need {
    Need { version, targets: Targets::Own(numbers) }
}

const fn family(numbers: &'static [u32], version: Version) -> Need {
    Need { version, targets: Targets::Family(numbers) }
}

/// Opcodes, separated by `|` (`*`: all); conditions that all must hold, separated by spaces; the ways
/// to have the feature. A condition is one of
///
/// | condition | holds if |
/// |---|---|
/// | `a\|b` | the instruction has one of these modifiers |
/// | `^a` | it has a modifier that begins so |
/// | `!a` | it lacks this modifier |
/// | `#3` | it has at least three operands |
/// | `$a\|b` | its last modifier is one of these |
/// | `_`, `!_` | its first operand is, or is not, the sink `_` |
/// | `(vector)` | an operand is a vector |
/// | `(pair)` | its first operand is a pair |
///
/// A feature without ways to have it is in no target.
struct Feature(&'static str, &'static str, &'static [Need]);

/// The beginning of a name, and what the named thing needs.
struct Named(&'static str, Need);

impl Need {
    fn is_met(&self, language: &Language) -> bool {
        let Target { number, suffix } = language.target;
        language.version >= self.version
            && match self.targets {
                Targets::From(least) => number >= least,
                Targets::Own(numbers) => suffix == Some('a') && numbers.contains(&number),
                Targets::Family(numbers) => {
                    suffix.is_some() && numbers.contains(&(number / 10 * 10))
                }
            }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (numbers, suffix) = match self.targets {
            Targets::From(0) => (&[][..], ""),
            Targets::From(least) => {
                write!(f, "sm_{least} or higher with ")?;
                (&[][..], "")
            }
            Targets::Own(numbers) => (numbers, "a"),
            Targets::Family(numbers) => (numbers, "f"),
        };
        for (at, number) in numbers.iter().enumerate() {
            let between = if at == 0 { "" } else { ", " };
            write!(f, "{between}sm_{number}{suffix}")?;
        }
        if !numbers.is_empty() {
            f.write_str(" with ")?;
        }
        write!(f, "PTX {}.{}", self.version.0, self.version.1)
    }
}

/// A condition on an instruction.
enum Condition {
    One(Vec<&'static str>),
    Prefix(&'static str),
    Lacks(&'static str),
    Last(Vec<&'static str>),
    Operands(usize),
    Sink(bool),
    Vector,
    Pair,
}

impl Condition {
    fn parse(word: &'static str) -> Self {
        match word {
            "_" => return Self::Sink(true),
            "!_" => return Self::Sink(false),
            "(vector)" => return Self::Vector,
            "(pair)" => return Self::Pair,
            _ => {}
        }
        if let Some(names) = word.strip_prefix('$') {
            return Self::Last(names.split('|').collect());
        }
        if let Some(count) = word.strip_prefix('#') {
            // The tests load every row: a count that is no number would match all instructions.
            return Self::Operands(count.parse().unwrap_or(0));
        }
        if let Some(prefix) = word.strip_prefix('^') {
            return Self::Prefix(prefix);
        }
        if let Some(other) = word.strip_prefix('!') {
            return Self::Lacks(other);
        }
        Self::One(word.split('|').collect())
    }

    fn holds(&self, ins: &Instruction) -> bool {
        let mut modifiers = ins.modifiers.iter().map(String::as_str);
        match self {
            Self::One(names) => modifiers.any(|modifier| names.contains(&modifier)),
            Self::Prefix(prefix) => modifiers.any(|modifier| modifier.starts_with(prefix)),
            Self::Lacks(name) => modifiers.all(|modifier| modifier != *name),
            Self::Operands(least) => ins.operands.len() >= *least,
            Self::Last(names) => modifiers.next_back().is_some_and(|last| names.contains(&last)),
            Self::Sink(wanted) => matches!(ins.operands.first(), Some(Operand::Sink)) == *wanted,
            Self::Vector => {
                ins.operands.iter().any(|operand| matches!(operand, Operand::Vector(_)))
            }
            Self::Pair => matches!(ins.operands.first(), Some(Operand::Pair(..))),
        }
    }

    /// Returns the modifiers of the instruction that make it hold.
    fn modifier<'a>(&self, ins: &'a Instruction) -> Option<&'a str> {
        let mut modifiers = ins.modifiers.iter().map(String::as_str);
        match self {
            Self::One(names) => modifiers.find(|modifier| names.contains(modifier)),
            Self::Prefix(prefix) => modifiers.find(|modifier| modifier.starts_with(prefix)),
            Self::Last(names) => modifiers.next_back().filter(|last| names.contains(last)),
            Self::Lacks(_) | Self::Operands(_) | Self::Sink(_) | Self::Vector | Self::Pair => None,
        }
    }
}

struct Rule {
    conditions: Vec<Condition>,
    needs: &'static [Need],
}

/// The rules by opcode; `*` has those of all.
static RULES: LazyLock<HashMap<&'static str, Vec<Rule>>> = LazyLock::new(|| {
    let mut rules: HashMap<&str, Vec<Rule>> = HashMap::new();
    for Feature(opcodes, conditions, needs) in FEATURES {
        for opcode in opcodes.split('|') {
            let conditions = conditions.split_whitespace().map(Condition::parse).collect();
            rules.entry(opcode).or_default().push(Rule { conditions, needs });
        }
    }
    rules
});

/// The targets of PTX from `sm_75` on, each with the versions that have it, the earliest first.
#[must_use]
pub fn targets() -> Vec<(String, Vec<(u32, u32)>)> {
    let one = |&(number, suffix, first): &(u32, Option<char>, Version)| {
        let suffix = suffix.map(String::from).unwrap_or_default();
        let versions = VERSIONS.iter().copied().filter(|version| *version >= first);
        (format!("sm_{number}{suffix}"), versions.collect())
    };
    TARGETS.iter().map(one).collect()
}

/// The `.version` and `.target` of a module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Language {
    version: Version,
    target: Target,
}

impl Language {
    /// Returns nothing for a module without a target of the form `sm_NN`.
    pub(crate) fn new(version: Version, target: &str) -> Option<Self> {
        Some(Self { version, target: Target::parse(target)? })
    }

    /// Returns the first PTX version that has the target, if the module's is earlier.
    pub(crate) fn version_of_target(&self) -> Option<Version> {
        let Target { number, suffix } = self.target;
        let found = TARGETS.iter().find(|(of, with, _)| (*of, *with) == (number, suffix));
        found.map(|(.., first)| *first).filter(|first| self.version < *first)
    }

    /// Returns the most static shared memory of a CTA, bytes.
    pub(crate) fn static_shared(&self) -> u32 {
        let (plain, own, others) = STATIC_SHARED;
        let Target { number, suffix } = self.target;
        if suffix != Some('a') {
            return plain;
        }
        own.iter().find(|(family, _)| number / 10 == *family).map_or(others, |(_, bytes)| *bytes)
    }

    /// Says what the module lacks for an instruction.
    pub(crate) fn lacks(&self, ins: &Instruction) -> Option<String> {
        let of = |opcode: &str| RULES.get(opcode).map_or(&[][..], Vec::as_slice);
        let rules = of(&ins.opcode).iter().chain(of("*"));
        let mut broken = rules.filter(|rule| {
            rule.conditions.iter().all(|condition| condition.holds(ins))
                && !rule.needs.iter().any(|need| need.is_met(self))
        });
        // A target that lacks it is the graver fault: a later version would not help.
        let any = Self { version: (u32::MAX, 0), ..*self };
        let first = broken.next()?;
        let grave = |rule: &&Rule| !rule.needs.iter().any(|need| need.is_met(&any));
        let rule = if grave(&first) { first } else { broken.find(grave).unwrap_or(first) };
        let mut what = ins.opcode.clone();
        for modifier in rule.conditions.iter().filter_map(|condition| condition.modifier(ins)) {
            what.push('.');
            what.push_str(modifier);
        }
        Some(self.message(&what, rule.needs))
    }

    /// Says that the module's version lacks `what`, which only the types of operands tell.
    pub(crate) fn lacks_since(&self, what: &str, since: Version) -> Option<String> {
        let need = from(0, since);
        (!need.is_met(self)).then(|| self.message(what, &[need]))
    }

    /// Says what the module lacks for a special register, by its name with `%`.
    pub(crate) fn lacks_register(&self, name: &str) -> Option<String> {
        self.lacks_named(REGISTERS, name, "")
    }

    /// Says what the module lacks for a directive, by its name without the dot.
    pub(crate) fn lacks_directive(&self, name: &str) -> Option<String> {
        if name == "maxnctapersm" {
            return Some(format!("target for .{name}: required PTX 2.0 or lower, actual {self}"));
        }
        self.lacks_named(DIRECTIVES, name, ".")
    }

    fn lacks_named(&self, table: &[Named], name: &str, dot: &str) -> Option<String> {
        let Named(_, need) = table.iter().find(|Named(start, _)| name.starts_with(start))?;
        (!need.is_met(self)).then(|| self.message(&format!("{dot}{name}"), &[*need]))
    }

    fn message(&self, what: &str, needs: &[Need]) -> String {
        if needs.is_empty() {
            return format!(
                "{what} with these modifiers or operands: required none, in all of PTX"
            );
        }
        let needs: Vec<String> = needs.iter().map(Need::to_string).collect();
        let needs = needs.join(", or ");
        format!("target for {what}: required {needs}, actual {self}")
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version: (major, minor), target: Target { number, suffix } } = self;
        let suffix = suffix.map(String::from).unwrap_or_default();
        write!(f, "sm_{number}{suffix} with PTX {major}.{minor}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_well_formed() {
        for Feature(opcodes, conditions, needs) in FEATURES {
            assert!(!opcodes.is_empty(), "{conditions}");
            assert!(!needs.is_empty() || !conditions.is_empty(), "{opcodes}");
            for word in conditions.split_whitespace() {
                let number = word.strip_prefix('#').map(str::parse::<usize>);
                assert!(number.is_none_or(|number| number.is_ok()), "{opcodes} {word}");
            }
        }
        assert!(TARGETS.iter().all(|(_, _, (major, _))| (6..=9).contains(major)));
    }

    #[test]
    fn needs_are_told() {
        let text =
            ".version 7.0 .target sm_80 .func f() { mbarrier.try_wait.shared.b64 %p, [%r], %d; }";
        let tree = crate::syntax::parse(text).expect("PTX");
        let language = Language::new(tree.version, &tree.targets[0]).expect("a target");
        let Some(crate::syntax::ast::Item::Function(function)) = tree.items.first() else {
            panic!("a function")
        };
        let body = function.body.as_ref().expect("a body");
        let [crate::syntax::ast::Statement::Instruction(ins)] = body.statements.as_slice() else {
            panic!("an instruction")
        };
        assert_eq!(
            language.lacks(ins).expect("it lacks something"),
            "target for mbarrier.try_wait: required sm_90 or higher with PTX 7.8, \
             actual sm_80 with PTX 7.0"
        );
        assert_eq!(language.lacks_register("%laneid"), None);
        assert!(language.lacks_register("%cluster_ctarank").is_some());
        let early = Language::new((7, 7), "sm_89").expect("a target");
        assert_eq!(early.version_of_target(), Some((7, 8)));
        assert_eq!(language.version_of_target(), None);
    }
}
