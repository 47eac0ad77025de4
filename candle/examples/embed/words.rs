//! WordPiece: words as the ids of their pieces.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use candle_core::{Device, Tensor};

/// The pieces that a model knows.
pub struct Vocabulary {
    ids: HashMap<String, u32>,
    /// Ids of `[CLS]`, `[SEP]` and `[UNK]`.
    special: [u32; 3],
}

impl Vocabulary {
    /// Reads a piece from each line.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let ids: HashMap<String, u32> = text.lines().map(str::to_owned).zip(0..).collect();
        let special = |name: &str| {
            ids.get(name).copied().with_context(|| format!("{} has no {name}", path.display()))
        };
        let special = [special("[CLS]")?, special("[SEP]")?, special("[UNK]")?];
        Ok(Self { ids, special })
    }

    /// The ids of a sentence in ASCII: letters become small, punctuation stands alone, and a word is the
    /// longest pieces from its start on.
    pub fn tokens(&self, sentence: &str) -> Vec<u32> {
        let [first, last, _] = self.special;
        let mut spaced = String::new();
        for c in sentence.to_lowercase().chars() {
            match c.is_ascii_punctuation() {
                true => spaced.extend([' ', c, ' ']),
                false => spaced.push(c),
            }
        }
        let words = spaced.split_whitespace().flat_map(|word| self.pieces(word));
        std::iter::once(first).chain(words).chain([last]).collect()
    }

    fn pieces(&self, word: &str) -> Vec<u32> {
        let (mut pieces, mut rest) = (Vec::new(), word);
        while !rest.is_empty() {
            let mark = if pieces.is_empty() { "" } else { "##" };
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let mut found = ends.filter_map(|end| {
                self.ids.get(&format!("{mark}{}", &rest[..end])).map(|id| (*id, end))
            });
            let Some((id, end)) = found.next() else { return vec![self.special[2]] };
            pieces.push(id);
            rest = &rest[end..];
        }
        pieces
    }
}

/// Sentences of random words, of several lengths.
pub fn random<const N: usize>(vocabulary: usize) -> [Vec<u32>; N] {
    std::array::from_fn(|sentence| {
        let length = 6 + 3 * sentence;
        (0..length)
            .map(|at| ((at * 31 + sentence / 2 * 97 + at % 2 * sentence) % vocabulary) as u32)
            .collect()
    })
}

/// Ids `[sentences, longest]`, and 1 for each of them that is a token, 0 elsewhere.
pub fn batch(sentences: &[Vec<u32>], device: &Device) -> anyhow::Result<(Tensor, Tensor)> {
    let length = sentences.iter().map(Vec::len).max().unwrap_or(0);
    let (mut ids, mut mask) = (Vec::new(), Vec::new());
    for sentence in sentences {
        let padding = length - sentence.len();
        ids.extend(sentence.iter().copied().chain(std::iter::repeat_n(0, padding)));
        mask.extend(std::iter::repeat_n(1f32, sentence.len()));
        mask.extend(std::iter::repeat_n(0f32, padding));
    }
    let dims = (sentences.len(), length);
    Ok((Tensor::from_vec(ids, dims, device)?, Tensor::from_vec(mask, dims, device)?))
}
