//! A tokenizer of SentencePiece in ggml's metadata, from `tokenizer.model` or from a `tokenizer.json` of byte pairs
//! whose bytes are tokens of their own.
//!
//! `tokenizer.model` is a message of Protocol Buffers. ggml merges the neighbours whose joint piece
//! has the largest score. In `tokenizer.json`, merges are in order, so that the score of a piece is less the place of
//! the first merge that makes it.

use std::collections::{BTreeMap, HashMap};

use prost::Message;
use serde_json::Value as Json;

/// Types of pieces, the same in SentencePiece and in ggml.
pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
pub(super) const UNUSED: i32 = 5;
const BYTE: i32 = 6;
/// The algorithm whose pieces are merged by score.
const BYTE_PAIRS: i32 = 2;
/// The score of a piece that no merge makes.
const NEVER: f32 = -1e6;

/// A piece of the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub text: String,
    pub score: f32,
    pub kind: i32,
}

/// A vocabulary.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Vocabulary {
    /// Pieces by id.
    pub pieces: BTreeMap<u64, Piece>,
    /// Whether a space is put before a text.
    pub adds_space: bool,
    /// Ids of special pieces, by ggml's name.
    pub ids: BTreeMap<&'static str, u64>,
}

/// The fields of `tokenizer.model` that are read, by the numbers in SentencePiece's `sentencepiece_model.proto`.
#[derive(Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<SentencePiece>,
    #[prost(message, optional, tag = "2")]
    trainer_spec: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    normalizer_spec: Option<NormalizerSpec>,
}

/// A piece.
#[derive(Message)]
struct SentencePiece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3", default = "1")]
    kind: Option<i32>,
}

/// Settings of training.
#[derive(Message)]
struct TrainerSpec {
    #[prost(int32, optional, tag = "3", default = "1")]
    model_type: Option<i32>,
    #[prost(int32, optional, tag = "40", default = "0")]
    unk_id: Option<i32>,
    #[prost(int32, optional, tag = "41", default = "1")]
    bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42", default = "2")]
    eos_id: Option<i32>,
    #[prost(int32, optional, tag = "43", default = "-1")]
    pad_id: Option<i32>,
}

/// Settings of normalisation.
#[derive(Message)]
struct NormalizerSpec {
    #[prost(bool, optional, tag = "3", default = "true")]
    add_dummy_prefix: Option<bool>,
}

impl Vocabulary {
    /// The vocabulary of a `tokenizer.model`; `None` if it is none of byte pairs.
    pub fn of_model(bytes: &[u8]) -> Option<Self> {
        let ModelProto { pieces, trainer_spec, normalizer_spec } =
            ModelProto::decode(bytes).ok()?;
        let training = trainer_spec.unwrap_or_default();
        if training.model_type() != BYTE_PAIRS || pieces.is_empty() {
            return None;
        }
        let ids = [
            ("unknown", training.unk_id()),
            ("bos", training.bos_id()),
            ("eos", training.eos_id()),
            ("padding", training.pad_id()),
        ];
        // An id of -1 is none.
        let count = pieces.len() as u64;
        let id = |(name, id)| Some((name, u64::try_from(id).ok().filter(|&id| id < count)?));
        let ids = ids.into_iter().filter_map(id).collect();
        let pieces = (0..).zip(pieces).map(|(id, piece)| Some((id, piece.checked()?)));
        let adds_space = normalizer_spec.unwrap_or_default().add_dummy_prefix();
        Some(Self { pieces: pieces.collect::<Option<_>>()?, adds_space, ids })
    }

    /// The vocabulary of a `tokenizer.json` of byte pairs whose bytes are tokens; `None` if it is another.
    pub fn of_json(tokenizer: &Json) -> Option<Self> {
        let model = &tokenizer["model"];
        if model["type"] != "BPE" || model["byte_fallback"] != true {
            return None;
        }
        let mut scores: HashMap<String, f32> = HashMap::new();
        for (at, merge) in model["merges"].as_array()?.iter().enumerate() {
            let [left, right] = super::tokenizer::pair(merge)?;
            scores.entry(format!("{left}{right}")).or_insert(-(at as f32));
        }
        let unknown = model["unk_token"].as_str();
        let mut all = Self { adds_space: adds_space(tokenizer), ..Self::default() };
        for (text, id) in model["vocab"].as_object()? {
            let kind = match text.as_str() {
                text if Some(text) == unknown => UNKNOWN,
                text if is_byte(text) => BYTE,
                _ => NORMAL,
            };
            let score = scores.get(text).copied().unwrap_or(NEVER);
            let id = id.as_u64()?;
            if kind == UNKNOWN {
                all.ids.insert("unknown", id);
            }
            all.pieces.insert(id, Piece { text: text.clone(), score, kind });
        }
        Some(all)
    }

    /// Adds the tokens of `tokenizer.json` that are no pieces, and those that are special.
    pub fn add(&mut self, added: &Json) -> Option<()> {
        for token in added.as_array().into_iter().flatten() {
            let (id, text) = (token["id"].as_u64()?, token["content"].as_str()?);
            let kind = if token["special"] == true { CONTROL } else { USER_DEFINED };
            let known = self.pieces.get(&id);
            if known.is_some_and(|piece| piece.kind == UNKNOWN && piece.text == text) {
                continue;
            }
            let score = known.filter(|piece| piece.text == text).map_or(NEVER, |piece| piece.score);
            self.pieces.insert(id, Piece { text: text.into(), score, kind });
        }
        Some(())
    }
}

impl SentencePiece {
    /// The piece; `None` if it is of no type that is known.
    fn checked(self) -> Option<Piece> {
        let (score, kind) = (self.score(), self.kind());
        let text = self.piece.unwrap_or_default();
        (NORMAL..=BYTE).contains(&kind).then_some(Piece { text, score, kind })
    }
}

/// Whether a token stands for a byte: `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Whether a space is put before a text.
fn adds_space(tokenizer: &Json) -> bool {
    let parts = |of: &str, list: &str| {
        let own = &tokenizer[of];
        let all = own[list].as_array().cloned().unwrap_or_else(|| vec![own.clone()]);
        all.into_iter()
    };
    let before = parts("normalizer", "normalizers").any(|part| part["type"] == "Prepend");
    let spaces = parts("pre_tokenizer", "pretokenizers").any(|part| {
        let scheme = part["prepend_scheme"].as_str();
        part["type"] == "Metaspace"
            && scheme.map_or(part["add_prefix_space"] != false, |x| x != "never")
    });
    before || spaces
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn field(number: u8, kind: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | kind];
        if kind == 2 {
            field.push(bytes.len() as u8);
        }
        field.extend_from_slice(bytes);
        field
    }

    fn message(algorithm: u8) -> Vec<u8> {
        let piece = |text: &str, score: f32, kind: u8| {
            let own = [
                field(1, 2, text.as_bytes()),
                field(2, 5, &score.to_le_bytes()),
                field(3, 0, &[kind]),
            ];
            field(1, 2, &own.concat())
        };
        [
            piece("<unk>", 0.0, 2),
            piece("<s>", 0.0, 3),
            piece("</s>", 0.0, 3),
            piece("<0x0A>", 0.0, 6),
            piece("▁a", -3.5, 1),
            field(2, 2, &field(3, 0, &[algorithm])),
            field(3, 2, &field(3, 0, &[0])),
        ]
        .concat()
    }

    #[test]
    fn a_model_is_read() {
        let all = Vocabulary::of_model(&message(2)).expect("byte pairs");
        let expected = Piece { text: "▁a".into(), score: -3.5, kind: NORMAL };
        assert_eq!((all.pieces.len(), &all.pieces[&4], all.adds_space), (5, &expected, false));
        assert_eq!(all.ids, BTreeMap::from([("unknown", 0), ("bos", 1), ("eos", 2)]));
        // Another algorithm, and damage: a message that ends early, a type that is none.
        assert_eq!(Vocabulary::of_model(&message(1)), None);
        let whole = message(2);
        for end in 1..whole.len() {
            let cut = Vocabulary::of_model(&whole[..end]);
            assert!(cut.is_none_or(|cut| cut.pieces.len() == 5), "{end}");
        }
        assert_eq!(Vocabulary::of_model(&field(1, 2, &field(3, 0, &[9]))), None);
        assert_eq!(Vocabulary::of_model(&[0xff; 40]), None);
    }

    #[test]
    fn merges_have_their_place_as_score() {
        let tokenizer = json!({
            "model": {
                "type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
                "vocab": {"<unk>": 0, "<0x41>": 1, "a": 2, "b": 3, "ab": 4, "aab": 5},
                "merges": [["a", "b"], "a ab"],
            },
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
        });
        let mut all = Vocabulary::of_json(&tokenizer).expect("SentencePiece");
        let added =
            json!([{"id": 0, "content": "<unk>", "special": true}, {"id": 6, "content": "<x>"}]);
        all.add(&added).expect("sound");
        let found: Vec<(f32, i32)> = all.pieces.values().map(|x| (x.score, x.kind)).collect();
        let expected = [
            (NEVER, UNKNOWN),
            (NEVER, BYTE),
            (NEVER, NORMAL),
            (NEVER, NORMAL),
            (0.0, NORMAL),
            (-1.0, NORMAL),
            (NEVER, USER_DEFINED),
        ];
        assert_eq!(found, expected);
        assert!(all.adds_space);
        let without = json!({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}});
        assert!(!super::adds_space(&without));
        assert_eq!(Vocabulary::of_json(&json!({"model": {"type": "BPE"}})), None);
    }
}
