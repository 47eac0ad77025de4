//! A gated layer, `silu(x gate^T) * (x up^T)`, in one product: weights quantised and rearranged once,
//! a plan made once, and a launch on buffers of the caller's.
//!
//! ```text
//! cargo run --release --package nvfp4-lab --example dual -- [DEVICE]
//! ```
//!
//! DEVICE is as for `nvfp4 --device`; without a GPU the kernels run on the emulator.

use fp4_formats::{FloatType, HalfType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels};
use nvfp4::floats;
use nvfp4::gemm::{
    Activation, ActivationBuffers, ActivationKind, Activations, GatedWeights, Gemm, GemmOptions,
    HalfMatrix, Repacked, ResultBuffers, UpOptions, Vectors, Workspace,
};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;
use nvfp4_lab::gemm::reference;
use nvfp4_lab::oracle::Verification;
use nvfp4_lab::rng::SplitMix64;

/// Tokens, columns of the result, and K.
const SIZES: [usize; 3] = [20, 192, 512];

fn main() -> anyhow::Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".into());
    let kernels = Device::open(&device.parse()?)?.kernels(None)?;
    println!("on {}", kernels.device().choice());
    let (plan, verification) = run(&kernels)?;
    println!("{plan}\n{}", verification.summary());
    anyhow::ensure!(verification.passed(), "the result differs from the oracle's");
    Ok(())
}

/// Runs the layer on random numbers: its plan, and how far the result is from the f64 oracle.
pub fn run(kernels: &Kernels) -> anyhow::Result<(String, Verification)> {
    let [m, n, k] = SIZES;
    let device = kernels.device();
    let mut rng = SplitMix64::new(1);
    let mut normal = |count: usize, scale: f64| -> Vec<f32> {
        (0..count).map(|_| (scale * rng.normal()) as f32).collect()
    };

    // Once per layer: both halves keep their tensor's scale. Engines that have them in one tensor
    // use `GatedWeights::stacked` or, of gpt-oss, `GatedWeights::interleaved`.
    let dims = Dims::new(1, n, k)?;
    let half = |name, values: Vec<f32>| {
        quantize(name, &values, dims, TensorScale::FromAmax, ScaleLayout::Linear)
    };
    let (gate, up) = (half("gate", normal(n * k, 0.05))?, half("up", normal(n * k, 0.04))?);
    let weights = GatedWeights::pair(&gate, &up)?;
    let kind = ActivationKind::Halves(HalfType::Bf16);
    let on_device = Repacked::gated(device, &weights, kind)?.upload(device)?;

    // Once per number of tokens.
    let options =
        GemmOptions::new().activation(Activation::Silu).up(UpOptions::new()).output(FloatType::F16);
    let product = Gemm::new(kernels, &on_device, [1, m], kind, &options)?;
    let workspace = Workspace::new(device, product.workspace_bytes().max(1))?;

    // Once per launch, which allocates nothing and does not wait.
    let x = HalfMatrix::round("x", Dims::new(1, m, k)?, HalfType::Bf16, &normal(m * k, 1.0))?;
    let input = DeviceBuffer::upload(device, "x", x.bytes())?;
    let out = DeviceBuffer::poisoned(device, "y", product.out_bytes()?[0])?;
    let (a, c) = (ActivationBuffers::Halves(&input), ResultBuffers::Floats(&out));
    product.launch(a, &on_device, c, Some(&workspace), Vectors::default())?;

    let values = floats::decode(FloatType::F16, &out.read()?);
    let reference = reference(&Activations::Halves(&x), weights, &options)?;
    let reference = reference.with_additions(product.plan().additions);
    Ok((product.plan().to_string(), reference.verify(&values, FloatType::F16)))
}
