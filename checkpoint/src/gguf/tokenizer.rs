//! A tokenizer of byte pairs, from `tokenizer.json`, in ggml's metadata.

use std::collections::BTreeMap;

use nvfp4_gguf::{Scalar, Value};
use serde_json::Value as Json;

/// Types of tokens in `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
/// The numbers of types of values in arrays.
const I32: u32 = 5;
const STRING: u32 = 8;

/// The metadata of a tokenizer; `None` if it is none of byte pairs, such as SentencePiece's.
pub(super) fn metadata(
    tokenizer: &Json,
    config: &Json,
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
    let stated = crate::ggml::names::size(config, "vocab_size").and_then(|size| size.as_u64());
    let known = tokens.keys().next_back().map_or(0, |last| last + 1);
    // A vocabulary of more tokens than there are bytes in a name is a damaged file.
    let count = stated.unwrap_or(known).max(known).min(known + (1 << 20));
    let (mut texts, mut kinds) = (Vec::new(), Vec::new());
    for id in 0..count {
        let (text, kind) = tokens.remove(&id).unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED));
        texts.push(Value::String(text));
        kinds.push(Value::Scalar(Scalar::I32(kind)));
    }
    let merge = |merge: &Json| match merge {
        Json::String(text) => Some(Value::String(text.clone())),
        Json::Array(pair) => match pair.as_slice() {
            [Json::String(left), Json::String(right)] => {
                Some(Value::String(format!("{left} {right}")))
            }
            _ => None,
        },
        _ => None,
    };
    let merges = model["merges"].as_array()?.iter().map(merge).collect::<Option<Vec<_>>>()?;
    let mut metadata = BTreeMap::from([
        ("tokenizer.ggml.model".into(), Value::String("gpt2".into())),
        ("tokenizer.ggml.pre".into(), Value::String(pre.into())),
        ("tokenizer.ggml.tokens".into(), Value::Array(STRING, texts)),
        ("tokenizer.ggml.token_type".into(), Value::Array(I32, kinds)),
        ("tokenizer.ggml.merges".into(), Value::Array(STRING, merges)),
    ]);
    for (key, own) in [("bos_token_id", "bos"), ("eos_token_id", "eos")] {
        let stated = [&config[key], &config[key][0]].into_iter().find_map(Json::as_u64);
        if let Some(id) = stated.and_then(|id| u32::try_from(id).ok()) {
            let key = format!("tokenizer.ggml.{own}_token_id");
            metadata.insert(key, Value::Scalar(Scalar::U32(id)));
        }
    }
    Some(metadata)
}
