//! What each step of a mixture of experts must leave in memory, for the bench.
//!
//! Every step is compared on its own inputs, as the steps before left them: bounds stay those of one
//! product, and an error is named with its step.

use std::ops::Range;

use fp4_formats::{BlockFormat, FloatType, HalfType};
use serde::Serialize;

use super::experts::Experts;
use super::gemm::TokenMatrix;
use crate::buffer::DeviceBuffer;
use crate::error::{Error, Result, filled};
use crate::floats;
use crate::gemm::{GemmOptions, GemmResult, HalfMatrix, Output, UpOptions, reference_grouped};
use crate::moe::{MoeLayer, MoeMemory, MoeStep, Tokens};
use crate::oracle::{Reference, Verification};
use crate::quantize::{QuantizeOptions, QuantizedMatrix, quantize_matrix};
use crate::shape::MixtureShape;
use crate::tensor::{BlockScaled, Dims};

/// A comparison of one step.
#[derive(Clone, Debug, Serialize)]
pub struct StepCheck {
    /// The step.
    pub step: &'static str,
    /// Whether all is as it must be.
    pub verified: bool,
    /// Of steps that round: how far results are from the f64 oracle.
    pub verification: Option<Verification>,
}

/// A layer's operands on the host.
pub(super) struct Layer<F> {
    pub shape: MixtureShape,
    pub first: Experts<F>,
    pub second: Experts<F>,
    pub activation: crate::gemm::Activation,
    /// `[T, H]`.
    pub tokens: HalfMatrix,
    /// Where activations are quantised, how.
    pub quantized: Option<QuantizeOptions>,
    /// Type of the layer's result.
    pub output: FloatType,
}

/// Who goes where, in one launch.
pub(super) struct Choices {
    /// `[T, K]`.
    pub ids: Vec<i32>,
    /// `[T, K]`.
    pub weights: Vec<f32>,
}

impl Choices {
    /// Slots in the order of experts, and each expert's part of them.
    fn route(&self, experts: usize) -> (Vec<usize>, Vec<Range<usize>>) {
        let mut order: Vec<usize> = (0..self.ids.len()).collect();
        order.sort_by_key(|&slot| self.ids[slot]);
        let first = |expert: usize| order.partition_point(|&slot| self.ids[slot] < expert as i32);
        let ranges = (0..experts).map(|expert| first(expert)..first(expert + 1)).collect();
        (order, ranges)
    }
}

impl<F: BlockFormat> Layer<F> {
    fn half(&self) -> HalfType {
        self.tokens.operand()
    }

    /// The tokens as they are quantised.
    ///
    /// # Errors
    /// As [`quantize_matrix`].
    fn quantized_tokens(&self) -> Result<Option<QuantizedMatrix>> {
        let values = floats::decode(self.half().float(), self.tokens.bytes());
        let quantize = |options| quantize_matrix("x", &values, self.tokens.dims(), options);
        self.quantized.as_ref().map(quantize).transpose()
    }

    /// The rows of each slot's token, in `order`.
    fn gathered(
        &self,
        order: &[usize],
        tokens: Option<&QuantizedMatrix>,
    ) -> Result<TokenMatrix<F>> {
        let MixtureShape { top_k, hidden, .. } = self.shape;
        let dims = Dims::new(1, order.len(), hidden)?;
        let rows = |bytes: &[u8], row: usize| -> Vec<u8> {
            order.iter().flat_map(|slot| &bytes[slot / top_k * row..][..row]).copied().collect()
        };
        Ok(match tokens {
            None => {
                let bytes = rows(self.tokens.bytes(), 2 * hidden);
                TokenMatrix::Halves(HalfMatrix::new("gathered", dims, self.half(), bytes)?)
            }
            Some(QuantizedMatrix { options, codes, scales, parameters, .. }) => {
                let scale = parameters.first().copied().unwrap_or(1.0);
                let (codes, scales) = (rows(codes, hidden / 2), rows(scales, hidden / F::BLOCK));
                TokenMatrix::Blocks(BlockScaled::new(
                    "gathered",
                    dims,
                    options.layout,
                    codes,
                    scales,
                    scale,
                )?)
            }
        })
    }

    /// The first product of these activations.
    fn first_product(&self, a: &TokenMatrix<F>, ranges: &[Range<usize>]) -> Result<Reference> {
        let up = Some(UpOptions::default());
        let options = GemmOptions { activation: self.activation, up, ..GemmOptions::default() };
        let options = self.first.options(&options);
        reference_grouped(&a.view(), &self.first.weights()?, ranges, &options)
    }

    /// The largest magnitude between the products.
    ///
    /// # Errors
    /// As [`reference_grouped`].
    pub fn largest_between(&self, choices: &Choices) -> Result<f64> {
        let (order, ranges) = choices.route(self.shape.experts);
        let gathered = self.gathered(&order, self.quantized_tokens()?.as_ref())?;
        let values = self.first_product(&gathered, &ranges)?.values;
        Ok(values.iter().fold(0.0, |amax, value| value.abs().max(amax)))
    }

    /// Compares what a launch left in `memory` and `out`.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), [`Error::Memory`].
    pub fn check(
        &self,
        choices: &Choices,
        layer: &MoeLayer,
        memory: &MoeMemory,
        out: &DeviceBuffer,
    ) -> Result<Vec<StepCheck>> {
        let MixtureShape { experts, .. } = self.shape;
        let (order, ranges) = choices.route(experts);
        let exact = |step: MoeStep, verified| {
            Ok::<_, Error>(StepCheck { step: step.name(), verified, verification: None })
        };
        let within = |step: MoeStep, verification: Verification| {
            let verified = verification.passed();
            Ok(StepCheck { step: step.name(), verified, verification: Some(verification) })
        };
        let tokens = self.quantized_tokens()?;
        let gathered = self.gathered(&order, tokens.as_ref())?;
        let [plan_of_first, plan_of_second] = layer.products().map(|product| product.plan());
        let mut checks = Vec::new();
        for step in layer.steps() {
            checks.push(match step {
                MoeStep::Route => exact(step, routed(&order, &ranges, memory)?),
                MoeStep::Quantize => {
                    let (Some(right), Some(quantizer)) = (&tokens, &memory.quantizer) else {
                        return Err(Error::shape("memory", "of this layer", "of another one"));
                    };
                    exact(step, quantizer.result("x")?.difference(right).is_none())
                }
                MoeStep::Gather => {
                    let equal = match (&gathered, &memory.gathered) {
                        (TokenMatrix::Halves(right), Tokens::Halves(got)) => {
                            got.read()? == right.bytes()
                        }
                        (TokenMatrix::Blocks(right), Tokens::Blocks { codes, scales }) => {
                            codes.read()? == right.codes() && scales.read()? == right.scales()
                        }
                        (TokenMatrix::Halves(_), Tokens::Blocks { .. })
                        | (TokenMatrix::Blocks(_), Tokens::Halves(_)) => false,
                    };
                    exact(step, equal)
                }
                MoeStep::First => {
                    let reference = self.first_product(&gathered, &ranges)?;
                    let result = self.between(memory, plan_of_first.clone(), layer)?;
                    within(step, result.verify(&reference))
                }
                MoeStep::Second => {
                    let result = self.between(memory, plan_of_first.clone(), layer)?;
                    let a = self.activations_of(result)?;
                    let options = self.second.options(&GemmOptions::default());
                    let weights = self.second.weights()?;
                    let reference = reference_grouped(&a.view(), &weights, &ranges, &options)?;
                    let result = GemmResult {
                        bytes: memory.rows.read()?,
                        scales: Vec::new(),
                        dims: layer.products()[1].result_dims()?,
                        output: FloatType::F32.into(),
                        plan: plan_of_second.clone(),
                    };
                    within(step, result.verify(&reference))
                }
                MoeStep::Combine => {
                    let reference = self.combined(choices, &order, memory)?;
                    let got = floats::decode(self.output, &out.read()?);
                    within(step, reference.verify(&got, self.output))
                }
            }?);
        }
        Ok(checks)
    }

    /// What the first product left.
    fn between(
        &self,
        memory: &MoeMemory,
        plan: crate::gemm::GemmPlan,
        layer: &MoeLayer,
    ) -> Result<GemmResult> {
        let (bytes, scales) = match &memory.between {
            Tokens::Halves(halves) => (halves.read()?, Vec::new()),
            Tokens::Blocks { codes, scales } => (codes.read()?, scales.read()?),
        };
        let [first, _] = layer.products();
        let (dims, output) = (first.result_dims()?, first.output());
        Ok(GemmResult { bytes, scales, dims, output, plan })
    }

    /// A result as the next product's activations.
    fn activations_of(&self, result: GemmResult) -> Result<TokenMatrix<F>> {
        let GemmResult { bytes, scales, dims, output, .. } = result;
        Ok(match output {
            Output::Floats(_) => {
                TokenMatrix::Halves(HalfMatrix::new("between", dims, self.half(), bytes)?)
            }
            Output::Nvfp4 { scale, layout } => TokenMatrix::Blocks(BlockScaled::new(
                "between", dims, layout, bytes, scales, scale,
            )?),
        })
    }

    /// The sums over each token's rows.
    fn combined(
        &self,
        choices: &Choices,
        order: &[usize],
        memory: &MoeMemory,
    ) -> Result<Reference> {
        let MixtureShape { tokens, top_k, hidden, .. } = self.shape;
        let rows = floats::decode(FloatType::F32, &memory.rows.read()?);
        let mut values = filled("reference", tokens * hidden, 0f64)?;
        let mut magnitudes = filled("reference", tokens * hidden, 0f64)?;
        for (&slot, row) in order.iter().zip(rows.chunks_exact(hidden)) {
            let (weight, at) = (f64::from(choices.weights[slot]), slot / top_k * hidden);
            for (column, &value) in row.iter().enumerate() {
                let term = weight * f64::from(value);
                values[at + column] += term;
                magnitudes[at + column] += term.abs();
            }
        }
        Ok(Reference { values, magnitudes, rows: hidden, additions: top_k })
    }
}

/// Whether slots were routed in this order.
fn routed(order: &[usize], ranges: &[Range<usize>], memory: &MoeMemory) -> Result<bool> {
    let words = |buffer: &DeviceBuffer| -> Result<Vec<usize>> {
        let bytes = buffer.read()?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word) as usize).collect())
    };
    let mut positions = vec![0; order.len()];
    for (row, &slot) in order.iter().enumerate() {
        positions[slot] = row;
    }
    let offsets: Vec<usize> = ranges.iter().map(|range| range.start).chain([order.len()]).collect();
    let routes = &memory.routes;
    Ok(words(&routes.sources)? == order
        && words(&routes.positions)? == positions
        && words(&routes.offsets)? == offsets)
}
