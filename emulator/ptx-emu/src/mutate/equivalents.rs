//! The list of mutants that are known to be equivalent to the original.
//!
//! There is one mutant per line, with four fields between bars:
//!
//! ```text
//! # kernel | mutation | instruction | reason
//! gemv_*   | remove   | bar.sync 0; | the second one is behind the last read
//! ```
//!
//! `*` stands for any text. The instruction is its line in the PTX text,
//! trimmed; `#2` at its end means the second mutant of the kernel with that
//! mutation and instruction. Registers may be written without their numbers, which
//! change with the compiler (`bar.warp.sync %r;`); mutants that are equal without the numbers
//! are then counted together. `~3f0a` at the end of such an instruction means those of a [place](Mutant::place),
//! which stays the same when the kernel changes elsewhere, and `~3f0a #2` the second one of these. Empty lines and
//! lines that begin with `#` are ignored.

use super::Mutant;

/// A mutant, or several, that behave like the original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Equivalent {
    /// Line in the list, from 1.
    pub line: usize,
    /// Kernel.
    pub kernel: String,
    /// Mutation, as [`Mutation`](super::Mutation) is written.
    pub mutation: String,
    /// Instruction.
    pub instruction: String,
    /// [`Mutant::place`]; `None`: all.
    pub place: Option<String>,
    /// The number among those that are alike and at that place, from 1; `None`: all.
    pub occurrence: Option<usize>,
    /// The reason why it makes no difference.
    pub reason: String,
}

/// A list that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("known equivalents, line {line}: required {required}, actual `{actual}`")]
pub struct EquivalentsError {
    /// Line, from 1.
    pub line: usize,
    /// The required value.
    pub required: &'static str,
    /// The actual value.
    pub actual: String,
}

impl Equivalent {
    /// Reads a list.
    ///
    /// # Errors
    /// A line that has not four fields, or an empty one.
    pub fn parse(text: &str) -> Result<Vec<Self>, EquivalentsError> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .map(|(line, text)| {
                let fields: Vec<&str> = text.split(" | ").map(str::trim).collect();
                let error = |required| EquivalentsError { line, required, actual: text.to_owned() };
                let [kernel, mutation, instruction, reason] = fields[..] else {
                    return Err(error("`kernel | mutation | instruction | reason`"));
                };
                if fields.iter().any(|field| field.is_empty()) {
                    return Err(error("four fields that are not empty"));
                }
                let numbered = instruction.rsplit_once('#').and_then(|(before, number)| {
                    Some((before.trim_end(), number.parse().ok().filter(|&n| n > 0)?))
                });
                let (instruction, occurrence) = match numbered {
                    Some((instruction, number)) => (instruction, Some(number)),
                    None => (instruction, None),
                };
                let placed = instruction.rsplit_once('~').filter(|(_, place)| {
                    place.len() == DIGITS && place.bytes().all(|digit| digit.is_ascii_hexdigit())
                });
                let (instruction, place) = match placed {
                    Some((instruction, place)) => (instruction.trim_end(), Some(place.to_owned())),
                    None => (instruction, None),
                };
                Ok(Self {
                    line,
                    kernel: kernel.to_owned(),
                    mutation: mutation.to_owned(),
                    instruction: instruction.to_owned(),
                    place,
                    occurrence,
                    reason: reason.to_owned(),
                })
            })
            .collect()
    }

    /// Whether it speaks about this mutant of `kernel`.
    #[must_use]
    pub fn covers(&self, kernel: &str, mutant: &Mutant) -> bool {
        let Mutant { instruction, occurrence, shape, alike, place, nth, mutation, .. } = mutant;
        let is = |text: &str, occurrence: usize| {
            glob(&self.instruction, text) && self.occurrence.is_none_or(|which| which == occurrence)
        };
        glob(&self.kernel, kernel)
            && glob(&self.mutation, &mutation.to_string())
            && match &self.place {
                Some(wanted) => wanted == place && is(shape, *nth),
                None => is(instruction, *occurrence) || is(shape, *alike),
            }
    }
}

/// Hexadecimal digits of a [place](Mutant::place).
const DIGITS: usize = 4;
/// Neighbours on either side that a place is made of.
const NEIGHBOURS: usize = 2;

/// The [place](Mutant::place) of one of a function's synchronising instructions, by the shapes of all: 64-bit FNV-1a
/// over the neighbours' text, folded.
pub(super) fn place(shapes: &[String], at: usize) -> String {
    let before = &shapes[at.saturating_sub(NEIGHBOURS)..at];
    let behind = &shapes[at + 1..shapes.len().min(at + 1 + NEIGHBOURS)];
    let text = format!("{}\n\n{}", before.join("\n"), behind.join("\n"));
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let folded = digest ^ digest >> 16 ^ digest >> 32 ^ digest >> 48;
    format!("{:0DIGITS$x}", folded & 0xffff)
}

/// An instruction without the numbers of its registers: `%rd5` is `%rd`.
pub(crate) fn shape(instruction: &str) -> String {
    let mut parts = instruction.split('%');
    let mut shape = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let name = part.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        shape.push('%');
        shape.push_str(&part[..part.len() - name.len()]);
        shape.push_str(name.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    shape
}

/// Whether `text` is `pattern`, in which `*` stands for any text.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            text.char_indices()
                .map(|(at, _)| at)
                .chain([text.len()])
                .any(|at| glob(rest, &text[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::{Fate, Mutation};

    #[test]
    fn lists() {
        let text = "
            # kernel | mutation | instruction | reason
            gemv_* | remove | bar.sync 0; #2 | nothing follows
            k | count +32 | bar.sync 1, 64; | why | not";
        let error = Equivalent::parse(text).expect_err("five fields");
        assert_eq!(error.line, 4);
        let list = Equivalent::parse(text.trim_end_matches(" | not")).expect("a list");
        assert_eq!(list[0].occurrence, Some(2));
        assert_eq!((list[0].line, list[1].line), (3, 4));
        let mutant = |mutation, instruction: &str, occurrence| Mutant {
            function: "k".to_owned(),
            line: 1,
            instruction: instruction.to_owned(),
            mutation,
            occurrence,
            shape: shape(instruction),
            alike: occurrence + 1,
            place: "3f0a".to_owned(),
            nth: occurrence,
            fate: Fate::Survived,
            equivalent: None,
        };
        assert!(list[0].covers("gemv_r2", &mutant(Mutation::Remove, "bar.sync 0;", 2)));
        assert!(!list[0].covers("gemv_r2", &mutant(Mutation::Remove, "bar.sync 0;", 3)));
        assert!(!list[0].covers("gem", &mutant(Mutation::Remove, "bar.sync 0;", 2)));
        assert!(list[1].covers("k", &mutant(Mutation::InitCount(32), "bar.sync 1, 64;", 7)));
        let by_shape = Equivalent::parse("k | remove | bar.warp.sync %r; #2 | w").expect("a list");
        assert!(by_shape[0].covers("k", &mutant(Mutation::Remove, "bar.warp.sync %r55;", 1)));
        assert!(!by_shape[0].covers("k", &mutant(Mutation::Remove, "bar.warp.sync %r55;", 2)));
        let placed = "k | remove | bar.warp.sync %r; ~3f0a | w
            k | remove | bar.warp.sync %r; ~3f0a #2 | w
            k | remove | bar.warp.sync %r; ~3f0b | w";
        let [all, second, elsewhere] = &Equivalent::parse(placed).expect("a list")[..] else {
            panic!("three")
        };
        let first = mutant(Mutation::Remove, "bar.warp.sync %r55;", 1);
        assert!(all.covers("k", &first) && !second.covers("k", &first));
        assert!(second.covers("k", &mutant(Mutation::Remove, "bar.warp.sync %r55;", 2)));
        assert!(!elsewhere.covers("k", &first));
        assert!(Equivalent::parse("a | b |  | d").is_err());
    }

    #[test]
    fn a_place_is_what_is_near() {
        let shapes = ["a", "b", "c", "d", "e", "f"].map(str::to_owned);
        let of = |shapes: &[String], at| place(shapes, at);
        let here = of(&shapes, 3);
        assert!(here.len() == DIGITS && here.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_eq!(of(&shapes[1..], 2), here, "less before");
        assert_eq!(of(&[shapes.as_slice(), &shapes].concat(), 3), here, "more behind");
        assert_ne!(of(&shapes[2..], 1), here, "a neighbour is gone");
        assert_ne!(of(&shapes, 0), of(&shapes, 5));
    }

    #[test]
    fn shapes() {
        assert_eq!(shape("ld.b32 %r12, [%rd3+4];"), "ld.b32 %r, [%rd+4];");
        assert_eq!(shape("bar.sync 1, 256;"), "bar.sync 1, 256;");
    }

    #[test]
    fn globs() {
        for (pattern, text, matches) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abb", false),
            ("*b*", "abc", true),
            ("abc", "abcd", false),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
        }
    }
}
