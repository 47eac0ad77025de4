//! The operations that are launched, each with operands of its own on a device.

use nvfp4::ScaleLayout::{self, Blocked128x4, Linear};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::dequantize::{Dequantizer, Multiplier};
use nvfp4::device::Kernels;
use nvfp4::error::Result;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, DeviceWeights, GatedWeights, GemmOptions,
    GemmRun, GroupedRun, HalfMatrix, MixedGemm, MixedProduct, Output, Repacked, ResultBuffers,
    UpOptions, Vectors, Weights,
};
use nvfp4::gemv::{GemvOptions, GemvRun};
use nvfp4::moe::{MoeOptions, MoeShape, TokenFormat, TokenScales};
use nvfp4::quantize::device::{Input, Quantizer};
use nvfp4::quantize::{QuantizeOptions, TensorScale};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4::{BlockFormat, FloatType, Format, HalfType, Mxfp4, Nvfp4, Nvfp4Recipe, Recipe};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::moe::{HostBiases, MoeOperands, MoeRun};
use nvfp4_lab::rng::SplitMix64;

/// A visitor of operations: it gets the name, and the launch.
pub type Visit<'a> = dyn FnMut(&str, &dyn Fn() -> Result<()>) -> Result<()> + 'a;

/// Tokens, and columns of results.
const M: usize = 5;
const N: usize = 64;

fn dims([batch, rows, columns]: [usize; 3]) -> Result<Dims> {
    Dims::new(batch, rows, columns)
}

fn blocks<F: BlockFormat>(sizes: [usize; 3], layout: ScaleLayout) -> Result<BlockScaled<F>> {
    Generator::Exact.blocks("blocks", dims(sizes)?, layout, &mut SplitMix64::new(1))
}

fn halves(sizes: [usize; 3]) -> Result<HalfMatrix> {
    Generator::Exact.halves("halves", dims(sizes)?, HalfType::Bf16, &mut SplitMix64::new(2))
}

/// Every operation of the library on `kernels`, one after the other.
pub fn all(kernels: &Kernels, visit: &mut Visit<'_>) -> Result<()> {
    gemv(kernels, visit)?;
    gemm::<Nvfp4>(kernels, "NVFP4", visit)?;
    gemm::<Mxfp4>(kernels, "MXFP4", visit)?;
    grouped(kernels, visit)?;
    mixed(kernels, visit)?;
    quantize(kernels, visit)?;
    moe(kernels, visit)
}

/// A product whose activations are prepared by their own launches, as those of few tokens are
/// not on sm_100a.
pub fn prepared_product(kernels: &Kernels) -> Result<GemmRun> {
    let (a, b) = (blocks::<Nvfp4>([1, 8 * M, 96], Linear)?, blocks::<Nvfp4>([1, N, 96], Linear)?);
    let a = Activations::Blocks(&a);
    let weights = Repacked::for_device(kernels.device(), &b, a.kind())?;
    GemmRun::new(kernels, &a, &weights, &GemmOptions::new())
}

fn gemv(kernels: &Kernels, visit: &mut Visit<'_>) -> Result<()> {
    let (a, b) = (blocks([2, 1, 96], Linear)?, blocks([2, 72, 96], Blocked128x4)?);
    let run = GemvRun::new(kernels, &a, &b, GemvOptions::new())?;
    visit("GEMV", &|| run.launch())
}

/// Products whose operands need no preparation and some, plain and gated ones, results of each kind.
fn gemm<F: BlockFormat>(kernels: &Kernels, format: &str, visit: &mut Visit<'_>) -> Result<()> {
    let device = kernels.device();
    let up = GemmOptions::new().up(Some(UpOptions::default()));
    let blocks_out = GemmOptions::new().output(Output::Mxfp4 { layout: Linear });
    // NVFP4 in rows that are no multiple of 16 bytes, which the copy engine does not take.
    let odd = if F::BLOCK == 16 { 80 } else { 96 };
    for (k, batch, layout) in [(256, 1, Blocked128x4), (odd, 2, Linear)] {
        let plain = blocks::<F>([batch, N, k], Linear)?;
        let stacked = blocks::<F>([batch, 2 * N, k], Linear)?;
        let (of_blocks, of_halves) = (blocks::<F>([batch, M, k], layout)?, halves([batch, M, k])?);
        for a in [Activations::Halves(&of_halves), Activations::Blocks(&of_blocks)] {
            let kind = if let Activations::Halves(_) = a { "bf16" } else { "FP4" };
            let options = GemmOptions::new();
            let gated = Weights::Gated(GatedWeights::stacked(&stacked)?);
            for (what, weights, options) in [
                ("GEMM", Weights::Plain(&plain), &options),
                ("GEMM to MXFP4", Weights::Plain(&plain), &blocks_out),
                ("dual GEMM", gated, &up),
            ] {
                let weights = Repacked::of_weights(device, weights, a.kind())?;
                let run = GemmRun::new(kernels, &a, &weights, options)?;
                let name = format!("{what}, {format} weights, {kind} activations, K = {k}");
                visit(&name, &|| run.launch())?;
            }
        }
    }
    Ok(())
}

fn grouped(kernels: &Kernels, visit: &mut Visit<'_>) -> Result<()> {
    let (k, counts) = (128, [2, 0, 3]);
    let weights = blocks::<Nvfp4>([counts.len(), N, k], Linear)?;
    let (of_halves, of_blocks) = (halves([1, M, k])?, blocks::<Nvfp4>([1, M, k], Linear)?);
    for (kind, a) in
        [("bf16", Activations::Halves(&of_halves)), ("FP4", Activations::Blocks(&of_blocks))]
    {
        let weights = Repacked::for_device(kernels.device(), &weights, a.kind())?;
        let run = GroupedRun::new(kernels, &a, &weights, &counts, &GemmOptions::new())?;
        visit(&format!("grouped GEMM, {kind} activations"), &|| run.launch())?;
    }
    Ok(())
}

fn mixed(kernels: &Kernels, visit: &mut Visit<'_>) -> Result<()> {
    struct Operands {
        m: usize,
        weights: DeviceWeights,
        codes: DeviceBuffer,
        scales: DeviceBuffer,
        out: DeviceBuffer,
    }
    let device = kernels.device();
    let kind = ActivationKind::Blocks { format: Format::Nvfp4, layout: Linear };
    let operands = [[M, N, 96], [3, 48, 128]].map(|[m, n, k]| {
        let (a, b) = (blocks::<Nvfp4>([1, m, k], Linear)?, blocks::<Nvfp4>([1, n, k], Linear)?);
        Ok(Operands {
            m,
            weights: Repacked::for_device(device, &b, kind)?.upload(device)?,
            codes: DeviceBuffer::upload(device, "codes", a.codes())?,
            scales: DeviceBuffer::upload(device, "scales", a.scales())?,
            out: DeviceBuffer::poisoned(device, "out", m * n * 2)?,
        })
    });
    let operands = operands.into_iter().collect::<Result<Vec<_>>>()?;
    let options = GemmOptions::new();
    let products: Vec<_> = operands
        .iter()
        .map(|Operands { m, weights, codes, scales, out }| MixedProduct {
            tokens: *m,
            activations: ActivationBuffers::blocks(codes, scales),
            weights,
            out: ResultBuffers::Floats(out),
            vectors: Vectors::default(),
            options: &options,
        })
        .collect();
    let product = MixedGemm::new(kernels, &products, kind)?;
    visit("mixed GEMM, FP4 activations", &|| product.launch())
}

fn quantize(kernels: &Kernels, visit: &mut Visit<'_>) -> Result<()> {
    let (device, k) = (kernels.device(), 96);
    let input = DeviceBuffer::zeroed(device, "input", M * k * 2)?;
    let (bf16, recipe) = (Input::plain(FloatType::Bf16), Recipe::Nvfp4(Nvfp4Recipe::TorchAo));
    for (name, scale) in [
        ("with a given scale", TensorScale::Given(1.0)),
        ("from the largest magnitude", TensorScale::FromAmax),
        ("with a scale per row", TensorScale::PerRow),
    ] {
        let options = QuantizeOptions::new(recipe).scale(scale);
        let quantizer = Quantizer::new(kernels, M, k, bf16, &options)?;
        visit(&format!("quantise {name}"), &|| quantizer.launch(&input, None))?;
        let format = Format::Nvfp4;
        let dequantizer = Dequantizer::new(kernels, M, k, format, options.layout, FloatType::Bf16)?;
        let (codes, scales) = (quantizer.codes(), quantizer.scales());
        visit("dequantise", &|| dequantizer.launch(codes, scales, Multiplier::Given(1.0)))?;
    }
    Ok(())
}

fn moe(kernels: &Kernels, visit: &mut Visit<'_>) -> Result<()> {
    let (hidden, between, experts, top_k) = (64, 32, 3, 2);
    let first = blocks::<Nvfp4>([1, 2 * between, hidden], Linear)?;
    let second = blocks::<Nvfp4>([1, hidden, between], Linear)?;
    let x = halves([1, M, hidden])?;
    let ids: Vec<i32> = (0..M * top_k).map(|at| (at % experts) as i32).collect();
    let gated = Weights::Gated(GatedWeights::stacked(&first)?);
    for quantized in [
        None,
        Some(TokenFormat::Blocks(TokenScales::ONE)),
        Some(TokenFormat::Fp8),
        Some(TokenFormat::ScaledRows),
    ] {
        let operands = MoeOperands {
            shape: MoeShape { tokens: M, top_k, experts, first: 0, count: experts },
            tokens: &x,
            ids: &ids,
            weights: &vec![0.5; M * top_k],
            first: vec![gated; experts],
            second: vec![Weights::Plain(&second); experts],
            factors: None,
            biases: HostBiases::default(),
            shared: None,
            options: MoeOptions::new().quantized(quantized),
        };
        let kind = operands.options.activations(HalfType::Bf16, Format::Nvfp4);
        let stack = |weights: &Weights<'_, Nvfp4>| -> Result<Repacked> {
            let one = Repacked::of_weights(kernels.device(), *weights, kind)?;
            Repacked::stack(&vec![one; experts])
        };
        let weights = [stack(&operands.first[0])?, stack(&operands.second[0])?];
        let run = MoeRun::new(kernels, &operands, weights.each_ref())?;
        let of = match quantized {
            None => "bf16",
            Some(TokenFormat::Blocks(_)) => "FP4",
            Some(TokenFormat::Fp8) => "e4m3",
            Some(TokenFormat::ScaledRows) => "scaled FP4",
        };
        visit(&format!("mixture of experts, {of} activations"), &|| run.launch())?;
    }
    Ok(())
}
