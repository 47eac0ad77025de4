//! A mixture of experts beside a shared one, as DeepSeek's layers have: every token goes through
//! the shared expert, a gated product and a plain one, whose result the layer adds to the chosen experts'.
//! All launches are queued one after the other and allocate nothing, so that a CUDA graph can record them.
//!
//! ```text
//! cargo run --release --package nvfp4-lab --example shared_expert -- [DEVICE]
//! ```
//!
//! DEVICE is as for `nvfp4 --device`; without a GPU the kernels run on the emulator.

use fp4_formats::{HalfType, Nvfp4, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels};
use nvfp4::floats;
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, Activations, GatedWeights, Gemm, GemmOptions,
    HalfMatrix, Repacked, ResultBuffers, UpOptions, Vectors, Workspace,
};
use nvfp4::moe::{MoeBiases, MoeInputs, MoeLayer, MoeOptions, MoeShape};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::gemm::reference;
use nvfp4_lab::moe::{HostBiases, MoeOperands, MoeRun, StepCheck};
use nvfp4_lab::oracle::Verification;
use nvfp4_lab::rng::SplitMix64;

/// Eight experts, of which each of six tokens chooses two.
const SHAPE: MoeShape = MoeShape { tokens: 6, top_k: 2, experts: 8, first: 0, count: 8 };
/// Columns of the tokens.
const HIDDEN: usize = 128;
/// Columns between the products of an expert, and of the shared one.
const BETWEEN: usize = 64;
const SHARED_BETWEEN: usize = 192;
/// Type of the activations.
const HALF: HalfType = HalfType::Bf16;

fn main() -> anyhow::Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".into());
    let kernels = Device::open(&device.parse()?)?.kernels(None)?;
    println!("on {}", kernels.device().choice());
    let ran = run(&kernels)?;
    for (what, verification) in ["gated", "plain"].iter().zip(&ran.shared) {
        println!("shared expert, {what} product: {}", verification.summary());
        anyhow::ensure!(verification.passed(), "the shared expert is wrong");
    }
    ran.steps.iter().for_each(|check| println!("{check}"));
    anyhow::ensure!(ran.steps.iter().all(|check| check.verified), "a step of the layer is wrong");
    anyhow::ensure!(ran.same, "the layer's result is not that of its steps");
    Ok(())
}

/// The results that were compared with the f64 oracle.
pub struct Ran {
    /// The shared expert's products.
    pub shared: [Verification; 2],
    /// The steps of a layer that takes the shared expert's result from the host.
    pub steps: Vec<StepCheck>,
    /// Whether the result of that layer has the bits of the one that takes it on the device.
    pub same: bool,
}

/// Runs shared expert and layer on random numbers.
pub fn run(kernels: &Kernels) -> anyhow::Result<Ran> {
    let device = kernels.device();
    let mut rng = SplitMix64::new(3);
    let mut normal = |count: usize, scale: f64| -> Vec<f32> {
        (0..count).map(|_| (scale * rng.normal()) as f32).collect()
    };
    let mut tensor = |rows: usize, columns: usize| -> anyhow::Result<BlockScaled<Nvfp4>> {
        let (dims, values) = (Dims::new(1, rows, columns)?, normal(rows * columns, 0.1));
        Ok(quantize("w", &values, dims, TensorScale::FromAmax, ScaleLayout::Linear)?)
    };

    // Once per layer: the weights.
    let [gate, up] = [tensor(SHARED_BETWEEN, HIDDEN)?, tensor(SHARED_BETWEEN, HIDDEN)?];
    let down = tensor(HIDDEN, SHARED_BETWEEN)?;
    let mut experts = |rows, columns| {
        (0..SHAPE.count).map(|_| tensor(rows, columns)).collect::<anyhow::Result<Vec<_>>>()
    };
    let [gates, ups, downs] =
        [experts(BETWEEN, HIDDEN)?, experts(BETWEEN, HIDDEN)?, experts(HIDDEN, BETWEEN)?];
    let pairs = gates.iter().zip(&ups).map(|(gate, up)| GatedWeights::pair(gate, up));
    let kind = ActivationKind::Halves(HALF);
    let shared_pair = GatedWeights::pair(&gate, &up)?;
    let shared_weights = [
        Repacked::gated(device, &shared_pair, kind)?.upload(device)?,
        Repacked::for_device(device, &down, kind)?.upload(device)?,
    ];

    let x = normal(SHAPE.tokens * HIDDEN, 1.0);
    let x = HalfMatrix::round("x", Dims::new(1, SHAPE.tokens, HIDDEN)?, HALF, &x)?;
    let ids: Vec<i32> =
        (0..SHAPE.tokens as i32).flat_map(|token| [token, (3 * token + 1) % 8]).collect();
    let weights = vec![0.5; ids.len()];
    let mut operands = MoeOperands {
        shape: SHAPE,
        tokens: &x,
        ids: &ids,
        weights: &weights,
        first: pairs.map(|pair| pair.map(Into::into)).collect::<Result<Vec<_>, _>>()?,
        second: downs.iter().map(Into::into).collect(),
        factors: None,
        biases: HostBiases::default(),
        shared: None,
        options: MoeOptions::new().activation(Activation::Silu).output(HALF.float()),
    };
    let repacked = operands.repack(device)?;
    let experts = [repacked[0].upload(device)?, repacked[1].upload(device)?];

    // Once per number of tokens: plans and memory. The shared expert's result has the layer's type.
    let gated = GemmOptions::new().activation(Activation::Silu).up(UpOptions::new());
    let options = [gated.output(HALF.float()), GemmOptions::new().output(HALF.float())];
    let tokens = [1, SHAPE.tokens];
    let products = [
        Gemm::new(kernels, &shared_weights[0], tokens, kind, &options[0])?,
        Gemm::new(kernels, &shared_weights[1], tokens, kind, &options[1])?,
    ];
    let most = products.iter().map(Gemm::workspace_bytes).max().unwrap_or(0);
    let workspace = Workspace::new(device, most.max(1))?;
    let [first, second] = &experts;
    let layer = MoeLayer::new(kernels, SHAPE, first, second, HALF, &operands.options)?;
    let memory = layer.memory()?;
    let between = DeviceBuffer::poisoned(device, "between", products[0].out_bytes()?[0])?;
    let shared = DeviceBuffer::poisoned(device, "shared", products[1].out_bytes()?[0])?;
    let out = DeviceBuffer::poisoned(device, "out", layer.out_bytes())?;
    let id_bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let weight_bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let inputs = MoeInputs {
        activations: &DeviceBuffer::upload(device, "x", x.bytes())?,
        ids: &DeviceBuffer::upload(device, "ids", &id_bytes)?,
        weights: &DeviceBuffer::upload(device, "weights", &weight_bytes)?,
        shared: Some(&shared),
    };

    // Once per launch: the shared expert, then the layer.
    for ((product, weights), [from, to]) in products
        .iter()
        .zip(&shared_weights)
        .zip([[inputs.activations, &between], [&between, &shared]])
    {
        let (a, c) = (ActivationBuffers::Halves(from), ResultBuffers::Floats(to));
        product.launch(a, weights, c, Some(&workspace), Vectors::default())?;
    }
    layer.launch(&inputs, [first, second], &memory, &out, MoeBiases::default())?;

    // The comparison: what each product left is what the next one reads.
    let [between, shared] = [between.read()?, shared.read()?];
    let dims = Dims::new(1, SHAPE.tokens, SHARED_BETWEEN)?;
    let halves = HalfMatrix::new("between", dims, HALF, between.clone())?;
    let right = [
        reference(&Activations::Halves(&x), shared_pair, &options[0])?,
        reference(&Activations::Halves(&halves), &down, &options[1])?,
    ];
    let [a, b] = [&products[0], &products[1]].map(|product| product.plan().additions);
    let [of_between, of_shared] =
        [&between, &shared].map(|bytes| floats::decode(HALF.float(), bytes));
    let [gated, plain] = right;
    let verified = [
        gated.with_additions(a).verify(&of_between, HALF.float()),
        plain.with_additions(b).verify(&of_shared, HALF.float()),
    ];
    operands.shared = Some(&of_shared);
    let alone = MoeRun::new(kernels, &operands, repacked.each_ref())?;
    alone.launch()?;
    let steps = alone.check(&operands)?;
    Ok(Ran { shared: verified, steps, same: alone.result()? == out.read()? })
}
