//! Patterns over the names of tensors and modules.

use std::collections::HashMap;

use fancy_regex::Regex;

/// Whether `name` matches `pattern`, in which `*` stands for any number of characters, including
/// none and dots, and `?` for one character.
///
/// The time is at most proportional to the product of the lengths.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The place to continue if the characters after the last star do not match.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match retry {
                Some((after, at)) => {
                    retry = Some((after, at + 1));
                    (p, n) = (after, at + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// A pattern of compressed-tensors' configuration.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// The name of a module, or of a class of modules.
    Name(String),
    /// A regular expression (`re:`) that the beginning of a name matches, as Python's `re` does: with
    /// look-around.
    Regex(Box<Regex>),
    /// A regular expression of another dialect.
    Unknown(String),
}

impl Pattern {
    pub fn of_compressed_tensors(text: &str) -> Self {
        let Some(expression) = text.strip_prefix("re:") else { return Self::Name(text.into()) };
        match Regex::new(&format!("^(?:{expression})")) {
            Ok(expression) => Self::Regex(Box::new(expression)),
            Err(_) => Self::Unknown(text.into()),
        }
    }

    pub fn matches(&self, module: &str) -> bool {
        match self {
            Self::Name(name) => name == module,
            // One that takes too many steps matches nothing.
            Self::Regex(expression) => expression.is_match(module).unwrap_or(false),
            Self::Unknown(_) => false,
        }
    }

    /// The text of an expression that cannot be evaluated.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            Self::Unknown(text) => Some(text),
            Self::Name(_) | Self::Regex(_) => None,
        }
    }
}

/// Many patterns, of which most are names: finding the first that a module matches takes the time of a look-up
/// and of the patterns that are none.
#[derive(Clone, Debug, Default)]
pub(super) struct Patterns<'a> {
    /// The first index of each name.
    names: HashMap<&'a str, usize>,
    others: Vec<(usize, Other<'a>)>,
}

#[derive(Clone, Debug)]
enum Other<'a> {
    /// Matches `*` and `?`; see [`matches`].
    Wildcards(&'a str),
    CompressedTensors(Pattern),
}

impl<'a> Patterns<'a> {
    /// Patterns with `*` and `?`, ModelOpt's.
    pub fn of_wildcards(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut patterns = Self::default();
        for (at, text) in texts.into_iter().enumerate() {
            match text.contains(['*', '?']) {
                true => patterns.others.push((at, Other::Wildcards(text))),
                false => {
                    patterns.names.entry(text).or_insert(at);
                }
            }
        }
        patterns
    }

    /// Names and regular expressions of compressed-tensors.
    pub fn of_compressed_tensors(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut patterns = Self::default();
        for (at, text) in texts.into_iter().enumerate() {
            match Pattern::of_compressed_tensors(text) {
                Pattern::Name(_) => {
                    patterns.names.entry(text).or_insert(at);
                }
                other => patterns.others.push((at, Other::CompressedTensors(other))),
            }
        }
        patterns
    }

    /// Returns the index of the first pattern that a module matches.
    pub fn find(&self, module: &str) -> Option<usize> {
        let name = self.names.get(module).copied();
        let matching = |(_, other): &&(usize, Other<'_>)| match other {
            Other::Wildcards(text) => matches(text, module),
            Other::CompressedTensors(pattern) => pattern.matches(module),
        };
        let other = self.others.iter().find(matching).map(|(at, _)| *at);
        name.into_iter().chain(other).min()
    }

    /// Whether a name is among them.
    pub fn has_name(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Expressions that cannot be evaluated.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.others.iter().filter_map(|(_, other)| match other {
            Other::Wildcards(_) => None,
            Other::CompressedTensors(pattern) => pattern.unknown(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, which is slow.
    fn naive(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (['*', rest @ ..], _) => (0..=name.len()).any(|skipped| naive(rest, &name[skipped..])),
            ([p, pattern @ ..], [n, name @ ..]) => (*p == '?' || p == n) && naive(pattern, name),
            _ => false,
        }
    }

    #[test]
    fn names_of_tensors() {
        for (pattern, name, expected) in [
            ("*lm_head*", "lm_head.weight", true),
            ("*lm_head*", "model.layers.0.weight", false),
            ("model.layers.?.*", "model.layers.7.mlp.weight", true),
            ("model.layers.?.*", "model.layers.17.mlp.weight", false),
            ("lm_head", "lm_head.weight", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn expressions_match_the_beginning() {
        let matches =
            |pattern: &str, name: &str| Pattern::of_compressed_tensors(pattern).matches(name);
        assert!(matches("re:.*self_attn\\..*_proj$", "model.layers.0.self_attn.q_proj"));
        assert!(!matches("re:self_attn", "model.layers.0.self_attn.q_proj"));
        assert!(matches("re:model", "model.layers.0"));
        assert!(matches("lm_head", "lm_head") && !matches("lm_head", "lm_head.x"));
        let ahead = r"re:^model\.layers\.(?!92).*_proj$";
        assert!(matches(ahead, "model.layers.91.mlp.up_proj"));
        assert!(!matches(ahead, "model.layers.92.mlp.up_proj"));
        let unknown = Pattern::of_compressed_tensors("re:(x");
        assert_eq!((unknown.matches("x"), unknown.unknown()), (false, Some("re:(x")));
    }

    proptest! {
        /// The first of many is the first of all that match one by one.
        #[test]
        fn sets_are_their_members(
            patterns in prop::collection::vec("[ab*?]{0,3}", 0..8),
            name in "[ab]{0,4}",
        ) {
            let set = Patterns::of_wildcards(patterns.iter().map(String::as_str));
            let first = patterns.iter().position(|pattern| matches(pattern, &name));
            prop_assert_eq!(set.find(&name), first);
        }

        #[test]
        fn as_defined(pattern in "[ab*?]{0,7}", name in "[ab]{0,9}") {
            let (p, n): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
            prop_assert_eq!(matches(&pattern, &name), naive(&p, &n));
        }
    }
}
