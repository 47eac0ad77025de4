//! Patterns over tensor names.

/// Whether `name` matches `pattern`, in which `*` stands for any number of characters, including
/// none and dots, and `?` for one character.
///
/// The time is at most proportional to the product of the lengths.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to continue if the characters after the last star do not match.
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

    proptest! {
        #[test]
        fn as_defined(pattern in "[ab*?]{0,7}", name in "[ab]{0,9}") {
            let (p, n): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
            prop_assert_eq!(matches(&pattern, &name), naive(&p, &n));
        }
    }
}
