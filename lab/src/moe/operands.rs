//! A layer's operands on the host, and where routing puts the tokens.

use std::ops::Range;

use fp4_formats::quantize::Format;
use fp4_formats::{Arch, BlockFormat};

use crate::gemm::reference_grouped_for;
use crate::oracle::Reference;
use nvfp4::device::Device;
use nvfp4::error::{Error, Result};
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationKind, Fp8Matrix, GemmActivations, GemmOptions, HalfMatrix, Repacked, RowScaled,
    UpOptions, Weights, format_of, group_options, scale_options,
};
use nvfp4::moe::{MoeLayer, MoeOptions, MoeShape, TokenFormat, TokenScales};
use nvfp4::quantize::{QuantizedMatrix, quantize_matrix};
use nvfp4::tensor::{BlockScaled, Dims};

/// A layer's operands on the host, each checked against the others by [`MoeOperands::check`].
#[derive(Clone, Debug)]
pub struct MoeOperands<'a, F> {
    /// Tokens, and the experts of all devices and of this one.
    pub shape: MoeShape,
    /// `[tokens, H]`.
    pub tokens: &'a HalfMatrix,
    /// `[tokens, top_k]`: each token's experts.
    pub ids: &'a [i32],
    /// `[tokens, top_k]`: their weights.
    pub weights: &'a [f32],
    /// The gated weights of each expert of this device, `[I, H]` twice.
    pub first: Vec<Weights<'a, F>>,
    /// The weights of each expert of this device, `[H, I]`.
    pub second: Vec<Weights<'a, F>>,
    /// A factor of each expert's weights besides their scales, that of [`Repacked::scaled`]; none is 1.
    pub factors: Option<Vec<f32>>,
    /// The biases of each expert's products.
    pub biases: HostBiases<'a>,
    /// `[tokens, H]`: what is added to the result, values of its type.
    pub shared: Option<&'a [f32]>,
    /// The rest.
    pub options: MoeOptions,
}

/// Biases of a layer's experts on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBiases<'a> {
    /// Biases of the gates, `[count, I]`.
    pub gate: Option<&'a [f32]>,
    /// Biases of the other halves, `[count, I]`.
    pub up: Option<&'a [f32]>,
    /// Biases of the second products, `[count, H]`.
    pub down: Option<&'a [f32]>,
}

/// The routes that routing must find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostRoutes {
    /// The choice of each row.
    pub order: Vec<usize>,
    /// Each expert's rows.
    pub ranges: Vec<Range<usize>>,
}

impl<F: BlockFormat> MoeOperands<'_, F> {
    /// H.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.tokens.dims().cols()
    }

    /// I.
    pub(crate) fn between(&self) -> usize {
        self.second.first().map_or(0, |weights| weights.dims().cols())
    }

    /// Checks sizes, ids and weights; formats are checked when the layer is planned.
    ///
    /// # Errors
    /// [`Error::Shape`], for an id with its place; [`Error::Scalar`] for a weight that is not finite.
    pub fn check(&self) -> Result<()> {
        self.shape.check()?;
        let MoeShape { tokens, top_k, experts, count, .. } = self.shape;
        let (hidden, between) = (self.hidden(), self.between());
        let slots = tokens.saturating_mul(top_k);
        let HostBiases { gate, up, down } = self.biases;
        let len = |values: Option<&[f32]>| values.map(<[f32]>::len);
        for (what, found, required) in [
            ("tokens", Some(self.tokens.dims().rows()), tokens),
            ("batch of the tokens", Some(self.tokens.dims().batch()), 1),
            ("ids", Some(self.ids.len()), slots),
            ("weights of the choices", Some(self.weights.len()), slots),
            ("experts in the first weights", Some(self.first.len()), count),
            ("experts in the second weights", Some(self.second.len()), count),
            ("factors of the experts", self.factors.as_ref().map(Vec::len), count),
            ("length of the gates' biases", len(gate), count.saturating_mul(between)),
            ("length of the biases of up", len(up), count.saturating_mul(between)),
            ("length of the second biases", len(down), count.saturating_mul(hidden)),
            ("length of the shared experts' result", len(self.shared), tokens * hidden),
        ] {
            match found {
                Some(found) if found != required => {
                    return Err(Error::shape(what, required.to_string(), found));
                }
                _ => {}
            }
        }
        let sizes = |n, k| [("batch", 1), ("rows", n), ("K", k)];
        let first = self.first.iter().map(|weights| (weights, true, sizes(between, hidden)));
        let second = self.second.iter().map(|weights| (weights, false, sizes(hidden, between)));
        for (weights, gated, required) in first.chain(second) {
            let (name, dims) = (weights.name(), weights.dims());
            if weights.is_gated() != gated {
                let required = if gated { "gated" } else { "not gated" };
                let what = format!("weights `{name}`");
                return Err(Error::shape(what, required, "otherwise"));
            }
            let found = [dims.batch(), dims.rows(), dims.cols()];
            for ((what, required), found) in required.into_iter().zip(found) {
                if found != required {
                    let what = format!("{what} of `{name}`");
                    return Err(Error::shape(what, required.to_string(), found));
                }
            }
        }
        let valid = |id: i32| usize::try_from(id).is_ok_and(|id| id < experts);
        if let Some(at) = self.ids.iter().position(|&id| !valid(id)) {
            let what = format!("id {} of token {}", at % top_k, at / top_k);
            return Err(Error::shape(what, format!("from 0 to {}", experts - 1), self.ids[at]));
        }
        match self.weights.iter().position(|weight| !weight.is_finite()) {
            None => Ok(()),
            Some(at) => Err(Error::Scalar {
                field: format!("weight {} of token {}", at % top_k, at / top_k),
                required: "finite",
                actual: self.weights[at].into(),
            }),
        }
    }

    /// Checks that the operands have the sizes and types that `layer` is planned for: their shape, the columns and
    /// the type of their tokens, and their options, of which the activation may be another.
    ///
    /// # Errors
    /// [`Error::Shape`](nvfp4::Error::Shape) for others.
    pub(crate) fn check_planned(&self, layer: &MoeLayer) -> Result<()> {
        let Self { shape: found, tokens, options, .. } = self;
        let planned = layer.shape();
        for (what, required, found) in [
            ("tokens", planned.tokens, found.tokens),
            ("experts of a token", planned.top_k, found.top_k),
            ("experts", planned.experts, found.experts),
            ("first expert of this device", planned.first, found.first),
            ("experts of this device", planned.count, found.count),
            ("columns of the tokens", layer.hidden(), self.hidden()),
        ] {
            if found != required {
                return Err(Error::shape(what, format!("{required}, as planned"), found));
            }
        }
        let quantised = |to: Option<TokenFormat>| match to {
            None => "as they are",
            Some(TokenFormat::Blocks(_)) => "quantised to the weights' format",
            Some(TokenFormat::Fp8) => "quantised to e4m3",
            Some(TokenFormat::ScaledRows) => "quantised to nvfp4 with a scale for each row",
        };
        let quantises = [layer.quantized(), options.quantized].map(quantised);
        for (what, required, found) in [
            ("type of the tokens", layer.tokens().name(), tokens.operand().name()),
            ("type of the rows", layer.rows().name(), options.rows.name()),
            ("type of the result", layer.output().name(), options.output.name()),
            ("type of what is added", layer.shared().name(), options.shared_type().name()),
            ("activations", quantises[0], quantises[1]),
        ] {
            if found != required {
                return Err(Error::shape(what, format!("{required}, as planned"), found));
            }
        }
        Ok(())
    }

    /// The weights of both products for the kernels of `device`.
    ///
    /// # Errors
    /// The same as [`Repacked::for_device`], [`Repacked::gated`] and [`Repacked::stack`].
    pub fn repack(&self, device: &Device) -> Result<[Repacked; 2]> {
        self.repacked(device, Repacked::of_weights)
    }

    /// The weights of both products, rounded where e4m3 does not hold them.
    ///
    /// # Errors
    /// The same as [`Repacked::rounded`] and [`Repacked::stack`].
    pub fn repack_rounded(&self, device: &Device) -> Result<[Repacked; 2]> {
        self.repacked(device, Repacked::rounded)
    }

    fn repacked(
        &self,
        device: &Device,
        part: impl Fn(&Device, Weights<'_, F>, ActivationKind) -> Result<Repacked>,
    ) -> Result<[Repacked; 2]> {
        let stack = |weights: &[Weights<'_, F>]| {
            let kind = self.options.activations(self.tokens.operand(), format_of::<F>());
            let part = |weights: &Weights<'_, F>| part(device, *weights, kind);
            let parts: Vec<Repacked> = weights.iter().map(part).collect::<Result<_>>()?;
            let factors = self.factors.iter().flatten().copied().chain(std::iter::repeat(1.0));
            Repacked::stack_scaled(parts.iter().zip(factors))
        };
        Ok([stack(&self.first)?, stack(&self.second)?])
    }

    /// Choices of this device's experts by expert, those of one in their order.
    pub(crate) fn route(&self) -> HostRoutes {
        let MoeShape { first, count, .. } = self.shape;
        let expert = |slot: usize| self.ids[slot] as usize;
        let mut order: Vec<usize> = (0..self.ids.len())
            .filter(|&slot| (first..first + count).contains(&expert(slot)))
            .collect();
        order.sort_by_key(|&slot| expert(slot));
        let start = |local: usize| order.partition_point(|&slot| expert(slot) < first + local);
        let ranges = (0..count).map(|local| start(local)..start(local + 1)).collect();
        HostRoutes { order, ranges }
    }

    /// The tokens as they are quantised to the weights' format.
    ///
    /// # Errors
    /// The same as [`quantize_matrix`].
    pub(crate) fn quantized_tokens(&self) -> Result<Option<QuantizedMatrix>> {
        let quantize = |scales: &TokenScales| {
            let values = floats::decode(self.tokens.operand().float(), self.tokens.bytes());
            quantize_matrix("x", &values, self.tokens.dims(), &scales.of_tokens(format_of::<F>())?)
        };
        let scales = self.options.quantized.and_then(|format| format.scales());
        scales.as_ref().map(quantize).transpose()
    }

    /// The tokens of at least one choice, in `order`.
    pub(crate) fn gathered(
        &self,
        order: &[usize],
        tokens: Option<&QuantizedMatrix>,
    ) -> Result<GemmActivations<F>> {
        const NAME: &str = "gathered";
        let (hidden, top_k) = (self.hidden(), self.shape.top_k);
        let dims = Dims::new(1, order.len(), hidden)?;
        let rows = |bytes: &[u8], row: usize| -> Vec<u8> {
            order.iter().flat_map(|slot| &bytes[slot / top_k * row..][..row]).copied().collect()
        };
        Ok(match tokens {
            None => {
                let bytes = rows(self.tokens.bytes(), 2 * hidden);
                let half = self.tokens.operand();
                let halves = HalfMatrix::new(NAME, dims, half, bytes)?;
                match self.options.quantized {
                    Some(TokenFormat::Fp8) => GemmActivations::Fp8(Fp8Matrix::quantize(&halves)?),
                    Some(TokenFormat::ScaledRows) => {
                        GemmActivations::ScaledRows(RowScaled::quantize(&halves)?)
                    }
                    None | Some(TokenFormat::Blocks(_)) => GemmActivations::Halves(halves),
                }
            }
            Some(QuantizedMatrix { options, codes, scales, parameters, .. }) => {
                let scale = parameters.first().copied().unwrap_or(1.0);
                let (codes, scales) = (rows(codes, hidden / 2), rows(scales, hidden / F::BLOCK));
                let layout = options.layout;
                let blocks = BlockScaled::new(NAME, dims, layout, codes, scales, scale)?;
                GemmActivations::Blocks(blocks)
            }
        })
    }

    /// The rows that gathering leaves, where it quantises to NVFP4 with a scale for each: the tokens of `order`, and zeros
    /// behind them.
    ///
    /// # Errors
    /// The same as [`RowScaled::quantize`].
    pub(crate) fn scaled_slots(&self, order: &[usize]) -> Result<RowScaled<F>> {
        let (hidden, top_k) = (self.hidden(), self.shape.top_k);
        let row = |slot: &usize| &self.tokens.bytes()[slot / top_k * 2 * hidden..][..2 * hidden];
        let mut bytes: Vec<u8> = order.iter().flat_map(row).copied().collect();
        bytes.resize(self.ids.len() * 2 * hidden, 0);
        let dims = Dims::new(1, self.ids.len(), hidden)?;
        RowScaled::quantize(&HalfMatrix::new("gathered", dims, self.tokens.operand(), bytes)?)
    }

    /// The oracle's options of each expert.
    fn options_of(&self, options: &GemmOptions, n: usize) -> Vec<GemmOptions> {
        let mut all = group_options(options, self.shape.count, n);
        scale_options(&mut all, self.factors.as_deref().unwrap_or_default());
        all
    }

    /// The first product of these activations, as the kernels of a target take the weights.
    ///
    /// # Errors
    /// The same as [`reference_grouped_for`].
    pub(crate) fn first_product(
        &self,
        arch: Arch,
        a: &GemmActivations<F>,
        ranges: &[Range<usize>],
    ) -> Result<Reference> {
        let owned = |bias: Option<&[f32]>| bias.map(<[f32]>::to_vec);
        let options = GemmOptions::new()
            .activation(self.options.activation)
            .bias(owned(self.biases.gate))
            .up(UpOptions::new().bias(owned(self.biases.up)));
        let options = self.options_of(&options, self.between());
        reference_grouped_for(arch, &a.activations(), &self.first, ranges, &options)
    }

    /// The second product of these activations, likewise.
    ///
    /// # Errors
    /// The same as [`reference_grouped_for`].
    pub(crate) fn second_product(
        &self,
        arch: Arch,
        a: &GemmActivations<F>,
        ranges: &[Range<usize>],
    ) -> Result<Reference> {
        let options = GemmOptions::new().bias(self.biases.down.map(<[f32]>::to_vec));
        let options = self.options_of(&options, self.hidden());
        reference_grouped_for(arch, &a.activations(), &self.second, ranges, &options)
    }

    /// Tensor scales for the largest magnitudes of the tokens and of what is between the products,
    /// by the oracle: what calibration on these tokens would find. Scales of MXFP4 are 1.
    ///
    /// # Errors
    /// The same as [`reference_grouped_for`] and [`quantize_matrix`].
    pub fn token_scales(&self) -> Result<TokenScales> {
        let format = format_of::<F>();
        let values = floats::decode(self.tokens.operand().float(), self.tokens.bytes());
        let amax = values.iter().fold(0f32, |amax, value| amax.max(value.abs()));
        let tokens = TokenScales::of_largest(format, amax);
        let HostRoutes { order, ranges } = self.route();
        if order.is_empty() || format == Format::Mxfp4 {
            return Ok(TokenScales { tokens, between: TokenScales::of_largest(format, 0.0) });
        }
        let scales = TokenScales { tokens, between: 1.0 };
        let options = self.options.clone().quantized(TokenFormat::Blocks(scales));
        let with = Self { options, ..self.clone() };
        let gathered = with.gathered(&order, with.quantized_tokens()?.as_ref())?;
        // All targets take codes in blocks as they are.
        let values = with.first_product(Arch::Sm100a, &gathered, &ranges)?.values;
        let amax = values.iter().fold(0f64, |amax, value| value.abs().max(amax));
        Ok(TokenScales { tokens, between: TokenScales::of_largest(format, amax as f32) })
    }

    /// The shared experts' result as the layer takes it.
    pub(crate) fn shared_bytes(&self) -> Option<Vec<u8>> {
        let encode = |values: &[f32]| {
            floats::encode(self.options.shared_type(), values.iter().copied().map(f64::from))
        };
        self.shared.map(encode)
    }

    /// The sums over each token's `rows`, in the order of routing.
    pub(crate) fn combined(&self, order: &[usize], rows: &[f32]) -> Reference {
        let MoeShape { tokens, top_k, .. } = self.shape;
        let hidden = self.hidden();
        let of = self.options.shared_type();
        let shared = self.shared_bytes().map(|bytes| floats::decode(of, &bytes));
        let mut values = match shared {
            None => vec![0f64; tokens * hidden],
            Some(shared) => shared.into_iter().map(f64::from).collect(),
        };
        let mut magnitudes: Vec<f64> = values.iter().map(|value| value.abs()).collect();
        for (&slot, row) in order.iter().zip(rows.chunks_exact(hidden)) {
            let (weight, at) = (f64::from(self.weights[slot]), slot / top_k * hidden);
            for (column, &value) in row.iter().enumerate() {
                let term = weight * f64::from(value);
                values[at + column] += term;
                magnitudes[at + column] += term.abs();
            }
        }
        Reference { values, magnitudes, rows: hidden, additions: top_k + 1 }
    }
}
