//! Plans of a GEMV: which kernel runs it, with which launch, and why.
//!
//! [`choose`](crate::plan::gemv::choose) chooses a configuration from the table that the kernels are compiled
//! from. A plan is the launch that follows, with the reasons. Nothing is measured at run time.

use std::fmt;

use fp4_formats::gemv::{CONFIGS, GemvConfig, ROWS};
use fp4_formats::{Arch, ScaleLayout};
use serde::Serialize;

use super::WeightForm;
use crate::device::{DeviceProperties, MAX_GRID_Y};
use crate::error::{Error, Result};
use crate::plan::gemv::{Geometry, MAX_ROWS, choose};
use crate::quantize::device::PlannedKernel;
use crate::shape::{GemvShape, MAX_DIM};

/// The plan of a GEMV.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GemvPlan {
    /// The operation, `gemv`.
    pub op: &'static str,
    /// Kernel name in the PTX.
    pub kernel: &'static str,
    /// Architecture of the kernel.
    pub arch: Arch,
    /// CTAs in x and y; y is the batch entries of one launch.
    pub grid: [u32; 2],
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA, bytes.
    pub dynamic_shared: u32,
    /// Number of launches; more than one only for more than 65,535 batch entries.
    pub launches: usize,
    /// Rows of the weights that a CTA computes at a time.
    pub tile_rows: u32,
    /// Bytes of codes that a thread loads in one instruction, a chunk; 0 where the copy engine loads them.
    pub load_bytes: u32,
    /// Chunks of a row that a CTA takes at a time, one per thread; 0 where the tensor cores multiply.
    pub panel: u32,
    /// Row groups of a CTA: rows, or with 128x4 scales sets of four rows whose scales are adjacent. 0 where the
    /// tensor cores multiply.
    pub share: u32,
    /// CTAs that have one row group more.
    pub rest: u32,
    /// Launches before it, where the tensor cores multiply: the scales of activations are laid out,
    /// if the kernel does not load them.
    pub before: Vec<PlannedKernel>,
    /// Bytes of device memory that a launch needs besides operands and result.
    pub workspace_bytes: usize,
    /// Length of the longest chain of dependent f32 additions behind a result, from which the
    /// oracle derives its bound.
    pub additions: u32,
    /// Whether operands were rearranged, and when.
    pub repack: &'static str,
    /// The reasons for this kernel and this grid, one sentence each.
    pub why: Vec<String>,
}

impl fmt::Display for GemvPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PlannedKernel { kernel, ctas, threads } in &self.before {
            write!(f, "{kernel}: {ctas} CTAs of {threads} threads, then ")?;
        }
        let [x, y] = self.grid;
        let loads = match self.load_bytes {
            0 => "loads by the copy engine".to_owned(),
            bytes => format!("{bytes}-byte loads"),
        };
        write!(
            f,
            "{} for {}: {x} x {y} CTAs of {} threads, {} bytes of shared memory, {} rows per CTA \
             at a time, {loads}, {} launch{}, repacking: {}",
            self.kernel,
            self.arch,
            self.threads,
            self.dynamic_shared,
            self.tile_rows,
            self.launches,
            if self.launches == 1 { "" } else { "es" },
            self.repack,
        )?;
        for reason in &self.why {
            write!(f, "\n  - {reason}")?;
        }
        Ok(())
    }
}

impl GemvPlan {
    /// The same plan for weights of this form, whose scales the kernel reads in the layout `scales`.
    ///
    /// # Errors
    /// The same as [`WeightForm::scale_bytes`].
    pub(super) fn of_weights(mut self, form: &WeightForm) -> Result<Self> {
        if form.is_repacked() {
            let [read, written] = form.scale_bytes()?;
            self.repack = match form.scales {
                ScaleLayout::Linear => "the weights' scales, to linear at load",
                ScaleLayout::Blocked128x4 => "the weights' scales, to 128x4 at load",
            };
            self.why.push(format!(
                "the weights' scales were stored {} and put in {} order at load, which read {read} \
                 bytes and wrote {written}, once",
                form.stored, form.scales
            ));
        }
        Ok(self)
    }
}

/// Choices that the caller makes instead of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GemvOverrides {
    /// Kernel by name: of a GEMV or, where there is a workspace, of a product on the tensor cores.
    pub kernel: Option<String>,
    /// CTAs that share a batch entry, of a kernel of a GEMV.
    pub ctas: Option<u32>,
}

impl GemvOverrides {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

crate::setters::setters!(GemvOverrides {
    kernel: impl Into<Option<String>>,
    ctas: impl Into<Option<u32>>,
});

/// Plans a GEMV with the weights' scales in `layout` for a machine that runs kernels of `arch`, by the kernels of
/// a GEMV, which need no workspace.
///
/// # Errors
/// [`Error::Shape`] if no kernel takes the problem (K is not a multiple of 16, or a size does not
/// fit 31 bits), or if an override names an unknown or unsuitable kernel or zero CTAs.
pub fn plan(
    shape: GemvShape,
    layout: ScaleLayout,
    arch: Arch,
    machine: DeviceProperties,
    overrides: &GemvOverrides,
) -> Result<GemvPlan> {
    let (m, k) = (dimension("M", shape.m)?, dimension("K", shape.k)?);
    dimension("L", shape.l)?;
    let batches = shape.l.min(MAX_GRID_Y) as u32;
    let sms = machine.sms.max(1);
    let Some((table, reason)) = choose(k, layout) else {
        return Err(Error::shape("K", "a multiple of 16", shape.k));
    };
    let (config, reason) = match &overrides.kernel {
        None => (table, reason),
        Some(name) => (by_name(name, shape, layout, k)?, "the kernel was asked for by name"),
    };
    if overrides.ctas == Some(0) {
        return Err(Error::shape("number of CTAs", "at least 1", 0));
    }
    let geometry = Geometry::new(config, [m, k, batches], sms, overrides.ctas);
    if geometry.rows > u64::from(MAX_ROWS) {
        let least = config.row_groups(m).div_ceil(MAX_ROWS / config.group_rows());
        return Err(Error::shape(
            format!("number of CTAs for {m} rows"),
            format!("at least {least}"),
            geometry.ctas,
        ));
    }
    let panels = match geometry.panels {
        1 => String::new(),
        panels => format!(", {panels} panels after one another"),
    };
    let why = vec![
        reason.to_owned(),
        format!(
            "the weights' scales are {layout}, K = {k} allows {}-byte loads; {} warps share a row{panels}",
            config.load_bytes, geometry.warps,
        ),
        if overrides.ctas.is_some() {
            format!("{} CTAs per batch entry were asked for", geometry.ctas)
        } else {
            format!(
                "{} rows per CTA; each of {sms} SMs holds {} CTAs at once",
                geometry.rows, geometry.ctas_per_sm,
            )
        },
    ];
    Ok(GemvPlan {
        op: "gemv",
        kernel: config.name,
        arch,
        grid: [geometry.ctas, batches],
        threads: geometry.threads(),
        dynamic_shared: geometry.shared_bytes(),
        launches: shape.l.div_ceil(MAX_GRID_Y),
        tile_rows: ROWS,
        load_bytes: config.load_bytes,
        panel: geometry.panel,
        share: geometry.share,
        rest: geometry.rest,
        before: Vec::new(),
        workspace_bytes: 0,
        additions: geometry.additions(config),
        repack: "none",
        why,
    })
}

pub(super) fn dimension(field: &str, value: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(value) if (1..=MAX_DIM).contains(&u64::from(value)) => Ok(value),
        _ => Err(Error::shape(field, format!("from 1 to {MAX_DIM}"), value)),
    }
}

/// The configuration of this name, if it can take the problem.
fn by_name(
    name: &str,
    shape: GemvShape,
    layout: ScaleLayout,
    k: u32,
) -> Result<&'static GemvConfig> {
    let suitable = |config: &&GemvConfig| config.scale_layout == layout && config.takes_k(k);
    let found = CONFIGS.iter().filter(suitable).find(|config| config.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = CONFIGS.iter().filter(suitable).map(|config| config.name).collect();
        Error::shape(
            format!("kernel for {shape} with {layout} scales"),
            format!("one of {}", names.join(", ")),
            name,
        )
    })
}
