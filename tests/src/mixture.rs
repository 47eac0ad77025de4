//! Mixtures of experts: random weights, and random tokens that choose among them.

use fp4_formats::{BlockFormat, HalfType, ScaleLayout};
use nvfp4::gemm::{Activation, GatedWeights, HalfMatrix};
use nvfp4::moe::{MoeOptions, MoeShape, TokenFormat};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::moe::{HostBiases, MoeOperands};
use nvfp4_lab::rng::SplitMix64;

use crate::gemm::blocks;

/// The format that a layer's activations are quantised to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantized {
    /// Nothing: they stay in 16 bits.
    No,
    /// The weights' format, with the scales of the largest magnitudes.
    Blocks,
    /// e4m3.
    Fp8,
}

/// The sizes and types of a layer.
#[derive(Clone, Copy, Debug)]
pub struct MixtureCase {
    /// Tokens and experts.
    pub shape: MoeShape,
    /// Columns of the tokens, and between the products.
    pub sizes: [usize; 2],
    /// Type of the tokens.
    pub half: HalfType,
    /// The format of activations in each product.
    pub quantized: Quantized,
    /// The activation function of the gate.
    pub activation: Activation,
    /// Whether there are biases and a shared expert's result.
    pub extras: bool,
}

impl MixtureCase {
    /// Makes a layer of all experts on the device, with SiLU.
    #[must_use]
    pub fn new([tokens, experts, top_k]: [usize; 3], sizes: [usize; 2], half: HalfType) -> Self {
        let shape = MoeShape { tokens, top_k, experts, first: 0, count: experts };
        let activation = Activation::Silu;
        Self { shape, sizes, half, quantized: Quantized::No, activation, extras: false }
    }
}

/// A layer's weights.
#[derive(Debug)]
pub struct Mixture<F> {
    case: MixtureCase,
    /// Gate, up and down of each expert, each a tensor with its scale.
    weights: [Vec<BlockScaled<F>>; 3],
    biases: [Vec<f32>; 3],
}

/// The tokens of one launch.
#[derive(Clone, Debug)]
pub struct TokenBatch {
    x: HalfMatrix,
    ids: Vec<i32>,
    weights: Vec<f32>,
    shared: Vec<f32>,
}

fn normal(rng: &mut SplitMix64, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.normal() as f32).collect()
}

impl<F: BlockFormat> Mixture<F> {
    /// Makes random weights.
    ///
    /// # Panics
    /// If the sizes are impossible.
    #[must_use]
    pub fn new(case: MixtureCase, seed: u64) -> Self {
        let ([hidden, between], count) = (case.sizes, case.shape.count);
        let mut rng = SplitMix64::new(seed);
        let weights = [[between, hidden], [between, hidden], [hidden, between]].map(|[n, k]| {
            let tensor = |expert: usize| {
                let scale = [0.5, 1.0, 0.25][expert % 3];
                blocks(Generator::FullRange, [1, n, k], ScaleLayout::Linear, scale, &mut rng)
            };
            (0..count).map(tensor).collect()
        });
        let biases = [between, between, hidden].map(|columns| normal(&mut rng, count * columns));
        Self { case, weights, biases }
    }

    /// Makes random tokens; each chooses different experts, most of them few.
    ///
    /// # Panics
    /// The same as [`new`](Self::new).
    #[must_use]
    pub fn step(&self, seed: u64) -> TokenBatch {
        let MixtureCase { shape, sizes: [hidden, _], half, .. } = self.case;
        let MoeShape { tokens, top_k, experts, .. } = shape;
        let mut rng = SplitMix64::new(seed);
        let mut ids = Vec::new();
        for _ in 0..tokens {
            let most = if rng.below(2) == 0 { experts } else { experts.div_ceil(4).max(top_k) };
            let first = rng.below(most as u32) as usize;
            ids.extend((0..top_k).map(|at| ((first + at) % most) as i32));
        }
        let dims = Dims::new(1, tokens, hidden).expect("dims");
        let x = HalfMatrix::round("x", dims, half, &normal(&mut rng, tokens * hidden));
        let (weights, shared) = (normal(&mut rng, ids.len()), normal(&mut rng, tokens * hidden));
        TokenBatch { x: x.expect("fits"), ids, weights, shared }
    }

    /// Returns weights and tokens as a layer takes them; the scales of activations that are
    /// quantised are those of these tokens.
    ///
    /// # Panics
    /// The same as [`new`](Self::new).
    #[must_use]
    pub fn operands<'a>(&'a self, step: &'a TokenBatch) -> MoeOperands<'a, F> {
        let MixtureCase { shape, quantized, activation, extras, .. } = self.case;
        let [gates, ups, downs] = &self.weights;
        let pair = |(gate, up)| GatedWeights::pair(gate, up).expect("a pair").into();
        let [gate, up, down] = self.biases.each_ref().map(|bias| extras.then_some(bias.as_slice()));
        let mut operands = MoeOperands {
            shape,
            tokens: &step.x,
            ids: &step.ids,
            weights: &step.weights,
            first: gates.iter().zip(ups).map(pair).collect(),
            second: downs.iter().map(Into::into).collect(),
            factors: None,
            biases: HostBiases { gate, up, down },
            shared: extras.then_some(step.shared.as_slice()),
            options: MoeOptions::new().activation(activation),
        };
        operands.options.quantized = match quantized {
            Quantized::No => None,
            Quantized::Blocks => {
                Some(TokenFormat::Blocks(operands.token_scales().expect("the oracle")))
            }
            Quantized::Fp8 => Some(TokenFormat::Fp8),
        };
        operands
    }

    /// Returns the operands of another step, with the scales of other operands.
    ///
    /// # Panics
    /// The same as [`new`](Self::new).
    #[must_use]
    pub fn next<'a>(
        &'a self,
        step: &'a TokenBatch,
        like: &MoeOperands<'a, F>,
    ) -> MoeOperands<'a, F> {
        let TokenBatch { x, ids, weights, shared } = step;
        let shared = like.shared.is_some().then_some(shared.as_slice());
        MoeOperands { tokens: x, ids, weights, shared, ..like.clone() }
    }
}

/// Returns small layers of every kind: 16-bit, FP4 and e4m3 activations, experts elsewhere, biases and a
/// shared expert; weights are NVFP4.
#[must_use]
pub fn small() -> Vec<MixtureCase> {
    let bf16 = MixtureCase::new([9, 6, 2], [64, 96], HalfType::Bf16);
    let elsewhere = MoeShape { first: 1, count: 3, ..bf16.shape };
    vec![
        MixtureCase { extras: true, ..bf16 },
        MixtureCase { shape: elsewhere, half: HalfType::F16, extras: true, ..bf16 },
        MixtureCase { quantized: Quantized::Blocks, activation: Activation::GPT_OSS, ..bf16 },
        MixtureCase::new([40, 5, 3], [160, 80], HalfType::F16),
        MixtureCase { shape: MoeShape { tokens: 1, top_k: 3, ..elsewhere }, extras: true, ..bf16 },
        MixtureCase {
            quantized: Quantized::Blocks,
            ..MixtureCase::new([1, 7, 4], [96, 64], HalfType::F16)
        },
        MixtureCase { shape: elsewhere, quantized: Quantized::Blocks, extras: true, ..bf16 },
        MixtureCase { shape: elsewhere, quantized: Quantized::Fp8, extras: true, ..bf16 },
        MixtureCase {
            quantized: Quantized::Fp8,
            ..MixtureCase::new([1, 7, 4], [96, 64], HalfType::F16)
        },
    ]
}
