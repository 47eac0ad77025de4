//! Steps of one token that a GPU repeats from a recording.

use candle_core::{DType, Device, Result, Tensor};

use super::decoder::{Cache, Decoder};
use super::fetch::Fetch;
use super::step::{Inputs, expected_places};
use crate::graph::{Graph, Rehearsed};
use crate::memory::Lease;

/// The most logits of a part.
const PART: usize = 512;

/// The results of a step.
#[derive(Clone)]
pub(super) struct Results {
    /// Logits `[texts, vocabulary]`, their sums `[texts]`, or the largest of them, whichever shows what is no number, and the
    /// likeliest tokens `[texts]`.
    pub logits: Tensor,
    pub sums: Tensor,
    pub likeliest: Tensor,
}

/// Results on the host.
pub(super) struct Ahead {
    pub sums: Vec<f32>,
    pub likeliest: Vec<u32>,
    /// Whether the step of the likeliest tokens is queued.
    pub is_queued: bool,
}

impl Results {
    /// The sums and likeliest tokens of logits. They are found in parts: candle gives each row that is reduced to one CTA, of
    /// which a row as long as a vocabulary takes 0.1 ms.
    pub fn of(logits: Tensor) -> Result<Self> {
        let (texts, vocabulary) = logits.dims2()?;
        let part = (1..=PART).rev().find(|&part| vocabulary.is_multiple_of(part)).unwrap_or(1);
        let parts = logits.reshape((texts, vocabulary / part, part))?;
        let (within, largest) = (parts.argmax(2)?, parts.max(2)?);
        // On a GPU the largest of 16-bit numbers is NaN if one is. A sum of them reads all once more.
        let shows = logits.device().is_cuda() && logits.dtype().size_in_bytes() == 2;
        let sums = if shows { largest.max(1)? } else { parts.sum(2)?.sum(1)? };
        let at = largest.argmax_keepdim(1)?;
        let likeliest = (within.gather(&at, 1)? + at.affine(part as f64, 0.)?)?.squeeze(1)?;
        Ok(Self { logits, sums, likeliest })
    }

    /// The sums on the host.
    pub fn sums(&self) -> Result<Vec<f32>> {
        self.sums.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec1()
    }

    fn set(&self, other: &Self) -> Result<()> {
        let Self { logits, sums, likeliest } = self;
        logits.slice_set(&other.logits, 0, 0)?;
        sums.slice_set(&other.sums, 0, 0)?;
        likeliest.slice_set(&other.likeliest, 0, 0)
    }
}

/// Steps of texts whose operations have the same shapes until tokens are behind the [expected places](expected_places). The
/// first of each runs launch by launch, the second is recorded on a GPU, and the rest repeat the recording.
pub(super) struct Recording {
    // Dropped before the memory that it refers to.
    graph: Option<Graph>,
    inputs: Inputs,
    results: Results,
    /// The places that steps look at, and how far they are.
    end: usize,
    stage: Stage,
    /// Recordings in a row that failed.
    failures: u8,
    /// Steps that were replayed.
    replayed: usize,
    /// The place that the inputs are at.
    at: usize,
    /// Copies of results to the host.
    fetch: Option<Fetch>,
    /// Keeps what layers have allocated.
    _lease: Lease,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The next step runs for the first time with its shapes.
    New,
    /// The step ran, and may be recorded.
    Rehearsed(Rehearsed),
    /// The step could not be recorded twice in a row, for a reason: steps run launch by launch, with shapes of their own.
    Refused(String),
}

impl Recording {
    /// Steps of the texts in `cache`, none of which has run.
    pub fn new(decoder: &Decoder, cache: &Cache) -> Result<Self> {
        let (inputs, device) = (decoder.inputs(cache)?, decoder.engine().device());
        let texts = cache.texts();
        let results = Results {
            logits: Tensor::zeros((texts, decoder.config().vocabulary()), decoder.dtype(), device)?,
            sums: Tensor::zeros(texts, decoder.dtype(), device)?,
            // The next step's tokens, if nobody chooses others.
            likeliest: inputs.tokens()?,
        };
        let (stage, lease, failures) = (Stage::New, decoder.lease(), 0);
        Ok(Self {
            fetch: Fetch::new(device, decoder.dtype(), texts)?,
            graph: None,
            inputs,
            results,
            end: 0,
            at: 0,
            stage,
            failures,
            replayed: 0,
            _lease: lease,
        })
    }

    /// Computes the results after one more token of each text.
    pub fn next(&mut self, decoder: &Decoder, tokens: &[u32], cache: &mut Cache) -> Result<()> {
        decoder.check_next(Some(tokens), cache)?;
        let place = cache.used();
        let end = expected_places(place, cache.capacity());
        if end != self.end {
            (self.graph, self.end) = (None, end);
            if !matches!(self.stage, Stage::Refused(_)) {
                self.stage = Stage::New;
            }
        }
        if matches!(self.stage, Stage::Refused(_)) || decoder.is_metered() {
            return self
                .results
                .set(&Results::of(decoder.next(tokens, cache)?.to_dtype(decoder.dtype())?)?);
        }
        self.inputs.set(tokens, place)?;
        let device = decoder.engine().device();
        let Self { inputs, results, graph, stage, failures, .. } = self;
        let step = || {
            results.set(&Results::of(decoder.fixed_step(inputs, cache, end)?)?)?;
            inputs.advance()
        };
        let mut record = |rehearsed: &Rehearsed| {
            // SAFETY: the step uses the decoder, its layers and what they have allocated, which the lease keeps; what candle has
            // uploaded for this thread, on which the graph stays; and the inputs, results and cache of the same texts. A
            // `Generation` has all of them, and drops the recording first. The results are copied to memory that was there.
            match unsafe { Graph::record(device, rehearsed, step) } {
                Ok(recorded) => {
                    *failures = 0;
                    Ok(Some(recorded))
                }
                // Plans that steps of other texts have displaced are there again behind the next rehearsal.
                Err(_) if *failures == 0 => {
                    *failures = 1;
                    Ok(None)
                }
                Err(error) => Err(first_line(&error)),
            }
        };
        let is_possible = Graph::is_possible_on(device);
        if let (None, Stage::Rehearsed(rehearsed), true) = (&graph, &*stage, is_possible) {
            match record(rehearsed) {
                Ok(recorded) => *graph = recorded,
                Err(reason) => *stage = Stage::Refused(reason),
            }
        }
        match (graph, &*stage) {
            (Some(graph), _) => {
                graph.replay()?;
                self.replayed += 1;
            }
            (None, Stage::Refused(_)) => {
                let logits = decoder.next(tokens, cache)?.to_dtype(decoder.dtype())?;
                return self.results.set(&Results::of(logits)?);
            }
            (graph, Stage::New | Stage::Rehearsed(_)) => {
                let rehearsed = Graph::rehearse(device, step)?;
                // The GPU runs the step while the host records it. A second failure in a row is the next call's.
                if is_possible && let Ok(recorded) = record(&rehearsed) {
                    *graph = recorded;
                }
                *stage = Stage::Rehearsed(rehearsed);
            }
        }
        cache.advance();
        self.at = cache.used();
        Ok(())
    }

    /// Queues a copy of the last step's sums and likeliest tokens to the host and, if `goes_on`, the step of those tokens, if it
    /// repeats the recording. `None` where results are not copied so.
    pub fn go_on(
        &mut self,
        goes_on: bool,
        decoder: &Decoder,
        cache: &mut Cache,
    ) -> Result<Option<Ahead>> {
        let (Some(graph), Some(fetch)) = (&self.graph, &mut self.fetch) else { return Ok(None) };
        fetch.queue(&self.results.sums, &self.results.likeliest)?;
        let place = cache.used();
        let repeats = self.at == place && expected_places(place, cache.capacity()) == self.end;
        let is_queued = goes_on && repeats && !decoder.is_metered();
        if is_queued {
            decoder.check_next(None, cache)?;
            graph.replay()?;
            self.replayed += 1;
            cache.advance();
            self.at = cache.used();
        }
        let (sums, likeliest) = fetch.wait()?;
        Ok(Some(Ahead { sums, likeliest, is_queued }))
    }

    /// The results of the last step.
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Steps that were repetitions of a recording.
    pub fn replayed(&self) -> usize {
        self.replayed
    }

    /// The reason why steps could not be recorded.
    pub fn refused(&self) -> Option<&str> {
        match &self.stage {
            Stage::New | Stage::Rehearsed(_) => None,
            Stage::Refused(reason) => Some(reason),
        }
    }
}

/// An error without the backtrace below it.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
