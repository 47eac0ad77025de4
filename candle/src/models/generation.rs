//! Texts that go on, token by token.

use candle_core::{DType, Device, Result};
use candle_transformers::generation::{LogitsProcessor, Sampling};

use super::decoder::{Cache, Decoder};
use super::recording::{Ahead, Recording, Results};
use crate::error::shape;
use crate::graph::Graph;

/// The choice of the next token from its logits. The default is the likeliest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// The divisor of logits; the likeliest token is taken without it, or if it is 0.
    pub temperature: Option<f64>,
    /// The number of likeliest tokens among which one is taken.
    pub top_k: Option<usize>,
    /// The probability that the likeliest tokens, among which one is taken, have together.
    pub top_p: Option<f64>,
    /// The seed of each text's random numbers.
    pub seed: u64,
}

impl Choice {
    /// The likeliest token.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks that the choice can be made.
    ///
    /// # Errors
    /// For a temperature below 0 or without which the others mean nothing, a top-k of 0, and a top-p that is no
    /// probability.
    pub fn check(self) -> Result<()> {
        self.sampling().map(drop)
    }

    fn sampling(self) -> Result<Sampling> {
        let Self { temperature, top_k, top_p, seed: _ } = self;
        let temperature = match temperature {
            None if top_k.is_some() || top_p.is_some() => {
                return Err(shape("temperature", "above 0, with top-k or top-p", None::<f64>));
            }
            Some(0.) if top_k.is_some() || top_p.is_some() => {
                return Err(shape("temperature", "above 0, with top-k or top-p", 0));
            }
            None | Some(0.) => return Ok(Sampling::ArgMax),
            Some(temperature) if temperature > 0. && temperature.is_finite() => temperature,
            Some(other) => return Err(shape("temperature", "0 or above, finite", other)),
        };
        if top_k == Some(0) {
            return Err(shape("top-k", "at least 1", 0));
        }
        if let Some(p) = top_p.filter(|p| !(0. < *p && *p <= 1.)) {
            return Err(shape("top-p", "above 0, at most 1", p));
        }
        Ok(match (top_k, top_p) {
            (None, None) => Sampling::All { temperature },
            (Some(k), None) => Sampling::TopK { k, temperature },
            (None, Some(p)) => Sampling::TopP { p, temperature },
            (Some(k), Some(p)) => Sampling::TopKThenTopP { k, p, temperature },
        })
    }
}

nvfp4::setters!(Choice {
    temperature: impl Into<Option<f64>>,
    top_k: impl Into<Option<usize>>,
    top_p: impl Into<Option<f64>>,
    seed: u64,
});

/// Texts that a decoder continues together.
pub struct Generation<'a> {
    // Dropped before what it refers to.
    recording: Option<Recording>,
    decoder: &'a Decoder,
    cache: Cache,
    /// The results of the tokens so far, which the next tokens are chosen from; those of the recording if absent.
    results: Option<Results>,
    choosing: Choosing,
    /// Tokens that end a text.
    end: Vec<u32>,
    ended: Vec<bool>,
    left: usize,
    /// Whether a step was queued that nobody needs, behind the end of all texts.
    unneeded: bool,
}

enum Choosing {
    Likeliest,
    /// The random numbers of each text.
    Random(Vec<LogitsProcessor>),
}

impl std::fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Generation({:?}, {} tokens)", self.decoder, self.cache.used())
    }
}

impl<'a> Generation<'a> {
    /// Reads the beginnings of texts, which go on for at most `limit` tokens.
    ///
    /// # Errors
    /// For a choice that cannot be made, and as [`Decoder::start`].
    pub fn new(
        decoder: &'a Decoder,
        texts: &[&[u32]],
        limit: usize,
        choice: Choice,
    ) -> Result<Self> {
        let sampling = choice.sampling()?;
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let capacity = longest.saturating_add(limit);
        let mut cache = decoder.cache(texts.len(), capacity)?;
        let results = Some(Results::of(decoder.start(texts, &mut cache)?)?);
        let choosing = match sampling {
            Sampling::ArgMax => Choosing::Likeliest,
            sampling => {
                let own = |_| LogitsProcessor::from_sampling(choice.seed, sampling.clone());
                Choosing::Random(texts.iter().map(own).collect())
            }
        };
        let ended = vec![false; texts.len()];
        let end = decoder.config().end().to_vec();
        let recording = match Graph::is_possible_on(decoder.engine().device()) {
            true => Some(Recording::new(decoder, &cache)?),
            false => None,
        };
        Ok(Self {
            recording,
            decoder,
            cache,
            results,
            choosing,
            end,
            ended,
            left: limit,
            unneeded: false,
        })
    }

    /// The same with further steps recorded or not. A GPU repeats a recording of the launches of a step until
    /// 256 more tokens are in the cache; otherwise the host queues each. The default is to
    /// record on a GPU whose stream is the thread's own, as that of `Device::new_cuda` is.
    /// On the CPU steps have the same shapes as on a GPU then, for comparison.
    ///
    /// # Errors
    /// If memory is missing.
    pub fn recorded(mut self, is_recorded: bool) -> Result<Self> {
        if let (None, Some(recording)) = (&self.results, &self.recording) {
            self.results = Some(recording.results().clone());
        }
        self.recording = match is_recorded {
            true => Some(Recording::new(self.decoder, &self.cache)?),
            false => None,
        };
        Ok(self)
    }

    /// The same with further tokens that end a text, besides those of the configuration.
    #[must_use]
    pub fn ending_at(mut self, tokens: &[u32]) -> Self {
        self.end.extend_from_slice(tokens);
        self
    }

    /// The next token of each text, `None` for those that have ended; `None` once all have, or the limit is reached. A token
    /// that ends a text is its last.
    ///
    /// # Errors
    /// If logits are no numbers, and those of [`Decoder::next`]. There are no more tokens after one.
    pub fn step(&mut self) -> Result<Option<Vec<Option<u32>>>> {
        if self.left == 0 || self.ended.iter().all(|ended| *ended) {
            return Ok(None);
        }
        let left = std::mem::take(&mut self.left) - 1;
        let ahead = match (&self.results, &mut self.recording, &self.choosing) {
            // A GPU goes on with the likeliest tokens while the host looks at them.
            (None, Some(recording), Choosing::Likeliest) => {
                recording.go_on(left > 0, self.decoder, &mut self.cache)?
            }
            _ => None,
        };
        let is_queued = ahead.as_ref().is_some_and(|ahead| ahead.is_queued);
        self.unneeded = is_queued;
        let (sums, chosen) = match ahead {
            Some(Ahead { sums, likeliest, is_queued: _ }) => (sums, Some(likeliest)),
            None => (self.current().sums()?, None),
        };
        if let Some(text) = sums.iter().position(|sum| !sum.is_finite()) {
            return Err(shape(format!("logits of text {text}"), "finite", sums[text]));
        }
        let chosen = match chosen {
            Some(chosen) => chosen,
            None => self.choose()?,
        };
        let end = &self.end;
        let tokens = chosen.iter().zip(&mut self.ended).map(|(&token, ended)| {
            let was = std::mem::replace(ended, *ended || end.contains(&token));
            (!was).then_some(token)
        });
        let tokens: Vec<Option<u32>> = tokens.collect();
        let goes_on = left > 0 && !self.ended.iter().all(|ended| *ended);
        self.unneeded &= !goes_on;
        if goes_on && !is_queued {
            self.results = match &mut self.recording {
                Some(recording) => {
                    recording.next(self.decoder, &chosen, &mut self.cache)?;
                    None
                }
                None => Some(Results::of(self.decoder.next(&chosen, &mut self.cache)?)?),
            };
        }
        self.left = left;
        Ok(Some(tokens))
    }

    /// The results that the next tokens are chosen from.
    fn current(&self) -> &Results {
        match (&self.results, &self.recording) {
            (Some(results), _) => results,
            (None, Some(recording)) => recording.results(),
            (None, None) => unreachable!("a step without a recording leaves its results"),
        }
    }

    /// The next token of each text.
    fn choose(&mut self) -> Result<Vec<u32>> {
        let results = self.current().clone();
        match &mut self.choosing {
            Choosing::Likeliest => results.likeliest.to_vec1(),
            Choosing::Random(all) => {
                let logits = results.logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                let each = all.iter_mut().enumerate();
                each.map(|(text, own)| own.sample(&logits.get(text)?)).collect()
            }
        }
    }

    /// Steps that a GPU repeated from a recording.
    #[must_use]
    pub fn replayed(&self) -> usize {
        self.recording.as_ref().map_or(0, Recording::replayed)
    }

    /// The reason why steps could not be recorded; the host queues their launches then.
    #[must_use]
    pub fn unrecorded(&self) -> Option<&str> {
        self.recording.as_ref()?.refused()
    }

    /// Tokens of the longest text so far.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.cache.used() - usize::from(self.unneeded)
    }
}
