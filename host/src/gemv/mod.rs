//! Batched NVFP4 GEMV on a device.
//!
//! `C[l, m] = alpha * ga * gb * sum_k a[l, k] * sa[l, k/16] * b[l, m, k] * sb[l, m, k/16]`: `a` are
//! the activations, one vector per batch entry; `b` are the weights, one row per output; `ga` and
//! `gb` are their global scales. M and L are at least 1, K is a multiple of 16. The scales of
//! activations and weights are linear or 128x4, independently of each other.
//! [`oracle`](crate::oracle) states the tolerance of the result.

pub mod layer;
mod plan;

pub use plan::{GemvOverrides, GemvPlan, plan};

use fp4_formats::gemv::GemvParams;
use fp4_formats::{BlockFormat, FloatType, Nvfp4, ScaleLayout};
use ptx_emu::LaunchReport;

use crate::buffer::DeviceBuffer;
use crate::device::{Kernels, LaunchSpec, MAX_GRID_Y};
use crate::error::{Error, Result};
use crate::floats;
use crate::shape::GemvShape;
use crate::tensor::BlockScaled;

/// Options of a GEMV.
#[derive(Clone, Debug, PartialEq)]
pub struct GemvOptions {
    /// Factor of the result.
    pub alpha: f32,
    /// Element type of the result.
    pub output: FloatType,
    /// Choices made instead of the plan's.
    pub overrides: GemvOverrides,
}

impl Default for GemvOptions {
    fn default() -> Self {
        Self { alpha: 1.0, output: FloatType::F16, overrides: GemvOverrides::default() }
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
    pub plan: GemvPlan,
    /// The emulator's counts, one report per launch; empty on a GPU.
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
    plan: GemvPlan,
    options: GemvOptions,
    a_codes: DeviceBuffer,
    a_scales: DeviceBuffer,
    b_codes: DeviceBuffer,
    b_scales: DeviceBuffer,
    out: DeviceBuffer,
    params: GemvParams,
}

/// Checks the operands of a GEMV, activations `a` and weights `b`, and returns its shape.
///
/// # Errors
/// [`Error::Shape`] if they do not fit each other.
pub fn shape<F: BlockFormat>(a: &BlockScaled<F>, b: &BlockScaled<F>) -> Result<GemvShape> {
    let (da, db) = (a.dims(), b.dims());
    let (a, b) = (a.name(), b.name());
    if da.rows() != 1 {
        let required = "1: a GEMV has one vector of activations per batch entry";
        return Err(Error::shape(format!("rows of `{a}`"), required, da.rows()));
    }
    if da.cols() != db.cols() {
        let required = format!("{}, the K of `{b}`", db.cols());
        return Err(Error::shape(format!("K of `{a}`"), required, da.cols()));
    }
    if da.batch() != db.batch() {
        let required = format!("{}, the batch of `{b}`", db.batch());
        return Err(Error::shape(format!("batch of `{a}`"), required, da.batch()));
    }
    let dims = db;
    Ok(GemvShape { m: dims.rows(), k: dims.cols(), l: dims.batch() })
}

/// Multiplies the activations `a` with the weights `b`: [`Gemv::new`], then [`Gemv::run`].
///
/// # Errors
/// The same.
pub fn gemv(
    kernels: &Kernels,
    a: &BlockScaled<Nvfp4>,
    b: &BlockScaled<Nvfp4>,
    options: GemvOptions,
) -> Result<GemvResult> {
    Gemv::new(kernels, a, b, options)?.run()
}

impl Gemv {
    /// Checks the activations `a` and the weights `b`, plans, and copies them to the device. It
    /// launches nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] for operands that do not fit each other or that no kernel takes,
    /// [`Error::Scalar`] if the product of alpha and the global scales is not representable, and
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
        let plan = plan(shape, b.layout(), arch, device.properties(), &options.overrides)?;
        kernels.load([plan.kernel])?;
        let alpha = combined_scale(options.alpha, b.global_scale(), a.global_scale())?;
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
            b_codes: b_codes.address(),
            b_scales: b_scales.address(),
            a_codes: a_codes.address(),
            a_scales: a_scales.address(),
            out: out.address(),
            b_scale_stride: b.scale_stride() as u64,
            a_scale_stride: a.scale_stride() as u64,
            // The plan has checked that these fit.
            m: shape.m as u32,
            k: shape.k as u32,
            l: shape.l as u32,
            alpha,
            out_type: options.output as u32,
            a_blocked: u32::from(a.layout() == ScaleLayout::Blocked128x4),
        };
        let kernels = kernels.clone();
        Ok(Self { kernels, plan, options, a_codes, a_scales, b_codes, b_scales, out, params })
    }

    /// The plan that it runs by.
    #[must_use]
    pub fn plan(&self) -> &GemvPlan {
        &self.plan
    }

    /// Launches without waiting for the result; it may be called while a CUDA graph is recorded.
    /// On the emulator the launches are complete, and have reports, when it returns.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError).
    pub fn launch(&self) -> Result<Vec<LaunchReport>> {
        let mut reports = Vec::new();
        let l = self.params.l as usize;
        for first in (0..l).step_by(MAX_GRID_Y) {
            let batches = (l - first).min(MAX_GRID_Y) as u32;
            let params = self.part(first as u64, batches).to_bytes();
            let spec = LaunchSpec {
                entry: self.plan.kernel,
                grid: [self.plan.grid[0], batches, 1],
                block: [self.plan.threads, 1, 1],
                cluster: None,
                dynamic_shared: self.plan.dynamic_shared,
                overlaps: false,
                params: &params,
            };
            // SAFETY: the buffers belong to `self` and hold operands whose lengths `BlockScaled`
            // guarantees for exactly these sizes; by its contract the kernel reads and writes only
            // within them. Freeing device memory synchronises, so a launch that is running when they
            // are dropped completes first.
            reports.extend(unsafe { self.kernels.launch(&spec)? });
        }
        Ok(reports)
    }

    /// The parameters for `batches` batch entries from `first` on.
    fn part(&self, first: u64, batches: u32) -> GemvParams {
        let p = &self.params;
        let (m, k) = (u64::from(p.m), u64::from(p.k));
        GemvParams {
            b_codes: p.b_codes + first * m * (k / 2),
            b_scales: p.b_scales + first * p.b_scale_stride,
            a_codes: p.a_codes + first * (k / 2),
            a_scales: p.a_scales + first * p.a_scale_stride,
            out: p.out + first * m * u64::from(self.options.output.bytes()),
            l: batches,
            ..*p
        }
    }

    /// Launches, waits, and copies the result to the host.
    ///
    /// # Errors
    /// [`DeviceError`](crate::device::DeviceError), which includes the emulator's diagnostics, among
    /// them a result that the kernel did not write.
    pub fn run(&self) -> Result<GemvResult> {
        let reports = self.launch()?;
        Ok(GemvResult { reports, ..self.result()? })
    }

    /// Waits for the launches so far and copies the result to the host.
    ///
    /// # Errors
    /// The same as of [`run`](Self::run).
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

/// `alpha * ga * gb` in f32, computed in f64 and rounded once. A product outside the normal range of
/// f32 would make results inaccurate, so it is refused; zero is accepted.
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

#[cfg(test)]
mod tests {
    use super::*;

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
