//! Tuning: the plan's candidates for a product timed on a GPU, and the fastest of them.

use std::fmt;

use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, ScaleLayout};
use serde::Serialize;

use super::moe::token_counts;
use super::{ActivationInput, GemmBench, GemmReport, Protocol, Swept, gemm, grouped};
use crate::shape::{GemmShape, GroupedShape, MixtureShape, Shape};
use nvfp4::cuda::Times;
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result};
use nvfp4::gemm::{GemmOptions, Output};
use nvfp4::moe::MoeOptions;
use nvfp4::tune::{DeviceKey, Measured, ResultKind, TuneError, TuneGroups, TuneProblem, Tuning};

/// The measurements of one shape, as `--json` prints them.
#[derive(Clone, Debug, Serialize)]
pub struct TuneReport {
    /// The problem, in words.
    pub problem: String,
    /// The fastest candidate.
    pub fastest: Swept,
    /// Median time of the model's choice, seconds.
    pub model_median: Option<f64>,
    /// The run that was verified, and the times of all candidates.
    pub bench: GemmReport,
    #[serde(skip)]
    entry: (TuneProblem, Measured),
}

impl TuneReport {
    /// Returns the entry of a table.
    #[must_use]
    pub fn entry(&self) -> (TuneProblem, Measured) {
        self.entry.clone()
    }
}

/// A product to tune, and how it is measured.
#[derive(Clone, Debug)]
pub struct TuneTarget {
    sizes: Sizes,
    bench: GemmBench,
}

#[derive(Clone, Debug)]
enum Sizes {
    Dense(GemmShape),
    /// Groups whose tokens follow each other.
    Grouped(GroupedShape),
    /// So many rows that choose their groups. They are measured as groups whose tokens follow each other, of which
    /// those that are chosen have one: tiles are the same.
    Chosen(GroupedShape, usize),
}

impl TuneTarget {
    /// The products of `shape`, one or, of a mixture of experts, two; `bench` is as for
    /// [`gemm`], [`grouped`] and [`moe`](super::moe). A mixture is measured with random choices.
    ///
    /// # Errors
    /// [`Error::Shape`] for another operation.
    pub fn of(shape: &Shape, bench: &GemmBench) -> Result<Vec<Self>> {
        let one = |sizes, bench: &GemmBench| Ok(vec![Self { sizes, bench: bench.clone() }]);
        match shape {
            Shape::Gemm(sizes) | Shape::Dual(sizes) => one(Sizes::Dense(*sizes), bench),
            Shape::Grouped(sizes) | Shape::GroupedDual(sizes) => {
                one(Sizes::Grouped(sizes.clone()), bench)
            }
            Shape::Moe(sizes) => Self::of_mixture(*sizes, bench),
            Shape::Gemv(_) | Shape::Quantize(_) | Shape::Rows(_) | Shape::Mlp(_) => {
                let required = "a product (gemm, dual, grouped, grouped-dual or moe)";
                Err(Error::shape("shape to tune", required, shape))
            }
        }
    }

    /// Both products, as [`MoeLayer`](nvfp4::moe::MoeLayer) makes them.
    fn of_mixture(shape: MixtureShape, bench: &GemmBench) -> Result<Vec<Self>> {
        let MixtureShape { tokens, top_k, hidden, between, .. } = shape;
        let sizes = |n, k| {
            let counts = token_counts(shape, bench.seed);
            let grouped = GroupedShape { counts, n, k };
            match (tokens, bench.activations) {
                (1, ActivationInput::Halves(_)) => Sizes::Chosen(grouped, top_k),
                (
                    _,
                    ActivationInput::Halves(_)
                    | ActivationInput::Fp4
                    | ActivationInput::Fp4Rows
                    | ActivationInput::Fp8(_),
                ) => Sizes::Grouped(grouped),
            }
        };
        let layout = ScaleLayout::Linear;
        let (first_output, quantized) = match bench.activations {
            ActivationInput::Halves(half) => (half.float().into(), None),
            ActivationInput::Fp4 => match bench.format {
                Format::Nvfp4 => (FloatType::F32.into(), Some(layout)),
                Format::Mxfp4 => (Output::Mxfp4 { layout }, None),
            },
            ActivationInput::Fp4Rows => (FloatType::Bf16.into(), None),
            ActivationInput::Fp8(_) => {
                let required = "fp4, fp4-rows, f16 or bf16, for a mixture of experts";
                return Err(Error::shape("activations", required, bench.activations));
            }
        };
        let first = bench.options.clone().output(first_output);
        let rows = MoeOptions::new().rows;
        let second = GemmOptions::new().overrides(bench.options.overrides.clone()).output(rows);
        let with = |options, quantized| GemmBench { options, quantized, layout, ..bench.clone() };
        Ok(vec![
            Self { sizes: sizes(between, hidden), bench: with(first, quantized) },
            Self { sizes: sizes(hidden, between), bench: with(second, None) },
        ])
    }

    /// The problem whose entry is measured.
    #[must_use]
    pub fn problem(&self) -> TuneProblem {
        let Self { sizes, bench } = self;
        let (shape, groups) = match sizes {
            Sizes::Dense(shape) => (*shape, None),
            Sizes::Grouped(shape) => {
                let count = shape.counts.len();
                let sizes = GemmShape::of(shape.tokens(), shape.n, shape.k);
                (sizes, Some(TuneGroups { count, slots: false }))
            }
            Sizes::Chosen(GroupedShape { n, k, .. }, rows) => {
                let (count, shape) = (*rows, GemmShape { m: 1, n: *n, k: *k, l: *rows });
                (shape, Some(TuneGroups { count, slots: true }))
            }
        };
        TuneProblem {
            format: bench.format,
            activations: bench.activations.kind(bench.format, bench.layout),
            output: bench.quantized.map_or(bench.options.output.into(), |layout| {
                ResultKind::Blocks(Format::Nvfp4, layout)
            }),
            gated: bench.is_gated(),
            shape,
            groups,
            adding: bench.options.adding,
        }
    }
}

/// Times the candidates for a product on random inputs, each verified, with the bench protocol:
/// `sweep` of them, the best by the model first, or all if that is 0. Candidates that the machine
/// refuses are left out. No table has a say.
///
/// # Errors
/// [`DeviceError::NeedsGpu`](nvfp4::device::DeviceError::NeedsGpu) on the emulator, before
/// anything runs: times never come from there. [`Error::Wrong`] where a candidate's result is
/// wrong, [`Error::Shape`] for a protocol without replays or with a kernel asked for,
/// [`TuneError::NothingTimed`], and what [`gemm`] and [`grouped`] say.
pub fn tune(kernels: &Kernels, target: &TuneTarget) -> Result<TuneReport> {
    let TuneTarget { sizes, bench } = target;
    kernels.device().gpu("tuning")?;
    if bench.protocol.replays == 0 {
        return Err(Error::shape("replays for tuning", "at least 1", 0));
    }
    if bench.options.overrides != Default::default() {
        return Err(Error::shape("kernel for tuning", "left open", "given"));
    }
    let kernels = kernels.clone().with_tuning(Tuning::off());
    let sweep = if bench.sweep == 0 { usize::MAX } else { bench.sweep };
    let protocol = Protocol { ceiling: false, cublas: false, ..bench.protocol };
    let bench = GemmBench { sweep, protocol, ..bench.clone() };
    let swept = match sizes {
        Sizes::Dense(shape) => gemm(&kernels, *shape, &bench)?,
        Sizes::Grouped(shape) | Sizes::Chosen(shape, _) => grouped(&kernels, shape, &bench)?,
    };
    report(target.problem(), swept)
}

/// Picks from what was measured.
fn report(problem: TuneProblem, bench: GemmReport) -> Result<TuneReport> {
    if !bench.head.verified {
        let what = format!("the result of {problem} by {}", bench.plan.kernel);
        return Err(Error::Wrong { what });
    }
    let (fastest, measured) = pick(&problem, &bench.sweep)?;
    let fastest = fastest.clone();
    let model_median = bench.times.as_ref().map(|timing| timing.measured.times.median);
    let entry = (problem, measured);
    Ok(TuneReport { problem: problem.to_string(), fastest, model_median, bench, entry })
}

/// The fastest candidate, and the entry that it makes.
fn pick<'a>(problem: &TuneProblem, sweep: &'a [Swept]) -> Result<(&'a Swept, Measured), TuneError> {
    let Some((best, times)) = fastest(sweep) else {
        let reason = sweep.iter().find_map(|swept| swept.error.clone());
        return Err(TuneError::NothingTimed {
            problem: problem.to_string(),
            candidates: sweep.len(),
            reason: reason.unwrap_or_else(|| "nothing was timed".into()),
        });
    };
    let (kernel, split) = (best.candidate.kernel.into(), best.candidate.split);
    Ok((best, Measured { kernel, split, median_ns: nanoseconds(times.median) }))
}

/// The candidate with the smallest median, of equals the one that the model prefers; `None` where
/// none was timed.
#[must_use]
pub fn fastest(sweep: &[Swept]) -> Option<(&Swept, &Times)> {
    sweep
        .iter()
        .filter_map(|swept| Some((swept, swept.times.as_ref()?)))
        .min_by(|(_, a), (_, b)| a.median.total_cmp(&b.median))
}

/// Whole nanoseconds, at least one.
fn nanoseconds(seconds: f64) -> u64 {
    ((seconds * 1e9).round() as u64).max(1)
}

impl fmt::Display for TuneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, Measured { kernel, split, median_ns }) = &self.entry;
        write!(f, "{}", self.bench)?;
        let us = *median_ns as f64 * 1e-3;
        write!(f, "  tuned     {us:.3} us: {kernel}, split {split}")?;
        if let Some(seconds) = self.model_median {
            let by_model = seconds * 1e6;
            write!(f, "; the model's choice takes {by_model:.3} us, {:.2} x", by_model / us)?;
        }
        writeln!(f)
    }
}

/// A whole run of the tuner, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct TuneSummary {
    /// The device that the table belongs to.
    pub device: DeviceKey,
    /// The file that was written.
    pub table: String,
    /// Entries in it now.
    pub entries: usize,
    /// The measurements.
    pub reports: Vec<TuneReport>,
}

impl fmt::Display for TuneSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, table, entries, reports } = self;
        writeln!(f, "tuned {} problems on {device}", reports.len())?;
        writeln!(f, "{table} has {entries}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fp4_formats::gemm::{Adding, Split};
    use fp4_formats::{FloatType, HalfType};
    use nvfp4::gemm::{ActivationKind, Candidate};
    use nvfp4::quantize::Format;
    use proptest::prelude::*;

    /// Number `ctas` of the candidates.
    fn swept(ctas: u64, median: Option<f64>) -> Swept {
        let split = Split::Cluster(1 + ctas as u32);
        let candidate =
            Candidate { kernel: "kernel", split, ctas, waves: 1, cycles: 1, bound: "products" };
        let times = median.and_then(|median| Times::new(vec![median]));
        let error = times.is_none().then(|| "refused".into());
        Swept { candidate, times, error }
    }

    fn problem() -> TuneProblem {
        let activations = ActivationKind::Halves(HalfType::F16);
        let (format, output) = (Format::Nvfp4, FloatType::F16.into());
        let shape = GemmShape::of(1, 8, 16);
        TuneProblem {
            format,
            activations,
            output,
            gated: false,
            shape,
            groups: None,
            adding: Adding::default(),
        }
    }

    proptest! {
        /// The smallest median wins, refused ones never, and of equals the first.
        #[test]
        fn the_fastest_of_those_timed(medians in prop::collection::vec(
            prop::option::of(1u32..6), 0..12,
        )) {
            let sweep: Vec<Swept> = (1..)
                .zip(&medians)
                .map(|(ctas, median)| swept(ctas, median.map(f64::from)))
                .collect();
            let least = medians.iter().flatten().min();
            let expected = least.and_then(|least| {
                medians.iter().position(|median| median.as_ref() == Some(least))
            });
            let found = fastest(&sweep).map(|(swept, _)| swept.candidate.ctas as usize - 1);
            prop_assert_eq!(found, expected);
            match pick(&problem(), &sweep) {
                Ok((_, measured)) => {
                    prop_assert_eq!(Some(measured.split.cluster() as usize - 2), expected);
                    let seconds = least.copied().unwrap_or(0);
                    prop_assert_eq!(measured.median_ns, u64::from(seconds) * 1_000_000_000);
                }
                Err(error) => {
                    prop_assert!(least.is_none());
                    let count = format!("none of the {} candidates", sweep.len());
                    prop_assert!(error.to_string().starts_with(&count), "{}", error);
                }
            }
        }
    }

    #[test]
    fn times_are_whole_and_never_zero() {
        assert_eq!(nanoseconds(12.345_6e-6), 12_346);
        assert_eq!(nanoseconds(0.0), 1);
    }
}
