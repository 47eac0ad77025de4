//! A tokenizer in ggml's metadata: one of SentencePiece, from `tokenizer.model` or `tokenizer.json`, or one of byte
//! pairs whose splitting ggml knows for the architecture.

use std::collections::BTreeMap;

use nvfp4_gguf::{Scalar, Value};
use serde_json::Value as Json;

use super::sentencepiece::{CONTROL, NORMAL, Piece, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary};
use crate::error::Result;
use crate::model::Model;

/// The numbers of types of values in arrays.
const I32: u32 = 5;
const F32: u32 = 6;
const STRING: u32 = 8;
/// The score of ids without a piece.
const PADDING: f32 = -1e6;
/// Most ids without a token; a file with more is damaged.
const MOST_UNUSED: u64 = 1 << 20;

/// The metadata of a model's tokenizer; none if it has none that ggml has a form of. `pre` is ggml's name for the
/// splitting of a text before byte pairs are merged.
///
/// # Errors
/// [`Error::Io`](nvfp4::Error::Io), [`CheckpointError::Malformed`](crate::CheckpointError::Malformed).
pub(super) fn metadata(
    source: &Model,
    config: &Json,
    pre: Option<&str>,
) -> Result<BTreeMap<String, Value>> {
    let tokenizer = source.json("tokenizer.json")?;
    let stated = source.json("tokenizer_config.json")?.unwrap_or_default();
    let added = tokenizer.as_ref().map(|tokenizer| &tokenizer["added_tokens"]);
    let vocabulary =
        match source.bytes("tokenizer.model")?.as_deref().and_then(Vocabulary::of_model) {
            Some(vocabulary) => Some(vocabulary),
            None => tokenizer.as_ref().and_then(Vocabulary::of_json),
        };
    if let Some(mut vocabulary) = vocabulary {
        let sound = added.map_or(Some(()), |added| vocabulary.add(added));
        let found = sound.and_then(|()| of_pieces(vocabulary, tokenizer.as_ref(), config, &stated));
        return Ok(found.unwrap_or_default());
    }
    let of_pairs = |tokenizer| of_pairs(tokenizer, config, &stated, pre?);
    Ok(tokenizer.as_ref().and_then(of_pairs).unwrap_or_default())
}

/// A tokenizer of SentencePiece; `None` if its ids are those of a damaged file.
fn of_pieces(
    vocabulary: Vocabulary,
    tokenizer: Option<&Json>,
    config: &Json,
    stated: &Json,
) -> Option<BTreeMap<String, Value>> {
    let Vocabulary { mut pieces, adds_space, ids } = vocabulary;
    let texts: BTreeMap<String, u64> =
        pieces.iter().map(|(id, piece)| (piece.text.clone(), *id)).collect();
    let special: BTreeMap<String, u64> = special(config, stated, &texts, &ids).collect();
    if let Some(piece) = special.get("unknown").and_then(|id| pieces.get_mut(id)) {
        piece.kind = UNKNOWN;
    }
    let (mut tokens, mut scores, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    for id in 0..count(config, &pieces)? {
        let padding = || Piece { text: format!("[PAD{id}]"), score: PADDING, kind: UNUSED };
        let Piece { text, score, kind } = pieces.remove(&id).unwrap_or_else(padding);
        tokens.push(Value::String(text));
        scores.push(Value::Scalar(Scalar::F32(score)));
        kinds.push(Value::Scalar(Scalar::I32(kind)));
    }
    let mut metadata = BTreeMap::from([
        ("tokenizer.ggml.model".into(), Value::String("llama".into())),
        ("tokenizer.ggml.pre".into(), Value::String("default".into())),
        ("tokenizer.ggml.tokens".into(), Value::Array(STRING, tokens)),
        ("tokenizer.ggml.scores".into(), Value::Array(F32, scores)),
        ("tokenizer.ggml.token_type".into(), Value::Array(I32, kinds)),
    ]);
    let flag = |value| Value::Scalar(Scalar::Bool(value));
    metadata.insert("tokenizer.ggml.add_space_prefix".into(), flag(adds_space));
    metadata.extend(special.into_iter().filter_map(id));
    // SentencePiece's have a beginning and no end unless something says otherwise.
    let adds_first = tokenizer.is_none_or(|tokenizer| {
        let first = &tokenizer["post_processor"]["single"][0]["SpecialToken"]["id"];
        first.as_str().is_some_and(|first| texts.contains_key(first))
    });
    for (key, default) in [("add_bos_token", adds_first), ("add_eos_token", false)] {
        let value = stated[key].as_bool().unwrap_or(default);
        metadata.insert(format!("tokenizer.ggml.{key}"), flag(value));
    }
    Some(metadata)
}

/// A tokenizer of byte pairs; `None` if it is none.
fn of_pairs(
    tokenizer: &Json,
    config: &Json,
    stated: &Json,
    pre: &str,
) -> Option<BTreeMap<String, Value>> {
    let model = &tokenizer["model"];
    // Bytes that are tokens of their own are SentencePiece's.
    if model["type"] != "BPE" || model["byte_fallback"] == true {
        return None;
    }
    let mut tokens: BTreeMap<u64, (String, i32)> = BTreeMap::new();
    for (token, id) in model["vocab"].as_object()? {
        tokens.insert(id.as_u64()?, (token.clone(), NORMAL));
    }
    for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let kind = if added["special"] == true { CONTROL } else { USER_DEFINED };
        tokens.insert(added["id"].as_u64()?, (added["content"].as_str()?.into(), kind));
    }
    let known: BTreeMap<String, u64> =
        tokens.iter().map(|(id, (text, _))| (text.clone(), *id)).collect();
    let (mut texts, mut kinds) = (Vec::new(), Vec::new());
    for id in 0..count(config, &tokens)? {
        let (text, kind) = tokens.remove(&id).unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED));
        texts.push(Value::String(text));
        kinds.push(Value::Scalar(Scalar::I32(kind)));
    }
    let merge = |merge: &Json| {
        let [left, right] = pair(merge)?;
        Some(Value::String(format!("{left} {right}")))
    };
    let merges = model["merges"].as_array()?.iter().map(merge).collect::<Option<Vec<_>>>()?;
    let mut metadata = BTreeMap::from([
        ("tokenizer.ggml.model".into(), Value::String("gpt2".into())),
        ("tokenizer.ggml.pre".into(), Value::String(pre.into())),
        ("tokenizer.ggml.tokens".into(), Value::Array(STRING, texts)),
        ("tokenizer.ggml.token_type".into(), Value::Array(I32, kinds)),
        ("tokenizer.ggml.merges".into(), Value::Array(STRING, merges)),
    ]);
    metadata.extend(special(config, stated, &known, &BTreeMap::new()).filter_map(id));
    Some(metadata)
}

/// The two tokens of a merge, which is an array or a text with a space between them.
pub(super) fn pair(merge: &Json) -> Option<[&str; 2]> {
    match merge {
        Json::String(text) => text.split_once(' ').map(|(left, right)| [left, right]),
        Json::Array(pair) => match pair.as_slice() {
            [Json::String(left), Json::String(right)] => Some([left, right]),
            _ => None,
        },
        _ => None,
    }
}

/// The number of tokens: that of the model, which may have more rows than the tokenizer has tokens. `None` if more than
/// [`MOST_UNUSED`] ids are no token's.
fn count<T>(config: &Json, tokens: &BTreeMap<u64, T>) -> Option<u64> {
    let stated = crate::ggml::names::size(config, "vocab_size").and_then(|size| size.as_u64());
    let known = match tokens.last_key_value() {
        Some((last, _)) => last.checked_add(1)?,
        None => 0,
    };
    let count = stated.unwrap_or(known).max(known);
    (count <= tokens.len() as u64 + MOST_UNUSED).then_some(count)
}

/// The metadata of a special token.
fn id((name, id): (String, u64)) -> Option<(String, Value)> {
    let value = Value::Scalar(Scalar::U32(u32::try_from(id).ok()?));
    Some((format!("tokenizer.ggml.{name}_token_id"), value))
}

/// The ids of special tokens, by ggml's names: by `tokenizer_config.json`, by `config.json`, or by the vocabulary.
fn special<'a>(
    config: &'a Json,
    stated: &'a Json,
    texts: &'a BTreeMap<String, u64>,
    ids: &'a BTreeMap<&str, u64>,
) -> impl Iterator<Item = (String, u64)> {
    let names = [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")];
    names.into_iter().filter_map(|(own, ggml)| {
        let token = &stated[format!("{own}_token")];
        let text = token.as_str().or_else(|| token["content"].as_str());
        let id = &config[format!("{own}_token_id")];
        let found = text.and_then(|text| texts.get(text)).copied();
        let found = found.or_else(|| [id, &id[0]].into_iter().find_map(Json::as_u64));
        let found = found.or_else(|| ids.get(ggml).copied());
        Some((ggml.to_owned(), found?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Ids and sizes far beyond the number of tokens would fill memory.
    #[test]
    fn ids_of_damaged_files_are_no_tokenizer() {
        let of = |last: u64, size: u64| {
            count(&json!({"vocab_size": size}), &BTreeMap::from([(0, ()), (last, ())]))
        };
        assert_eq!([of(1, 2), of(7, 3), of(1, 9)], [Some(2), Some(8), Some(9)]);
        assert_eq!(of(MOST_UNUSED + 1, 2), Some(MOST_UNUSED + 2));
        for (last, size) in [(MOST_UNUSED + 2, 2), (1 << 50, 2), (u64::MAX, 2), (1, u64::MAX)] {
            assert_eq!(of(last, size), None, "{last} {size}");
        }
        let tokenizer = json!({"model": {"type": "BPE", "vocab": {"a": u64::MAX}, "merges": []}});
        assert_eq!(of_pairs(&tokenizer, &json!({}), &json!({}), "default"), None);
    }
}
