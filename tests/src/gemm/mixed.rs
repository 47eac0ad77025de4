//! Mixed products: several cases in one launch, each compared with its oracle.

use super::{ActivationType, Case, Expected, Inputs};
use fp4_formats::quantize::Format;
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error;
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationKind, DeviceWeights, GemmOptions, GemmResult, MixedGemm, MixedProduct, Output,
    Repacked, Residual, ResultBuffers, Vectors, Weights,
};
use nvfp4::tensor::Dims;

/// One product's operands and result on a device.
#[derive(Debug)]
pub struct MixedOperands {
    tokens: usize,
    dims: Dims,
    options: GemmOptions,
    activations: [Option<DeviceBuffer>; 2],
    activation_type: ActivationType,
    weights: DeviceWeights,
    /// Elements or codes; scales.
    pub out: [Option<DeviceBuffer>; 2],
    vectors: [Option<DeviceBuffer>; 5],
    /// The largest magnitude, if it is asked for.
    magnitude: Option<DeviceBuffer>,
    residual: Option<(DeviceBuffer, FloatType)>,
}

impl MixedOperands {
    /// Makes the buffers of a dense case of one matrix, with a poisoned result.
    ///
    /// # Errors
    /// If repacking or uploading fails.
    pub fn new<F: BlockFormat>(
        kernels: &Kernels,
        case: &Case,
        inputs: &Inputs<F>,
        output: Output,
    ) -> error::Result<Self> {
        let device = kernels.device();
        let upload = |name: &str, bytes: &[u8]| {
            (!bytes.is_empty()).then(|| DeviceBuffer::upload(device, name, bytes)).transpose()
        };
        let a = inputs.activations();
        let weights = match inputs.all_weights() {
            Weights::Plain(weights) => Repacked::for_device(device, weights, a.kind()),
            Weights::Gated(weights) => Repacked::gated(device, &weights, a.kind()),
        };
        let [elements, scales] = inputs.activation_bytes();
        let dims = Dims::new(1, case.shape.m, case.shape.n)?;
        let poisoned = |name: &str, bytes: usize| {
            (bytes > 0).then(|| DeviceBuffer::poisoned(device, name, bytes)).transpose()
        };
        let [out, out_scales] = output.bytes(dims)?;
        let [out, out_scales] = [poisoned("c", out)?, poisoned("c scales", out_scales)?];
        let up = inputs.options.up.as_ref();
        let [row, column, bias, up_column, up_bias] = [
            inputs.options.row_factors.as_ref(),
            inputs.options.column_factors.as_ref(),
            inputs.options.bias.as_ref(),
            up.and_then(|up| up.column_factors.as_ref()),
            up.and_then(|up| up.bias.as_ref()),
        ]
        .map(|values| {
            let values = values.map_or(&[][..], Vec::as_slice);
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            upload("vector", &bytes)
        });
        let overrides = case.overrides.clone();
        Ok(Self {
            tokens: case.shape.m,
            dims,
            options: inputs
                .options
                .clone()
                .output(output)
                .overrides(overrides)
                .activation_scale(a.global_scale()),
            activations: [upload("a", &elements)?, upload("a scales", &scales)?],
            activation_type: case.activations,
            weights: weights?.upload(device)?,
            out: [out, out_scales],
            vectors: [row?, column?, bias?, up_column?, up_bias?],
            magnitude: case
                .magnitude
                .then(|| DeviceBuffer::zeroed(device, "magnitude", size_of::<f32>()))
                .transpose()?,
            residual: match &inputs.options.residual {
                Some(residual) => {
                    let buffer = DeviceBuffer::upload(device, "residual", &residual.bytes())?;
                    Some((buffer, residual.float_type()))
                }
                None => None,
            },
        })
    }

    /// Returns the product for a launch.
    ///
    /// # Panics
    /// If a case was made without operands.
    #[must_use]
    pub fn product(&self) -> MixedProduct<'_> {
        let [row, column, bias, up_column, up_bias] = self.vectors.each_ref().map(Option::as_ref);
        MixedProduct {
            tokens: self.tokens,
            activations: {
                let [elements, scales] = self.activations.each_ref().map(Option::as_ref);
                self.activation_type.buffers(elements.expect("operands"), scales)
            },
            weights: &self.weights,
            out: match &self.out {
                [Some(codes), Some(scales)] => ResultBuffers::Blocks { codes, scales },
                [elements, _] => ResultBuffers::Floats(elements.as_ref().expect("a result")),
            },
            vectors: Vectors {
                row_factors: row,
                column_factors: column,
                bias,
                up_column_factors: up_column,
                up_bias,
                magnitude: self.magnitude.as_ref(),
                residual: self
                    .residual
                    .as_ref()
                    .map(|(buffer, float_type)| Residual::of(buffer, *float_type)),
            },
            options: &self.options,
        }
    }
}

/// Runs the cases in one launch and compares each with the oracle. Results in FP4 are also compared
/// with the CPU's quantisation of the same kernel's f32 results. All cases are dense, of one matrix,
/// and of the same types of operands.
///
/// # Panics
/// With the first mismatch.
pub fn check_mixed(kernels: &Kernels, cases: &[Case]) -> Vec<GemmResult> {
    match cases[0].format {
        Format::Nvfp4 => check_as::<Nvfp4>(kernels, cases),
        Format::Mxfp4 => check_as::<Mxfp4>(kernels, cases),
    }
}

fn check_as<F: BlockFormat>(kernels: &Kernels, cases: &[Case]) -> Vec<GemmResult> {
    let inputs: Vec<Inputs<F>> = cases.iter().map(Case::inputs).collect();
    let arch = kernels.device().choice().arch;
    let expected: Vec<Expected> =
        cases.iter().zip(&inputs).map(|(case, inputs)| case.expected(inputs, arch)).collect();
    let kind = inputs[0].activations().kind();
    let outputs: Vec<Output> = expected.iter().map(|expected| expected.output).collect();
    let results = run(kernels, cases, &inputs, &outputs, kind);
    let what = |at: usize| format!("{}: {:?}", kernels.device().choice(), cases[at]);
    for (at, (expected, result)) in expected.iter().zip(&results).enumerate() {
        let right =
            expected.compare(result).and_then(|()| expected.compare_magnitude(result, None));
        right.unwrap_or_else(|e| panic!("{}\n{}\n{e}", what(at), result.plan));
    }
    let quantized =
        |case: &Case, output: &Output| !case.exact() && !matches!(output, Output::Floats(_));
    if cases.iter().zip(&outputs).any(|(case, output)| quantized(case, output)) {
        let floats = vec![Output::Floats(FloatType::F32); cases.len()];
        let floats = run(kernels, cases, &inputs, &floats, kind);
        for (at, expected) in expected.iter().enumerate() {
            if !quantized(&cases[at], &outputs[at]) {
                continue;
            }
            let got = [&results[at].bytes, &results[at].scales].map(Vec::as_slice);
            // The tile may have the other orientation, which gives zeros the other sign.
            let floats = floats[at].values();
            let same = expected.compare_quantized(got, &floats, false);
            let same = same.and_then(|()| expected.compare_magnitude(&results[at], Some(&floats)));
            same.unwrap_or_else(|e| panic!("{}\n{}\n{e}", what(at), results[at].plan));
        }
    }
    results
}

/// The results of one launch.
fn run<F: BlockFormat>(
    kernels: &Kernels,
    cases: &[Case],
    inputs: &[Inputs<F>],
    outputs: &[Output],
    kind: ActivationKind,
) -> Vec<GemmResult> {
    let failed = |error| panic!("{cases:?}\n{error}");
    let operands: error::Result<Vec<MixedOperands>> = (0..cases.len())
        .map(|at| MixedOperands::new(kernels, &cases[at], &inputs[at], outputs[at]))
        .collect();
    let operands = operands.unwrap_or_else(failed);
    let products: Vec<_> = operands.iter().map(MixedOperands::product).collect();
    let product = MixedGemm::new(kernels, &products, kind).unwrap_or_else(|e| panic!("{e}"));
    product.launch().unwrap_or_else(|e| panic!("{cases:?}\n{e}"));
    let plans = product.plans();
    let read =
        |buffer: &Option<DeviceBuffer>| buffer.as_ref().map_or(Ok(Vec::new()), DeviceBuffer::read);
    let results = operands.iter().zip(plans).zip(outputs).map(|((operands, plan), output)| {
        Ok(GemmResult {
            bytes: read(&operands.out[0])?,
            scales: read(&operands.out[1])?,
            dims: operands.dims,
            output: *output,
            magnitude: match &operands.magnitude {
                Some(buffer) => Some(floats::decode(FloatType::F32, &buffer.read()?)[0]),
                None => None,
            },
            plan: plan.expect("tokens").clone(),
        })
    });
    let results: error::Result<Vec<_>> = results.collect();
    results.unwrap_or_else(|e| panic!("{cases:?}\n{e}"))
}
