//! Patterns over the names of tensors and modules.

use regex::Regex;

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
    /// A regular expression (`re:`) that the beginning of a name matches.
    Regex(Regex),
    /// A regular expression of another dialect.
    Unknown(String),
}

impl Pattern {
    pub fn of_compressed_tensors(text: &str) -> Self {
        let Some(expression) = text.strip_prefix("re:") else { return Self::Name(text.into()) };
        match Regex::new(&format!("^(?:{expression})")) {
            Ok(expression) => Self::Regex(expression),
            Err(_) => Self::Unknown(text.into()),
        }
    }

    pub fn matches(&self, module: &str) -> bool {
        match self {
            Self::Name(name) => name == module,
            Self::Regex(expression) => expression.is_match(module),
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
        let unknown = Pattern::of_compressed_tensors("re:(?!x)y");
        assert_eq!((unknown.matches("y"), unknown.unknown()), (false, Some("re:(?!x)y")));
    }

    proptest! {
        #[test]
        fn as_defined(pattern in "[ab*?]{0,7}", name in "[ab]{0,9}") {
            let (p, n): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
            prop_assert_eq!(matches(&pattern, &name), naive(&p, &n));
        }
    }
}
