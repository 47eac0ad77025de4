//! One verified launch of products of sizes of their own.

use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout};

use super::GemmBench;
use crate::gemm::{Verify, reference_for};
use crate::oracle::{Reference, Verification};
use crate::rng::SplitMix64;
use crate::shape::GemmShape;
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result};
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, DeviceWeights, GatedWeights, GemmOptions,
    GemmPlan, GemmResult, MixedGemm, MixedProduct, Repacked, ResultBuffers, Vectors, Weights,
};
use nvfp4::tensor::{BlockScaled, Dims};

/// The result of a launch of several products.
#[derive(Clone, Debug)]
pub struct MixedReport {
    /// The kernel of each product's plan; all run in one.
    pub kernels: Vec<&'static str>,
    /// The comparison of each product's result with the oracle.
    pub verifications: Vec<Verification>,
}

/// Runs products of `shapes`, one matrix of weights each, in one launch on random inputs, and verifies each.
///
/// # Errors
/// Bad sizes and [`DeviceError`](nvfp4::device::DeviceError). A wrong result is not an error: the report says so.
pub fn mixed(kernels: &Kernels, shapes: &[GemmShape], bench: &GemmBench) -> Result<MixedReport> {
    match bench.format {
        Format::Nvfp4 => run::<Nvfp4>(kernels, shapes, bench),
        Format::Mxfp4 => run::<Mxfp4>(kernels, shapes, bench),
    }
}

/// A matrix on the device: elements or codes, and scales where it has them.
type Matrix = [Option<DeviceBuffer>; 2];

/// A product's operands and result on the device, and what the result must be.
struct Product {
    tokens: usize,
    dims: Dims,
    activations: Matrix,
    /// Scales of the rows of blocks.
    row_scales: Option<DeviceBuffer>,
    weights: DeviceWeights,
    out: Matrix,
    options: GemmOptions,
    reference: Reference,
}

impl Product {
    /// Makes the operands, and says what the activations are.
    fn new<F: BlockFormat>(
        kernels: &Kernels,
        shape: GemmShape,
        bench: &GemmBench,
        rng: &mut SplitMix64,
    ) -> Result<(Self, ActivationKind)> {
        let device = kernels.device();
        let rows = Dims::new(1, bench.weight_rows(shape.n), shape.k)?;
        let tensor: BlockScaled<F> = bench.generator.blocks("b", rows, ScaleLayout::Linear, rng)?;
        let b: Weights<'_, F> = if bench.is_gated() {
            GatedWeights::stacked(&tensor)?.into()
        } else {
            (&tensor).into()
        };
        let tokens = bench.tokens::<F>(Dims::new(1, shape.m, shape.k)?, rng)?;
        let a = tokens.activations();
        let dims = Dims::new(1, shape.m, shape.n)?;
        let upload = |name: &str, bytes: &[u8]| {
            (!bytes.is_empty()).then(|| DeviceBuffer::upload(device, name, bytes)).transpose()
        };
        let poisoned = |name: &str, bytes: usize| {
            (bytes > 0).then(|| DeviceBuffer::poisoned(device, name, bytes)).transpose()
        };
        let [elements, scales] = tokens.bytes();
        let [out, out_scales] = bench.options.output.bytes(dims)?;
        let product = Self {
            tokens: shape.m,
            dims,
            activations: [upload("a", &elements)?, upload("a scales", &scales)?],
            row_scales: match a {
                Activations::ScaledRows(scaled) => upload("a row scales", &scaled.scale_bytes())?,
                Activations::Blocks(_)
                | Activations::Halves(_)
                | Activations::Fp8(_)
                | Activations::ToFp8(_) => None,
            },
            weights: Repacked::rounded(device, b, a.kind())?.upload(device)?,
            out: [poisoned("c", out)?, poisoned("c scales", out_scales)?],
            options: bench.options.clone().activation_scale(a.global_scale()),
            reference: reference_for(device.choice().arch, &a, b, &bench.options)?,
        };
        Ok((product, a.kind()))
    }

    /// The product for a launch; none without operands.
    fn of_launch(&self) -> Option<MixedProduct<'_>> {
        Some(MixedProduct {
            tokens: self.tokens,
            activations: match &self.activations {
                [Some(codes), Some(scales)] => {
                    let row_scales = self.row_scales.as_ref();
                    ActivationBuffers::Blocks { codes, scales, row_scales }
                }
                [elements, _] => ActivationBuffers::Halves(elements.as_ref()?),
            },
            weights: &self.weights,
            out: match &self.out {
                [Some(codes), Some(scales)] => ResultBuffers::Blocks { codes, scales },
                [elements, _] => ResultBuffers::Floats(elements.as_ref()?),
            },
            vectors: Vectors::default(),
            options: &self.options,
        })
    }

    /// Compares the result of a launch by `plan`.
    fn verify(&self, plan: &GemmPlan) -> Result<Verification> {
        let read = |buffer: &Option<DeviceBuffer>| {
            buffer.as_ref().map_or(Ok(Vec::new()), DeviceBuffer::read)
        };
        let result = GemmResult {
            bytes: read(&self.out[0])?,
            scales: read(&self.out[1])?,
            dims: self.dims,
            output: self.options.output,
            magnitude: None,
            plan: plan.clone(),
        };
        Ok(result.verify(&self.reference))
    }
}

fn run<F: BlockFormat>(
    kernels: &Kernels,
    shapes: &[GemmShape],
    bench: &GemmBench,
) -> Result<MixedReport> {
    let mut rng = SplitMix64::new(bench.seed);
    let made = shapes.iter().map(|&shape| Product::new::<F>(kernels, shape, bench, &mut rng));
    let (made, kinds): (Vec<_>, Vec<_>) = made.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let Some(&kind) = kinds.first() else {
        return Err(Error::shape("products", "at least 1", 0));
    };
    let products: Vec<_> = made.iter().filter_map(Product::of_launch).collect();
    let launch = MixedGemm::new(kernels, &products, kind)?;
    launch.launch()?;
    let mut report = MixedReport { kernels: Vec::new(), verifications: Vec::new() };
    for (product, plan) in made.iter().zip(launch.plans()) {
        if let Some(plan) = plan {
            report.kernels.push(plan.kernel);
            report.verifications.push(product.verify(plan)?);
        }
    }
    Ok(report)
}
