//! Steps of one token that a GPU repeats from a recording.

use candle_core::{DType, Result, Tensor};

use super::decoder::{Cache, Decoder};
use super::step::Inputs;
use crate::engine::Lease;
use crate::graph::Graph;

/// Places of the cache by which steps look at more of it: between them a recording stays the same.
const STRIDE: usize = 256;

/// What a step leaves.
#[derive(Clone)]
pub(super) struct Results {
    /// Logits `[texts, vocabulary]` in f32, their sums `[texts]`, and the likeliest tokens `[texts]`.
    pub logits: Tensor,
    pub sums: Tensor,
    pub likeliest: Tensor,
}

impl Results {
    /// The sums and likeliest tokens of logits.
    pub fn of(logits: Tensor) -> Result<Self> {
        let (sums, likeliest) = (logits.sum(1)?, logits.argmax(1)?);
        Ok(Self { logits, sums, likeliest })
    }

    fn set(&self, other: &Self) -> Result<()> {
        let Self { logits, sums, likeliest } = self;
        logits.slice_set(&other.logits, 0, 0)?;
        sums.slice_set(&other.sums, 0, 0)?;
        likeliest.slice_set(&other.likeliest, 0, 0)
    }
}

/// Steps of texts whose operations have the same shapes until the tokens reach the next multiple of [`STRIDE`] places. The
/// first of each runs launch by launch, the second is recorded on a GPU, and the rest repeat the recording.
pub(super) struct Recording {
    // Dropped before the memory that it refers to.
    graph: Option<Graph>,
    inputs: Inputs,
    results: Results,
    /// The places that steps look at, and how far they are.
    end: usize,
    stage: Stage,
    /// Steps that were replayed.
    replayed: usize,
    /// Keeps what layers have allocated.
    _lease: Lease,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The next step runs for the first time with its shapes.
    New,
    /// It ran, and may be recorded.
    Rehearsed,
    /// It cannot be recorded, for a reason: steps run launch by launch, with shapes of their own.
    Refused(String),
}

impl Recording {
    /// Steps of the texts in `cache`, none of which has run.
    pub fn new(decoder: &Decoder, cache: &Cache) -> Result<Self> {
        let (inputs, device) = (decoder.inputs(cache)?, decoder.engine().device());
        let texts = cache.texts();
        let results = Results {
            logits: Tensor::zeros((texts, decoder.config().vocabulary()), DType::F32, device)?,
            sums: Tensor::zeros(texts, DType::F32, device)?,
            likeliest: Tensor::zeros(texts, DType::U32, device)?,
        };
        let (stage, lease) = (Stage::New, decoder.lease());
        Ok(Self { graph: None, inputs, results, end: 0, stage, replayed: 0, _lease: lease })
    }

    /// Computes the results after one more token of each text.
    pub fn next(&mut self, decoder: &Decoder, tokens: &[u32], cache: &mut Cache) -> Result<()> {
        decoder.check_next(tokens, cache)?;
        let place = cache.used();
        let end = (place + 1).next_multiple_of(STRIDE).min(cache.capacity());
        if end != self.end {
            (self.graph, self.end) = (None, end);
            if !matches!(self.stage, Stage::Refused(_)) {
                self.stage = Stage::New;
            }
        }
        self.inputs.set(tokens, place)?;
        let device = decoder.engine().device();
        let Self { inputs, results, graph, stage, .. } = self;
        let step = || results.set(&Results::of(decoder.fixed_step(inputs, cache, end)?)?);
        if *stage == Stage::Rehearsed && Graph::is_possible_on(device) {
            // SAFETY: the step uses the decoder, its layers and what they have allocated, which the lease keeps, and the inputs,
            // results and cache of the same texts. A `Generation` has all of them, and drops the recording first.
            match unsafe { Graph::record(device, step) } {
                Ok(recorded) => *graph = Some(recorded),
                Err(error) => *stage = Stage::Refused(first_line(&error)),
            }
        }
        match (graph, stage) {
            (Some(graph), _) => {
                graph.replay()?;
                self.replayed += 1;
            }
            (None, Stage::Refused(_)) => {
                self.results.set(&Results::of(decoder.next(tokens, cache)?)?)?;
                return Ok(());
            }
            (None, stage @ (Stage::New | Stage::Rehearsed)) => {
                Graph::rehearse(device, step)?;
                *stage = Stage::Rehearsed;
            }
        }
        cache.advance();
        Ok(())
    }

    /// The results of the last step.
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Steps that were repetitions of a recording.
    pub fn replayed(&self) -> usize {
        self.replayed
    }

    /// Why steps could not be recorded.
    pub fn refused(&self) -> Option<&str> {
        match &self.stage {
            Stage::New | Stage::Rehearsed => None,
            Stage::Refused(reason) => Some(reason),
        }
    }
}

/// An error without the backtrace below it.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
