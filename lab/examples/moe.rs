//! A mixture of experts on the tokens of two steps: routing, gathering, the gated product, the second
//! product and combining, all on the device. Each step's result is compared with the f64 oracle on what
//! the steps before it left.
//!
//! ```text
//! cargo run --release --package nvfp4-lab --example moe -- [DEVICE]
//! ```
//!
//! DEVICE is as for `nvfp4 --device`; without a GPU the kernels run on the emulator.

use fp4_formats::{HalfType, Nvfp4, ScaleLayout};
use nvfp4::device::{Device, Kernels};
use nvfp4::gemm::{Activation, GatedWeights, HalfMatrix};
use nvfp4::moe::{MoeOptions, MoeShape};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::moe::{HostBiases, MoeOperands, MoeRun, StepCheck};
use nvfp4_lab::rng::SplitMix64;

/// Eight experts, of which each of six tokens chooses two.
const SHAPE: MoeShape = MoeShape { tokens: 6, top_k: 2, experts: 8, first: 0, count: 8 };
/// Columns of the tokens.
const HIDDEN: usize = 128;
/// Columns between the products.
const BETWEEN: usize = 192;

fn main() -> anyhow::Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".into());
    let kernels = Device::open(&device.parse()?)?.kernels(None)?;
    println!("on {}", kernels.device().choice());
    let (plans, launches) = run(&kernels)?;
    println!("first  {}\nsecond {}", plans[0], plans[1]);
    for (launch, checks) in launches.iter().enumerate() {
        println!("tokens of step {launch}");
        checks.iter().for_each(|check| println!("  {check}"));
        anyhow::ensure!(checks.iter().all(|check| check.verified), "a step is wrong");
    }
    Ok(())
}

/// The tokens of one step.
struct Step {
    x: HalfMatrix,
    ids: Vec<i32>,
    weights: Vec<f32>,
}

impl Step {
    /// Normal values; each token chooses two experts.
    fn random(seed: u64) -> anyhow::Result<Self> {
        let mut rng = SplitMix64::new(seed);
        let values: Vec<f32> = (0..SHAPE.tokens * HIDDEN).map(|_| rng.normal() as f32).collect();
        let dims = Dims::new(1, SHAPE.tokens, HIDDEN)?;
        let experts = SHAPE.experts as u32;
        let two = |_| {
            let (one, distance) = (rng.below(experts), 1 + rng.below(experts - 1));
            [one as i32, ((one + distance) % experts) as i32]
        };
        let ids = (0..SHAPE.tokens).flat_map(two).collect();
        let share = |_| 0.25 + 0.5 * rng.uniform() as f32;
        let weights = (0..SHAPE.tokens).map(share).flat_map(|share| [share, 1.0 - share]);
        let weights = weights.collect();
        Ok(Self { x: HalfMatrix::round("x", dims, HalfType::Bf16, &values)?, ids, weights })
    }
}

/// Runs the layer on two sets of random tokens and choices: its plans, and each launch's steps.
pub fn run(kernels: &Kernels) -> anyhow::Result<([String; 2], Vec<Vec<StepCheck>>)> {
    let mut rng = SplitMix64::new(3);
    // Once per layer: each expert's gate, up and down are tensors with their own scales.
    let mut tensors = |rows: usize, columns: usize| -> anyhow::Result<Vec<BlockScaled<Nvfp4>>> {
        let dims = Dims::new(1, rows, columns)?;
        let tensor = |_| {
            let values: Vec<f32> = (0..rows * columns).map(|_| 0.1 * rng.normal() as f32).collect();
            Ok(quantize("w", &values, dims, TensorScale::FromAmax, ScaleLayout::Linear)?)
        };
        (0..SHAPE.count).map(tensor).collect()
    };
    let (gates, ups) = (tensors(BETWEEN, HIDDEN)?, tensors(BETWEEN, HIDDEN)?);
    let downs = tensors(HIDDEN, BETWEEN)?;
    let pairs = gates.iter().zip(&ups).map(|(gate, up)| GatedWeights::pair(gate, up));
    let first = pairs.map(|pair| pair.map(Into::into)).collect::<Result<Vec<_>, _>>()?;

    let (before, after) = (Step::random(4)?, Step::random(5)?);
    let layer = MoeOperands {
        shape: SHAPE,
        tokens: &before.x,
        ids: &before.ids,
        weights: &before.weights,
        first,
        second: downs.iter().map(Into::into).collect(),
        factors: None,
        biases: HostBiases::default(),
        shared: None,
        options: MoeOptions::new().activation(Activation::Silu),
    };
    let repacked = layer.repack(kernels.device())?;
    let run = MoeRun::new(kernels, &layer, repacked.each_ref())?;
    run.launch()?;
    let mut launches = vec![run.check(&layer)?];

    // Other tokens with other choices: the same plan, memory and launches.
    let Step { x, ids, weights } = &after;
    let next = MoeOperands { tokens: x, ids, weights, ..layer.clone() };
    run.write(&next)?;
    run.launch()?;
    launches.push(run.check(&next)?);
    anyhow::ensure!(run.problem()?.is_none(), "the device found ids or weights to be bad");
    Ok((run.layer().products().map(|product| product.plan().to_string()), launches))
}
