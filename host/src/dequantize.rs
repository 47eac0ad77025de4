//! Dequantising on a device, and its reference on the CPU.
//!
//! The result is `code * (multiplier * scale)`. Each product is rounded to f32 in this order, and
//! then the result is rounded once to its type, as in TorchAO and in [`BlockScaled::dequantize`].
//!
//! # Example
//! Without a GPU, this runs on the emulator. With `None` in place of the folder, kernels are looked
//! for beside the program.
//! ```
//! use std::path::Path;
//!
//! use fp4_formats::{FloatType, ScaleLayout};
//! use nvfp4::buffer::DeviceBuffer;
//! use nvfp4::dequantize::{Dequantizer, Multiplier, dequantize_matrix};
//! use nvfp4::device::{Device, DeviceRequest};
//! use nvfp4::quantize::{Format, QuantizeOptions, quantize_matrix, recipe_by_name};
//! use nvfp4::tensor::Dims;
//!
//! # fn main() -> nvfp4::error::Result<()> {
//! let values: Vec<f32> = (0..4 * 64).map(|at| (at as f32).sin()).collect();
//! let options = QuantizeOptions::new(recipe_by_name(Format::Nvfp4, "torchao")?);
//! let matrix = quantize_matrix("x", &values, Dims::new(1, 4, 64)?, &options)?;
//!
//! let device = Device::open(&DeviceRequest::Auto)?;
//! // Where `cargo xtask build-kernels` puts them.
//! let kernels = device.kernels(Some(Path::new("../target/kernels")))?;
//! let codes = DeviceBuffer::upload(&device, "codes", &matrix.codes)?;
//! let scales = DeviceBuffer::upload(&device, "scales", &matrix.scales)?;
//! let (format, layout) = (Format::Nvfp4, ScaleLayout::Linear);
//! let dequantizer = Dequantizer::new(&kernels, 4, 64, format, layout, FloatType::Bf16)?;
//! dequantizer.launch(&codes, &scales, Multiplier::Given(matrix.multipliers()[0]))?;
//! assert_eq!(dequantizer.result()?, dequantize_matrix(&matrix, FloatType::Bf16)?);
//! # Ok(())
//! # }
//! ```

use fp4_formats::ScaleLayout;
use fp4_formats::params::bytes;
use fp4_formats::quantize::{self as contract, DequantizeParams, Format, ScaleSource};
use fp4_formats::{BlockFormat, FloatType, Mxfp4, Nvfp4, e2m1, pack};
use rayon::prelude::*;

use crate::buffer::DeviceBuffer;
use crate::device::{AtOnce, FoundKernel, Kernels, Target};
use crate::error::{Error, Result, filled};
use crate::floats;
use crate::quantize::QuantizedMatrix;
use crate::quantize::device::{Plan, PlannedKernel, launch_step, scale_bytes, sizes};
#[cfg(doc)]
use crate::tensor::BlockScaled;

/// The tensor-level multiplier.
#[derive(Clone, Copy, Debug)]
pub enum Multiplier<'a> {
    /// Known on the host; 1 for MXFP4 and for a single level.
    Given(f32),
    /// One f32 on the device.
    Tensor(&'a DeviceBuffer),
    /// One f32 per row on the device.
    Rows(&'a DeviceBuffer),
}

/// The dequantisation of a matrix, prepared on a device. It owns the result, and a launch does not
/// allocate.
#[derive(Debug)]
pub struct Dequantizer {
    kernels: Kernels,
    plan: Plan,
    /// The kernels of the plan's steps.
    found: Vec<FoundKernel>,
    format: Format,
    layout: ScaleLayout,
    rows: u32,
    cols: u32,
    out: DeviceBuffer,
}

/// The dequantisation of a matrix as planned, before anything is allocated.
pub(crate) struct Planned {
    plan: Plan,
    rows: u32,
    cols: u32,
    /// Bytes of the result.
    bytes: usize,
}

impl Planned {
    /// Plans for a target.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Overflow`].
    pub fn new(
        &Target { arch, machine }: &Target,
        rows: usize,
        cols: usize,
        format: Format,
        layout: ScaleLayout,
        output: FloatType,
    ) -> Result<Self> {
        let (m, k) = sizes(rows, cols, format.block() as usize)?;
        scale_bytes(format, rows, cols, layout)?;
        let config = contract::dequantize_config(format, output);
        let ctas = config.grid(m, k, layout, machine.sms.max(1));
        let plan = Plan {
            op: "dequantize",
            arch,
            steps: vec![PlannedKernel { kernel: config.name, ctas, threads: config.threads() }],
            why: vec![format!("{} to {}, {layout} scales", format.name(), output.name())],
        };
        let bytes = rows
            .checked_mul(cols)
            .and_then(|n| n.checked_mul(output.bytes() as usize))
            .ok_or_else(|| Error::shape("result", "addressable", format!("{rows} x {cols}")))?;
        Ok(Self { plan, rows: m, cols: k, bytes })
    }
}

impl Dequantizer {
    /// Plans, and allocates the result (poisoned), for matrices of `rows` x `cols` in `format` with
    /// scales in `layout`.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes that no kernel takes,
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new(
        kernels: &Kernels,
        rows: usize,
        cols: usize,
        format: Format,
        layout: ScaleLayout,
        output: FloatType,
    ) -> Result<Self> {
        let device = kernels.device();
        let planned = Planned::new(&device.into(), rows, cols, format, layout, output)?;
        let Planned { plan, rows: m, cols: k, bytes } = planned;
        let found = kernels.find_all(plan.steps.iter().map(|step| step.kernel))?;
        let out = DeviceBuffer::poisoned(device, "out", bytes)?;
        Ok(Self { kernels: kernels.clone(), plan, found, format, layout, rows: m, cols: k, out })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The buffer of the result.
    #[must_use]
    pub fn out(&self) -> &DeviceBuffer {
        &self.out
    }

    /// Bytes that the operation must read or write at least once: codes, scales and result.
    ///
    /// # Errors
    /// None in practice, because [`new`](Self::new) has checked the sizes.
    pub fn bytes(&self) -> Result<u64> {
        let (codes, scales) = self.input_bytes()?;
        Ok((codes + scales + self.out.len()) as u64)
    }

    fn input_bytes(&self) -> Result<(usize, usize)> {
        let (rows, cols) = (self.rows as usize, self.cols as usize);
        Ok((rows * (cols / 2), scale_bytes(self.format, rows, cols, self.layout)?))
    }

    /// Queues the launch without waiting for the result; it may be called while a CUDA graph is
    /// recorded. On the emulator the launch is complete when it returns.
    ///
    /// # Errors
    /// [`Error::Shape`] for buffers of other sizes or on another device,
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(
        &self,
        codes: &DeviceBuffer,
        scales: &DeviceBuffer,
        multiplier: Multiplier<'_>,
    ) -> Result<()> {
        self.launch_into(codes, scales, multiplier, &self.out)
    }

    /// [`launch`](Self::launch) with the result in `out`, a buffer of the caller's as large as
    /// [`out`](Self::out).
    ///
    /// # Errors
    /// The same.
    pub fn launch_into(
        &self,
        codes: &DeviceBuffer,
        scales: &DeviceBuffer,
        multiplier: Multiplier<'_>,
        out: &DeviceBuffer,
    ) -> Result<()> {
        let (code_bytes, scale_bytes) = self.input_bytes()?;
        let (source, tensor, given, levels) = match multiplier {
            Multiplier::Given(given) => (ScaleSource::Given, None, given, 0),
            Multiplier::Tensor(buffer) => (ScaleSource::TensorAmax, Some(buffer), 1.0, 1),
            Multiplier::Rows(buffer) => {
                (ScaleSource::RowAmax, Some(buffer), 1.0, self.rows as usize)
            }
        };
        let device = self.kernels.device();
        let codes = codes.checked("codes", code_bytes, device)?;
        let scales = scales.checked("scales", scale_bytes, device)?;
        let levels = levels * size_of::<f32>();
        let tensor =
            tensor.map_or(Ok(0), |tensor| tensor.checked("multipliers", levels, device))?;
        let params = DequantizeParams {
            codes,
            scales,
            tensor,
            out: out.checked("the result", self.out.len(), device)?,
            m: self.rows,
            k: self.cols,
            given,
            source: source as u32,
            blocked: u32::from(self.layout == ScaleLayout::Blocked128x4),
            reserved: 0,
        };
        for step in self.plan.steps.iter().zip(&self.found) {
            // SAFETY: the buffers have the sizes that the parameters state, as checked above. They
            // are alive until the launch is complete, because freeing device memory waits for
            // launches.
            unsafe { launch_step(&mut AtOnce, &self.kernels, step, true, bytes(&params))? };
        }
        Ok(())
    }

    /// Copies the result of the last launch to the host: little-endian elements, row-major.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), which includes the emulator's diagnostics,
    /// among them a byte that the kernel did not write.
    pub fn result(&self) -> Result<Vec<u8>> {
        self.out.read()
    }
}

/// The result that a device must give for `matrix`, computed on the CPU.
///
/// # Errors
/// [`Error::Memory`].
pub fn dequantize_matrix(matrix: &QuantizedMatrix, output: FloatType) -> Result<Vec<u8>> {
    let decode = match matrix.options.recipe.format() {
        Format::Nvfp4 => Nvfp4::decode_scale,
        Format::Mxfp4 => Mxfp4::decode_scale,
    };
    let (cols, block) = (matrix.cols, matrix.options.recipe.format().block() as usize);
    let multipliers = matrix.multipliers();
    let layout = matrix.options.layout;
    let mut bytes = filled("dequantised matrix", matrix.rows * cols * output.bytes() as usize, 0)?;
    let rows = bytes.par_chunks_exact_mut(cols * output.bytes() as usize);
    rows.zip(matrix.codes.par_chunks_exact(cols / 2)).enumerate().for_each(
        |(row, (out, codes))| {
            let multiplier = match multipliers.as_slice() {
                [] => 1.0,
                [only] => *only,
                all => all[row],
            };
            let values = codes.chunks_exact(block / 2).enumerate().flat_map(|(kb, codes)| {
                let scale = matrix.scales[layout.offset(row, kb, cols / block)];
                let factor = multiplier * decode(scale);
                codes.iter().flat_map(move |&byte| {
                    let (low, high) = pack::unpair(byte);
                    [low, high].map(|code| f64::from(e2m1::decode(code) * factor))
                })
            });
            out.copy_from_slice(&floats::encode(output, values));
        },
    );
    Ok(bytes)
}
