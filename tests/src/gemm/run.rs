//! The run of a case through the host library.

use super::{ActivationType, Case, Expected, Inputs, OperandBuffer, Placement, ResidualAt};
use fp4_formats::arch::TensorFamily;
use fp4_formats::gemm::table::kernels;
use fp4_formats::quantize::Format;
use fp4_formats::{Arch, BlockFormat, FloatType, Mxfp4, Nvfp4};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::error;
use nvfp4::gemm::{
    BatchStrides, DeviceWeights, Gemm, GemmOptions, GemmOverrides, GemmPlan, GemmResult, GemmRun,
    Output, Repacked, Residual, ResidualValues, ResultBuffers, Vectors, Weights, Workspace, gemm,
    gemm_gated,
};
use nvfp4::shape::GemmShape;
use nvfp4::tensor::Dims;
use nvfp4::tune::ResultKind;

/// Whether `tensor` has the kernel of this name.
///
/// # Panics
/// If no tensor cores have.
fn is_of(kernel: &str, tensor: TensorFamily) -> bool {
    let has = |tensor: &TensorFamily| kernels(*tensor).iter().any(|found| found.name == kernel);
    assert!(TensorFamily::ALL.iter().any(has), "there is no kernel `{kernel}`");
    has(&tensor)
}

/// Returns the plan's line about the operands' placement.
fn weights_are(plan: &GemmPlan) -> Option<&String> {
    plan.why.iter().find(|reason| reason.starts_with("weights are the "))
}

impl Case {
    /// Runs the case on a device whose results are poisoned before, and compares.
    ///
    /// # Panics
    /// With the first mismatch, or if the device runs another kernel than the requested one.
    pub fn check(&self, kernels: &Kernels) -> GemmResult {
        let result = self.check_on(std::slice::from_ref(kernels)).remove(0);
        if let Some(name) = &self.overrides.kernel {
            assert_eq!(result.plan.kernel, name, "{self:?}");
        }
        result
    }

    /// Runs the case on each device that has kernels for its activations, and returns the results. It compares them
    /// with the oracle and, if sums are exact, with other devices of the same architecture.
    ///
    /// # Panics
    /// The same as [`check`](Self::check).
    pub fn check_on(&self, devices: &[Kernels]) -> Vec<GemmResult> {
        match self.format {
            Format::Nvfp4 => self.check_as::<Nvfp4>(devices),
            Format::Mxfp4 => self.check_as::<Mxfp4>(devices),
        }
    }

    fn check_as<F: BlockFormat>(&self, devices: &[Kernels]) -> Vec<GemmResult> {
        let inputs = self.inputs::<F>();
        let mut expected = Vec::new();
        let mut results: Vec<GemmResult> = Vec::new();
        for kernels in devices {
            let choice = kernels.device().choice();
            let expected = self.expected_once(&mut expected, &inputs, choice.arch);
            let what = format!("{choice}: {self:?}");
            let overrides = self.overrides_on(choice.arch);
            let run = |output, overrides: &GemmOverrides| {
                let overrides = overrides.clone();
                let options = inputs.options.clone().output(output).overrides(overrides);
                let run = self.run(kernels, &inputs, &options);
                run.unwrap_or_else(|e| panic!("{what}\n{e}"))
            };
            let result = run(expected.output, &overrides);
            let right = |comparison: Result<(), String>| {
                comparison.unwrap_or_else(|e| panic!("{what}\n{}\n{e}", result.plan));
            };
            right(expected.compare(&result));
            right(expected.compare_magnitude(&result, None));
            if let ResultKind::Blocks(..) = self.result
                && !self.exact()
            {
                // The same kernel for floats. On sm_100a its plan may swap the operands, which
                // changes nothing but the sign of zeros.
                let overrides = GemmOverrides::new()
                    .kernel(result.plan.kernel.to_string())
                    .split(result.plan.split);
                let floats = run(FloatType::F32.into(), &overrides);
                assert_eq!(floats.plan.kernel, result.plan.kernel, "{what}");
                assert_eq!(floats.plan.split, result.plan.split, "{what}");
                let signed = weights_are(&result.plan) == weights_are(&floats.plan);
                let got = [&result.bytes, &result.scales].map(Vec::as_slice);
                right(expected.compare_quantized(got, &floats.values(), signed));
                right(expected.compare_magnitude(&result, Some(&floats.values())));
            }
            let same = results.iter().find(|other| other.plan.arch == result.plan.arch);
            if let Some(other) = same.filter(|_| self.exact()) {
                right(expected.compare_bytes(&result, other));
            }
            results.push(result);
        }
        results
    }

    /// Computes the expected result of a target; `known` caches the results that were computed
    /// before.
    fn expected_once<'a, F: BlockFormat>(
        &self,
        known: &'a mut Vec<(Arch, Expected)>,
        inputs: &Inputs<F>,
        arch: Arch,
    ) -> &'a Expected {
        // All targets have the same weights, unless one rounds them.
        let alike =
            |other: Arch| other == arch || !matches!(self.activations, ActivationType::Fp8(_));
        let at = known.iter().position(|(other, _)| alike(*other)).unwrap_or_else(|| {
            known.push((arch, self.expected(inputs, arch)));
            known.len() - 1
        });
        &known[at].1
    }

    /// Runs the case and compares nothing. The scale of a result in NVFP4 is `result_scale`.
    ///
    /// # Panics
    /// If it cannot be run.
    #[must_use]
    pub fn product(&self, kernels: &Kernels) -> GemmResult {
        match self.format {
            Format::Nvfp4 => self.product_as::<Nvfp4>(kernels),
            Format::Mxfp4 => self.product_as::<Mxfp4>(kernels),
        }
    }

    fn product_as<F: BlockFormat>(&self, kernels: &Kernels) -> GemmResult {
        let inputs = self.inputs::<F>();
        let output = self.result.output(self.result_scale);
        let overrides = self.overrides.clone();
        let options = inputs.options.clone().output(output).overrides(overrides);
        self.run(kernels, &inputs, &options).unwrap_or_else(|e| panic!("{self:?}\n{e}"))
    }

    /// Returns the overrides for a device of `arch`, which plans if it lacks the kernel.
    fn overrides_on(&self, arch: Arch) -> GemmOverrides {
        match &self.overrides.kernel {
            Some(name) if !is_of(name, arch.tensor()) => GemmOverrides::default(),
            _ => self.overrides.clone(),
        }
    }

    /// Runs the case on buffers that hold no numbers before, and returns the result.
    fn run<F: BlockFormat>(
        &self,
        kernels: &Kernels,
        inputs: &Inputs<F>,
        options: &GemmOptions,
    ) -> error::Result<GemmResult> {
        let residual = self.residual.map(|residual| residual.place);
        let in_place = residual == Some(None);
        let residual = residual.flatten().unwrap_or(Placement::Dense);
        let placed = [&self.activations_at[..], &self.result_at, &[residual]].concat();
        if !in_place && placed.iter().all(|&placement| placement == Placement::Dense) {
            if let ActivationType::Fp8(_) = self.activations {
                // Scales of MXFP4 may be out of range: the oracle rounds the same weights.
                let (a, device) = (inputs.activations(), kernels.device());
                let weights = Repacked::rounded(device, inputs.all_weights(), a.kind())?;
                return GemmRun::new(kernels, &a, &weights, options)?.run();
            }
            return match inputs.all_weights() {
                Weights::Plain(weights) => gemm(kernels, &inputs.activations(), weights, options),
                Weights::Gated(weights) => {
                    gemm_gated(kernels, &inputs.activations(), &weights, options)
                }
            };
        }
        self.run_placed(kernels, inputs, options, true)
    }

    /// Returns the oracle's results, and those of a product whose buffers are strided as the case
    /// says, but whose arguments say that they are dense.
    ///
    /// # Panics
    /// If it cannot be run.
    #[must_use]
    pub fn run_as_dense(&self, kernels: &Kernels) -> (Expected, GemmResult) {
        assert_eq!(self.format, Format::Nvfp4);
        let inputs = self.inputs::<Nvfp4>();
        let expected = self.expected(&inputs, kernels.device().choice().arch);
        let options = inputs.options.clone().output(expected.output);
        let result = self.run_placed(kernels, &inputs, &options, false).expect("runs");
        (expected, result)
    }

    /// Launches on buffers of this function. Unless it is `strided`, inputs are cut to the size of
    /// a dense batch.
    fn run_placed<F: BlockFormat>(
        &self,
        kernels: &Kernels,
        inputs: &Inputs<F>,
        options: &GemmOptions,
        strided: bool,
    ) -> error::Result<GemmResult> {
        assert_eq!(self.vectors, [false; 3], "vectors are not uploaded here");
        let of_up = self.gated.map(|gated| gated.vectors);
        assert_eq!(of_up.unwrap_or_default(), [false; 2], "vectors are not uploaded here");
        assert!(!self.magnitude, "it has no place here");
        let GemmShape { m, l, .. } = self.shape;
        let (device, a) = (kernels.device(), inputs.activations());
        let weights = Repacked::rounded(device, inputs.all_weights(), a.kind());
        let weights: DeviceWeights = weights?.upload(device)?;
        let parts = self.parts(inputs, options.output);
        let [a_part, a_scale_part, c_part, c_scale_part] = &parts;
        let scaled = options.clone().activation_scale(a.global_scale());
        let product = Gemm::new(kernels, &weights, [l, m], a.kind(), &scaled)?;
        let product = if strided { product.with_strides(strides(&parts))? } else { product };
        let input = |part: &OperandBuffer, matrices: &[u8]| {
            let bytes = part.spread(matrices);
            let len = if strided { bytes.len() } else { matrices.len().max(1) };
            DeviceBuffer::upload(device, "a", &bytes[..len])
        };
        let [elements, scales] = inputs.activation_bytes();
        let from = [input(a_part, &elements)?, input(a_scale_part, &scales)?];
        let from = self.activations.buffers(&from[0], Some(&from[1]));
        let out = |part: &OperandBuffer| DeviceBuffer::upload(device, "c", &part.poisoned());
        let mut outputs = [out(c_part)?, out(c_scale_part)?];
        let residual_bytes = options.residual.as_ref().map(ResidualValues::bytes);
        let residual_bytes = residual_bytes.unwrap_or_default();
        let apart = match self.residual {
            None => None,
            Some(ResidualAt { place: None, .. }) => {
                outputs[0] = DeviceBuffer::upload(device, "c", &c_part.spread(&residual_bytes))?;
                None
            }
            Some(ResidualAt { float_type, place: Some(placement) }) => {
                let bits = 8 * float_type.bytes() as usize;
                let size = residual_bytes.len() / l;
                let part = OperandBuffer { placement, batch: l, size, bits };
                let bytes = part.spread(&residual_bytes);
                Some((DeviceBuffer::upload(device, "residual", &bytes)?, part.stride()))
            }
        };
        let residual = self.residual.map(|ResidualAt { float_type, .. }| {
            let (buffer, stride) = match &apart {
                Some((buffer, stride)) => (buffer, *stride),
                None => (&outputs[0], c_part.stride()),
            };
            Residual { stride, ..Residual::of(buffer, float_type) }
        });
        let to = match &outputs {
            [elements, _] if c_scale_part.size == 0 => ResultBuffers::Floats(elements),
            [codes, scales] => ResultBuffers::Blocks { codes, scales },
        };
        let workspace = Workspace::new(device, product.workspace_bytes().max(1))?;
        let vectors = Vectors { residual, ..Vectors::default() };
        product.launch(from, &weights, to, Some(&workspace), vectors)?;
        let matrices = |part: &OperandBuffer, bytes: &[u8]| {
            part.gather(bytes).unwrap_or_else(|e| panic!("{self:?}\n{part:?}: {e}"))
        };
        Ok(GemmResult {
            magnitude: None,
            bytes: matrices(c_part, &outputs[0].read()?),
            scales: matrices(c_scale_part, &outputs[1].read()?),
            dims: product.result_dims()?,
            output: options.output,
            plan: product.plan().clone(),
        })
    }

    /// Returns the buffers of activations, their scales, the result and its scales, each at its
    /// placement.
    fn parts<F: BlockFormat>(&self, inputs: &Inputs<F>, output: Output) -> [OperandBuffer; 4] {
        let GemmShape { m, n, l: batch, .. } = self.shape;
        let [codes, scales] = inputs.activation_bytes().map(|part| part.len() / batch);
        let [out, out_scales] = output.bytes(Dims::new(1, m, n).expect("dims")).expect("small");
        let bits = match self.activations {
            ActivationType::Blocks(_) => 4,
            ActivationType::Halves(_) | ActivationType::Fp8(Some(_)) => 16,
            ActivationType::Fp8(None) => 8,
        };
        let ([a, a_scales], [c, c_scales]) = (self.activations_at, self.result_at);
        // A result in NVFP4 is compared with one in f32, which has no scales.
        let c_scales = if out_scales == 0 { Placement::Dense } else { c_scales };
        [
            OperandBuffer { placement: a, batch, size: codes, bits },
            OperandBuffer { placement: a_scales, batch, size: scales, bits: 8 },
            OperandBuffer { placement: c, batch, size: out, bits: out * 8 / (m * n) },
            OperandBuffer { placement: c_scales, batch, size: out_scales, bits: 8 },
        ]
    }
}

fn strides(parts: &[OperandBuffer; 4]) -> BatchStrides {
    let [activations, activation_scales, result, result_scales] = parts.map(|part| part.stride());
    BatchStrides::new()
        .activations(activations)
        .activation_scales(activation_scales)
        .result(result)
        .result_scales(result_scales)
}
