//! A layer with device memory of its own.

use std::sync::Arc;

use fp4_formats::BlockFormat;

use super::{MoeOperands, StepCheck, check};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels};
use nvfp4::error::{Error, Result};
use nvfp4::floats;
use nvfp4::gemm::{DeviceWeights, Repacked};
use nvfp4::moe::{MoeBiases, MoeInputs, MoeLayer, MoeMemory, MoeProblem, MoeStep};

/// A layer with operands, result and workspace of its own on a device, ready to launch any number of
/// times.
#[derive(Debug)]
pub struct MoeRun {
    planned: Arc<Planned>,
    activations: DeviceBuffer,
    ids: DeviceBuffer,
    weights: DeviceBuffer,
    shared: Option<DeviceBuffer>,
    memory: MoeMemory,
    out: DeviceBuffer,
}

/// The parts that runs with the same weights share.
#[derive(Debug)]
struct Planned {
    device: Device,
    layer: MoeLayer,
    weights: [DeviceWeights; 2],
    /// Biases of gate, up and down.
    biases: [Option<DeviceBuffer>; 3],
}

/// A copy of floats.
fn upload(device: &Device, name: &str, values: &[f32]) -> Result<DeviceBuffer> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    DeviceBuffer::upload(device, name, &bytes)
}

/// A shared experts' result where there was none, or none where there was one.
fn changed(required: &str, found: &str) -> Error {
    Error::shape("shared experts' result", required, found)
}

impl MoeRun {
    /// Checks, plans, and copies the operands to the device; launches nothing. `weights` are those of
    /// [`MoeOperands::repack`].
    ///
    /// # Errors
    /// The same as [`MoeOperands::check`] and [`MoeLayer::new`]; [`DeviceError`](nvfp4::device::DeviceError).
    pub fn new<F: BlockFormat>(
        kernels: &Kernels,
        operands: &MoeOperands<'_, F>,
        weights: [&Repacked; 2],
    ) -> Result<Self> {
        operands.check()?;
        let device = kernels.device();
        let [first, second] = weights.map(|weights| weights.upload(device));
        let weights = [first?, second?];
        let (shape, half) = (operands.shape, operands.tokens.operand());
        let [first, second] = &weights;
        let layer = MoeLayer::new(kernels, shape, first, second, half, &operands.options)?;
        let bias = |name: &str, values: Option<&[f32]>| {
            values.map(|values| upload(device, name, values)).transpose()
        };
        let of = operands.biases;
        let biases = [
            bias("gate biases", of.gate)?,
            bias("up biases", of.up)?,
            bias("down biases", of.down)?,
        ];
        let planned = Planned { device: device.clone(), layer, weights, biases };
        Self::with(Arc::new(planned), operands)
    }

    /// Another run with the same weights and biases, and other tokens, choices and memory.
    ///
    /// # Errors
    /// The same as [`MoeOperands::check`]; [`Error::Shape`] for other sizes and types than this run's;
    /// [`DeviceError`](nvfp4::device::DeviceError).
    pub fn beside<F: BlockFormat>(&self, operands: &MoeOperands<'_, F>) -> Result<Self> {
        operands.check()?;
        Self::with(self.planned.clone(), operands)
    }

    fn with<F: BlockFormat>(planned: Arc<Planned>, operands: &MoeOperands<'_, F>) -> Result<Self> {
        let Planned { device, layer, .. } = &*planned;
        operands.check_planned(layer)?;
        let ids: Vec<u8> = operands.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let shared = operands.shared_bytes();
        let shared = shared.map(|bytes| DeviceBuffer::upload(device, "shared", &bytes)).transpose();
        Ok(Self {
            activations: DeviceBuffer::upload(device, "x", operands.tokens.bytes())?,
            ids: DeviceBuffer::upload(device, "ids", &ids)?,
            weights: upload(device, "weights", operands.weights)?,
            shared: shared?,
            memory: layer.memory()?,
            out: DeviceBuffer::poisoned(device, "out", layer.out_bytes())?,
            planned,
        })
    }

    /// The layer as planned.
    #[must_use]
    pub fn layer(&self) -> &MoeLayer {
        &self.planned.layer
    }

    /// Queues the layer without waiting for the result, also while a CUDA graph is recorded.
    ///
    /// # Errors
    /// [`DeviceError`](nvfp4::device::DeviceError).
    pub fn launch(&self) -> Result<()> {
        let (inputs, biases) = self.arguments();
        let Planned { layer, weights, .. } = &*self.planned;
        layer.launch(&inputs, weights.each_ref(), &self.memory, &self.out, biases)
    }

    /// Queues one step.
    ///
    /// # Errors
    /// The same as [`MoeLayer::launch_step`].
    pub fn launch_step(&self, step: MoeStep) -> Result<()> {
        let (inputs, biases) = self.arguments();
        let Planned { layer, weights, .. } = &*self.planned;
        layer.launch_step(step, &inputs, weights.each_ref(), &self.memory, &self.out, biases)
    }

    /// Returns the arguments of a launch besides the products' weights.
    fn arguments(&self) -> (MoeInputs<'_>, MoeBiases<'_>) {
        let inputs = MoeInputs {
            activations: &self.activations,
            ids: &self.ids,
            weights: &self.weights,
            shared: self.shared.as_ref(),
        };
        let [gate, up, down] = self.planned.biases.each_ref().map(Option::as_ref);
        (inputs, MoeBiases { gate, up, down })
    }

    /// Replaces tokens and choices, and the shared experts' result where there is one; a graph that was recorded
    /// uses them in its next replay. If an operand is refused, none is replaced.
    ///
    /// # Errors
    /// The same as [`MoeOperands::check`] and [`DeviceBuffer::write`]; [`Error::Shape`] for other
    /// sizes and types than before, and for a shared experts' result that there was not, or that
    /// there was and is not.
    pub fn write<F: BlockFormat>(&self, operands: &MoeOperands<'_, F>) -> Result<()> {
        operands.check()?;
        operands.check_planned(self.layer())?;
        let shared = match (&self.shared, operands.shared_bytes()) {
            (Some(buffer), Some(bytes)) => Some((buffer, bytes)),
            (None, None) => None,
            (Some(_), None) => return Err(changed("there, as before", "absent")),
            (None, Some(_)) => return Err(changed("absent, as before", "there")),
        };
        let words =
            |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        self.activations.write(operands.tokens.bytes())?;
        self.ids
            .write(&operands.ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())?;
        self.weights.write(&words(operands.weights))?;
        shared.map_or(Ok(()), |(buffer, bytes)| buffer.write(&bytes))
    }

    /// Returns the fault of the operands of launches so far; waits for the device.
    ///
    /// # Errors
    /// [`DeviceError`](nvfp4::device::DeviceError).
    pub fn problem(&self) -> Result<Option<MoeProblem>> {
        self.memory.problem()
    }

    /// The result of what was launched before, `[tokens, H]`.
    ///
    /// # Errors
    /// [`DeviceError`](nvfp4::device::DeviceError).
    pub fn result(&self) -> Result<Vec<u8>> {
        self.out.read()
    }

    /// The result's values.
    ///
    /// # Errors
    /// The same as [`result`](Self::result).
    pub fn values(&self) -> Result<Vec<f32>> {
        Ok(floats::decode(self.layer().output(), &self.result()?))
    }

    /// Compares what was launched before, step by step; `operands` are those that the run was made
    /// with.
    ///
    /// # Errors
    /// The same as [`check`](super::check).
    pub fn check<F: BlockFormat>(&self, operands: &MoeOperands<'_, F>) -> Result<Vec<StepCheck>> {
        check(self.layer(), operands, &self.memory, &self.out)
    }
}
