//! Batched NVFP4 GEMV on a device.
//!
//! `C[l, m] = alpha * ga * gb * sum_k a[l, m, k] * sa * b[l, k] * sb`, for any M and L of at least
//! 1 and K a multiple of 16; `ga` and `gb` are the tensors' global scales. Scales of the matrix
//! and of the vectors are linear or 128x4, independently. The tolerance of the result is stated
//! in [`oracle`](crate::oracle).

use fp4_formats::gemv::GemvParams;
use fp4_formats::{FloatType, Nvfp4, ScaleLayout};
use ptx_emu::LaunchReport;

use crate::buffer::DeviceBuffer;
use crate::device::{Kernels, LaunchSpec};
use crate::error::{Error, Result};
use crate::floats;
use crate::oracle::check_gemv_operands;
use crate::plan::{self, MAX_GRID_Y, Overrides, Plan};
use crate::shape::GemvShape;
use crate::tensor::BlockScaled;

/// Choices of a GEMV besides its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct GemvOptions {
    /// Factor of the result.
    pub alpha: f32,
    /// Element type of the result.
    pub output: FloatType,
    /// What not to leave to the plan.
    pub overrides: Overrides,
}

impl Default for GemvOptions {
    fn default() -> Self {
        Self { alpha: 1.0, output: FloatType::F16, overrides: Overrides::default() }
    }
}

/// The result `[L, M]` of a GEMV.
#[derive(Clone, Debug)]
pub struct GemvResult {
    /// Little-endian elements of [`output`](Self::output), row-major.
    pub bytes: Vec<u8>,
    /// Their type.
    pub output: FloatType,
    /// How it was computed.
    pub plan: Plan,
    /// What the emulator counted, one report a launch; empty on a GPU.
    pub reports: Vec<LaunchReport>,
}

impl GemvResult {
    /// The elements as f32.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        floats::decode(self.output, &self.bytes)
    }
}

/// A GEMV with its operands on a device, ready to launch any number of times.
#[derive(Debug)]
pub struct Gemv {
    kernels: Kernels,
    plan: Plan,
    options: GemvOptions,
    a_codes: DeviceBuffer,
    a_scales: DeviceBuffer,
    b_codes: DeviceBuffer,
    b_scales: DeviceBuffer,
    out: DeviceBuffer,
    params: GemvParams,
}

/// Checks the operands of a GEMV and gives its shape.
///
/// # Errors
/// [`Error::Shape`] where matrix and vectors do not fit each other.
pub fn shape(a: &BlockScaled<Nvfp4>, b: &BlockScaled<Nvfp4>) -> Result<GemvShape> {
    check_gemv_operands(a, b)?;
    let dims = a.dims();
    Ok(GemvShape { m: dims.rows(), k: dims.cols(), l: dims.batch() })
}

/// Runs one GEMV: [`Gemv::new`] and [`Gemv::run`].
///
/// # Errors
/// As those.
pub fn gemv(
    kernels: &Kernels,
    a: &BlockScaled<Nvfp4>,
    b: &BlockScaled<Nvfp4>,
    options: GemvOptions,
) -> Result<GemvResult> {
    Gemv::new(kernels, a, b, options)?.run()
}

impl Gemv {
    /// Checks everything, plans, and copies the operands to the device; launches nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands that do not fit or that no kernel takes, [`Error::Scalar`]
    /// where the product of alpha and the global scales is not representable, and
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn new(
        kernels: &Kernels,
        a: &BlockScaled<Nvfp4>,
        b: &BlockScaled<Nvfp4>,
        options: GemvOptions,
    ) -> Result<Self> {
        let device = kernels.device();
        let shape = shape(a, b)?;
        let arch = device.choice().arch;
        let plan = plan::gemv(shape, a.layout(), arch, device.machine(), &options.overrides)?;
        kernels.load([plan.kernel])?;
        let alpha = combined_scale(options.alpha, a.global_scale(), b.global_scale())?;
        let out_bytes = shape
            .m
            .checked_mul(shape.l)
            .and_then(|n| n.checked_mul(options.output.bytes() as usize))
            .ok_or_else(|| Error::Overflow {
                what: "result".into(),
                detail: format!("{} x {} elements", shape.l, shape.m),
            })?;

        let a_codes = DeviceBuffer::upload(device, "a codes", a.codes())?;
        let a_scales = DeviceBuffer::upload(device, "a scales", a.scales())?;
        let b_codes = DeviceBuffer::upload(device, "b codes", b.codes())?;
        let b_scales = DeviceBuffer::upload(device, "b scales", b.scales())?;
        let out = DeviceBuffer::poisoned(device, "c", out_bytes)?;
        let params = GemvParams {
            a_codes: a_codes.address(),
            a_scales: a_scales.address(),
            b_codes: b_codes.address(),
            b_scales: b_scales.address(),
            out: out.address(),
            a_scale_stride: a.scale_stride() as u64,
            b_scale_stride: b.scale_stride() as u64,
            // The plan has checked that these fit.
            m: shape.m as u32,
            k: shape.k as u32,
            l: shape.l as u32,
            alpha,
            out_type: options.output as u32,
            b_blocked: u32::from(b.layout() == ScaleLayout::Blocked128x4),
        };
        let kernels = kernels.clone();
        Ok(Self { kernels, plan, options, a_codes, a_scales, b_codes, b_scales, out, params })
    }

    /// How it will be run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Launches without waiting for the result, also while a CUDA graph is recorded. The
    /// emulator's reports come back at once.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self) -> Result<Vec<LaunchReport>> {
        let mut reports = Vec::new();
        let l = self.params.l as usize;
        for first in (0..l).step_by(MAX_GRID_Y) {
            let batches = (l - first).min(MAX_GRID_Y) as u32;
            let params = param_bytes(&self.part(first as u64, batches));
            let spec = LaunchSpec {
                entry: self.plan.kernel,
                grid: [self.plan.grid[0], batches, 1],
                block: [self.plan.threads, 1, 1],
                cluster: None,
                dynamic_shared: self.plan.dynamic_shared,
                overlaps: false,
                params: &params,
            };
            // SAFETY: the buffers belong to `self` and hold the operands whose lengths
            // `BlockScaled` guarantees for exactly these sizes; the kernel reads and writes
            // within them (its contract). A launch still running when they are dropped is
            // finished first: freeing device memory synchronises.
            reports.extend(unsafe { self.kernels.launch(&spec)? });
        }
        Ok(reports)
    }

    /// The parameters for `batches` batch entries from `first` on.
    fn part(&self, first: u64, batches: u32) -> GemvParams {
        let p = &self.params;
        let (m, k) = (u64::from(p.m), u64::from(p.k));
        GemvParams {
            a_codes: p.a_codes + first * m * (k / 2),
            a_scales: p.a_scales + first * p.a_scale_stride,
            b_codes: p.b_codes + first * (k / 2),
            b_scales: p.b_scales + first * p.b_scale_stride,
            out: p.out + first * m * u64::from(self.options.output.bytes()),
            l: batches,
            ..*p
        }
    }

    /// Launches and brings the result back.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError): also what the emulator diagnoses, and on it a
    /// result that the kernel did not write.
    pub fn run(&self) -> Result<GemvResult> {
        let reports = self.launch()?;
        Ok(GemvResult { reports, ..self.result()? })
    }

    /// Brings back the result of what was launched before, without launching.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn result(&self) -> Result<GemvResult> {
        let bytes = self.out.read()?;
        let (output, plan) = (self.options.output, self.plan.clone());
        Ok(GemvResult { bytes, output, plan, reports: Vec::new() })
    }

    /// Bytes of operands and result on the device, padding included.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        [&self.a_codes, &self.a_scales, &self.b_codes, &self.b_scales, &self.out]
            .iter()
            .map(|buffer| buffer.len() as u64)
            .sum()
    }
}

/// alpha * ga * gb in f32, computed in f64 and rounded once. A product that leaves f32's normal
/// range would lose the result's accuracy, so it is refused; zero is fine.
pub(crate) fn combined_scale(alpha: f32, ga: f32, gb: f32) -> Result<f32> {
    let exact = f64::from(alpha) * f64::from(ga) * f64::from(gb);
    let rounded = exact as f32;
    if rounded.is_normal() || exact == 0.0 {
        Ok(rounded)
    } else {
        Err(Error::Scalar {
            field: "alpha times both global scales".into(),
            required: "0 or a normal f32",
            actual: exact,
        })
    }
}

/// The parameter block as the kernel's PTX declares it: [`GemvParams`] is `repr(C)`, little
/// endian, without padding, which the assertion below pins.
fn param_bytes(p: &GemvParams) -> [u8; size_of::<GemvParams>()] {
    const WIDE: usize = 7;
    const _: () = assert!(size_of::<GemvParams>() == WIDE * 8 + 6 * 4);
    let wide =
        [p.a_codes, p.a_scales, p.b_codes, p.b_scales, p.out, p.a_scale_stride, p.b_scale_stride];
    let narrow = [p.m, p.k, p.l, p.alpha.to_bits(), p.out_type, p.b_blocked];
    let mut bytes = [0; size_of::<GemvParams>()];
    let (head, tail) = bytes.split_at_mut(WIDE * 8);
    for (slot, value) in head.chunks_exact_mut(8).zip(wide) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
    for (slot, value) in tail.chunks_exact_mut(4).zip(narrow) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_parameter_block_has_each_field_at_its_offset() {
        let params = GemvParams {
            a_codes: 1,
            a_scales: 2,
            b_codes: 3,
            b_scales: 4,
            out: 5,
            a_scale_stride: 6,
            b_scale_stride: 7,
            m: 8,
            k: 9,
            l: 10,
            alpha: f32::from_bits(11),
            out_type: 12,
            b_blocked: 13,
        };
        let bytes = param_bytes(&params);
        let wide = [
            offset_of!(GemvParams, a_codes),
            offset_of!(GemvParams, a_scales),
            offset_of!(GemvParams, b_codes),
            offset_of!(GemvParams, b_scales),
            offset_of!(GemvParams, out),
            offset_of!(GemvParams, a_scale_stride),
            offset_of!(GemvParams, b_scale_stride),
        ];
        for (want, at) in (1..).zip(wide) {
            assert_eq!(bytes[at..at + 8], u64::to_le_bytes(want), "field {want}");
        }
        let narrow = [
            offset_of!(GemvParams, m),
            offset_of!(GemvParams, k),
            offset_of!(GemvParams, l),
            offset_of!(GemvParams, alpha),
            offset_of!(GemvParams, out_type),
            offset_of!(GemvParams, b_blocked),
        ];
        for (want, at) in (8..).zip(narrow) {
            assert_eq!(bytes[at..at + 4], u32::to_le_bytes(want), "field {want}");
        }
    }

    #[test]
    fn scales_that_f32_cannot_hold_are_refused() {
        assert_eq!(combined_scale(2.0, 0.5, 3.0).expect("fits"), 3.0);
        assert_eq!(combined_scale(0.0, 1.0, 1.0).expect("zero is fine"), 0.0);
        for (alpha, ga, gb) in [(1e30, 1e30, 1.0), (1e-30, 1e-30, 1.0), (f32::NAN, 1.0, 1.0)] {
            let error = combined_scale(alpha, ga, gb).expect_err("out of range");
            assert!(matches!(error, Error::Scalar { .. }), "{error}");
        }
    }
}
