//! Modules that a configuration leaves out: those that the source's names, in the target's terms, and the
//! output head where it is the embedding.
//!
//! | layout | list | terms |
//! | --- | --- | --- |
//! | ModelOpt | `exclude_modules`, `ignore` | names, in which `*` and `?` stand for characters |
//! | compressed-tensors | `ignore` | names, and regular expressions after `re:` |
//! | TorchAO, gpt-oss, DeepSeek | `modules_to_not_convert` | names |
//! | Quark | `exclude` | as ModelOpt |
//! | AutoRound | `extra_config` with 16 bits or more | names, and regular expressions for a part of a name |

use std::collections::BTreeSet;

use serde_json::Value;

use super::auto_round_config as auto_round;
use super::model::Model;
use super::parts::Layout;
use super::pattern::{self, Pattern};

/// The entries of the source's lists.
fn stated(model: &Model) -> Vec<String> {
    let config = model.quantization_config();
    let hf = model.hf_quant_config().map(|config| &config["quantization"]["exclude_modules"]);
    let lists = ["ignore", "exclude_modules", "modules_to_not_convert", "exclude"];
    let lists = lists.into_iter().filter_map(|key| config.map(|config| &config[key])).chain(hf);
    let names = lists.filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.extend(auto_round::Stated::of(model).iter().flat_map(auto_round::Stated::floats));
    names.sort_unstable();
    names.dedup();
    names
}

/// Characters that mean something in regular expressions.
const SPECIAL: &str = r"\.+*?()|[]{}^$";

/// A pattern with `*` and `?` as a regular expression of compressed-tensors, a name as it is.
fn expression(pattern: &str) -> String {
    if !pattern.contains(['*', '?']) {
        return pattern.into();
    }
    let mut text = String::from("re:");
    for character in pattern.chars() {
        match character {
            '*' => text.push_str(".*"),
            '?' => text.push('.'),
            special if SPECIAL.contains(special) => text.extend(['\\', special]),
            other => text.push(other),
        }
    }
    text.push('$');
    text
}

/// A regular expression of compressed-tensors with `*` and `?`; `None` if these cannot say it.
fn wildcards(text: &str) -> Option<String> {
    let Some(expression) = text.strip_prefix("re:") else { return Some(text.into()) };
    let expression = expression.strip_prefix('^').unwrap_or(expression);
    let (expression, whole) = match expression.strip_suffix('$') {
        Some(expression) => (expression, true),
        None => (expression, false),
    };
    let mut pattern = String::new();
    let mut characters = expression.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('.', Some('*')) => {
                characters.next();
                pattern.push('*');
            }
            ('.', _) => pattern.push('?'),
            ('\\', Some(&escaped)) if SPECIAL.contains(escaped) && !"*?".contains(escaped) => {
                characters.next();
                pattern.push(escaped);
            }
            (special, _) if SPECIAL.contains(special) => return None,
            (other, _) => pattern.push(other),
        }
    }
    // An expression matches the beginning of a name.
    if !whole && !pattern.ends_with('*') {
        pattern.push('*');
    }
    Some(pattern)
}

/// An entry of a list in a layout's terms; `None` if it cannot say it.
fn translated(entry: &str, to: Layout) -> Option<String> {
    match to {
        Layout::CompressedTensors => Some(match entry.starts_with("re:") {
            true => entry.into(),
            false => expression(entry),
        }),
        Layout::ModelOpt => wildcards(entry),
        Layout::TorchAo
        | Layout::GptOss
        | Layout::Gguf
        | Layout::Mlx
        | Layout::DeepSeek
        | Layout::Quark
        | Layout::AutoRound => wildcards(entry).filter(|pattern| !pattern.contains(['*', '?'])),
    }
}

/// Modules that entries are looked up in.
struct Modules<'a>(BTreeSet<&'a str>);

impl Modules<'_> {
    /// Whether an entry in a layout's terms is about one of them.
    fn has(&self, entry: &str) -> bool {
        if entry.starts_with("re:") {
            let pattern = Pattern::of_compressed_tensors(entry);
            return self.0.iter().any(|module| pattern.matches(module));
        }
        match entry.contains(['*', '?']) {
            true => self.0.iter().any(|module| pattern::matches(entry, module)),
            false => self.0.contains(entry),
        }
    }
}

/// The entries of the source's lists in the target's terms, without those that are about a quantised module
/// of the output; and entries that the target cannot say.
pub(super) fn carried(model: &Model, to: Layout, quantised: &[&str]) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut lost) = (Vec::new(), Vec::new());
    // Their tensors say all, or their configuration is copied.
    if matches!(to, Layout::Gguf | Layout::Mlx) || !to.is_written() {
        return (kept, lost);
    }
    let quantised = Modules(quantised.iter().copied().collect());
    for entry in stated(model) {
        match translated(&entry, to) {
            Some(entry) if quantised.has(&entry) => {}
            Some(entry) => kept.push(entry),
            None => lost.push(entry),
        }
    }
    (kept, lost)
}

/// The output head of a model that has none of its own: readers build a module for it, which is the
/// embedding.
pub(super) fn tied_head(model: &Model) -> Option<String> {
    let config = model.config()?;
    let said = [&config["tie_word_embeddings"], &config["text_config"]["tie_word_embeddings"]];
    if said.into_iter().any(|said| *said == false)
        || model.names().any(|name| name.contains("lm_head"))
    {
        return None;
    }
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let prefix = model.names().find_map(|name| name.strip_suffix(EMBEDDING))?;
    // transformers has the head of a model with several parts outside of them, older files inside.
    Some(if prefix == "language_" { "lm_head".into() } else { format!("{prefix}lm_head") })
}

/// Entries for experts in one tensor that stay floats: readers build modules below that of the tensor.
pub(super) fn below(module: &str, to: Layout) -> Vec<String> {
    match to {
        Layout::ModelOpt => vec![format!("{module}*")],
        Layout::CompressedTensors => vec![module.into(), expression(&format!("{module}.*"))],
        Layout::TorchAo
        | Layout::GptOss
        | Layout::Gguf
        | Layout::Mlx
        | Layout::DeepSeek
        | Layout::Quark
        | Layout::AutoRound => vec![module.into()],
    }
}

/// Adds `entries` to the modules that a configuration leaves out.
pub(super) fn add(left: &mut Vec<String>, entries: impl IntoIterator<Item = String>) {
    let mut known: BTreeSet<String> = left.iter().cloned().collect();
    for entry in entries {
        if known.insert(entry.clone()) {
            left.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_of_layouts() {
        for (entry, modelopt, compressed_tensors) in [
            ("lm_head", Some("lm_head"), "lm_head"),
            ("mtp.layers.0*", Some("mtp.layers.0*"), r"re:mtp\.layers\.0.*$"),
            (r"re:.*lm_head", Some("*lm_head*"), r"re:.*lm_head"),
            (r"re:^model\.x$", Some("model.x"), r"re:^model\.x$"),
            (r"re:model\.(a|b)", None, r"re:model\.(a|b)"),
        ] {
            assert_eq!(translated(entry, Layout::ModelOpt).as_deref(), modelopt);
            assert_eq!(
                translated(entry, Layout::CompressedTensors).as_deref(),
                Some(compressed_tensors)
            );
        }
        let below = expression("mtp.layers.0*");
        assert!(Modules(["mtp.layers.0.mlp.experts.3.up_proj"].into()).has(&below));
        assert!(!Modules(["mtp_layers.0.x"].into()).has(&below));
    }
}
