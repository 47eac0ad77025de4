//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use nvfp4::quantize::Format;
use nvfp4_candle::Activations;
use nvfp4_candle::models::Choice;
use nvfp4_checkpoint::rng::SplitMix64;

use crate::text::Words;

/// Generates text by a model with weights in four bits.
#[derive(Debug, Parser)]
#[command(name = "generate", version)]
pub struct Arguments {
    /// Folder with config.json, safetensors and tokenizer.json; or a GGUF file, with --ids.
    #[arg(long)]
    pub model: PathBuf,
    /// The beginning of a text; several are computed together.
    #[arg(long, required_unless_present_any = ["ids", "random"])]
    pub prompt: Vec<String>,
    /// Puts each prompt into the model's chat template, as what the user says.
    #[arg(long, requires = "prompt")]
    pub chat: bool,
    /// The beginning of a text as numbers of tokens.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["prompt", "random"])]
    pub ids: Vec<u32>,
    /// A text of so many random tokens, to measure.
    #[arg(long, conflicts_with = "prompt")]
    pub random: Option<usize>,
    /// Computes each text so many times together, to measure.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// auto, cuda:N, cpu, or a device of the emulator such as emu:h200.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// The most tokens that are generated.
    #[arg(long, default_value_t = 100)]
    pub max_tokens: usize,
    /// Divisor of logits; the likeliest token is taken without it.
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Takes one of so many likeliest tokens.
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Takes one of the likeliest tokens with so much probability together.
    #[arg(long)]
    pub top_p: Option<f64>,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Quantises matrices of layers that the file has in floats.
    #[arg(long)]
    pub quantize: Option<To>,
    /// Quantises the head, too, which makes the logits of the vocabulary.
    #[arg(long, requires = "quantize")]
    pub quantize_head: bool,
    /// Form of activations in products in four bits.
    #[arg(long)]
    pub activations: Option<Of>,
    /// The host queues each launch of a step on a GPU, instead of repeating a recording of them.
    #[arg(long)]
    pub unrecorded: bool,
    /// Prints one JSON object at the end.
    #[arg(long)]
    pub json: bool,
}

/// Formats of weights.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum To {
    Nvfp4,
    Mxfp4,
}

impl From<To> for Format {
    fn from(to: To) -> Self {
        match to {
            To::Nvfp4 => Self::Nvfp4,
            To::Mxfp4 => Self::Mxfp4,
        }
    }
}

/// Forms of activations.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Of {
    Halves,
    Fp8,
}

impl From<Of> for Activations {
    fn from(of: Of) -> Self {
        match of {
            Of::Halves => Self::Halves,
            Of::Fp8 => Self::Fp8,
        }
    }
}

impl Arguments {
    /// Whether prompts are words.
    pub fn needs_words(&self) -> bool {
        !self.prompt.is_empty()
    }

    pub fn choice(&self) -> Choice {
        let choice = Choice::new().temperature(self.temperature).seed(self.seed);
        choice.top_k(self.top_k).top_p(self.top_p)
    }

    /// The tokens of all texts.
    pub fn texts(&self, words: Option<&Words>, vocabulary: usize) -> Result<Vec<Vec<u32>>> {
        let own = if let Some(count) = self.random {
            let below = u32::try_from(vocabulary).context("the size of the vocabulary")?;
            let mut rng = SplitMix64::new(self.seed);
            vec![(0..count).map(|_| rng.below(below)).collect()]
        } else if self.ids.is_empty() {
            let words = words.context("prompts take a tokenizer")?;
            self.prompt.iter().map(|text| words.encode(text, self.chat)).collect::<Result<_>>()?
        } else {
            vec![self.ids.clone()]
        };
        let own: Vec<Vec<u32>> = own;
        ensure!(own.iter().all(|text| !text.is_empty()), "a prompt must have at least one token");
        let known = |id: &u32| (*id as usize) < vocabulary;
        if let Some(id) = own.iter().flatten().find(|id| !known(id)) {
            bail!("token {id} must be below {vocabulary}, vocab_size");
        }
        ensure!(self.batch > 0, "--batch must be at least 1");
        ensure!(self.max_tokens > 0, "--max-tokens must be at least 1");
        Ok(own.iter().flat_map(|text| std::iter::repeat_n(text.clone(), self.batch)).collect())
    }
}
