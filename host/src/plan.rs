//! Which kernel runs an operation, with which launch, and why.
//!
//! The choice itself is the table of [`fp4_formats::gemv`], which the kernels are compiled from; a
//! plan makes a launch of it and records the reasons. Nothing is measured at run time.

use std::fmt;

use fp4_formats::gemv::{self, CONFIGS, GemvConfig, VectorElement};
use fp4_formats::{Arch, ScaleLayout};
use serde::Serialize;

use crate::device::Machine;
use crate::error::{Error, Result};
use crate::shape::{GemvShape, MAX_DIM};

/// Most CTAs in the grid's y dimension (CUDA C++ Programming Guide, technical specifications);
/// larger batches take several launches.
pub const MAX_GRID_Y: usize = 65_535;

/// How a GEMV will be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
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
    /// Launches, one after the other; more than one only for batches beyond 65,535.
    pub launches: usize,
    /// Rows of the matrix that a CTA carries at a time.
    pub tile_rows: u32,
    /// Bytes of codes that a lane loads in one instruction.
    pub load_bytes: u32,
    /// f32 additions, one after the other, that lead to a result; what the oracle's bound takes.
    pub additions: u32,
    /// Whether operands are rearranged before the launch.
    pub repack: &'static str,
    /// Why this kernel and this grid, a sentence each.
    pub why: Vec<String>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y] = self.grid;
        write!(
            f,
            "{} for {}: {x} x {y} CTAs of {} threads, {} bytes of shared memory, {} rows a CTA at \
             a time, {}-byte loads, {} launch{}, repacking: {}",
            self.kernel,
            self.arch,
            self.threads,
            self.dynamic_shared,
            self.tile_rows,
            self.load_bytes,
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

/// What a caller may fix instead of leaving it to the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Kernel by name.
    pub kernel: Option<String>,
    /// CTAs that share a batch entry.
    pub ctas: Option<u32>,
}

/// Plans a GEMV with the matrix's scales in `layout` for a machine that runs kernels of `arch`.
///
/// # Errors
/// [`Error::Shape`] where no kernel takes the problem (K no multiple of 16, sizes beyond 32
/// bits), or an override names an unknown or unsuitable kernel or no CTAs.
pub fn gemv(
    shape: GemvShape,
    layout: ScaleLayout,
    arch: Arch,
    machine: Machine,
    overrides: &Overrides,
) -> Result<Plan> {
    let (m, k) = (dimension("M", shape.m)?, dimension("K", shape.k)?);
    dimension("L", shape.l)?;
    let element = VectorElement::of(arch);
    let machine =
        gemv::Machine { sms: machine.sms.max(1), shared_bytes: machine.shared_per_sm, element };
    let batches = shape.l.min(MAX_GRID_Y) as u32;
    let Some((table, reason)) = gemv::choose(m, k, batches, layout, &machine) else {
        return Err(Error::shape("K", "a multiple of 16", shape.k));
    };
    let (config, reason) = match &overrides.kernel {
        None => (table, reason),
        Some(name) => (by_name(name, shape, layout, k)?, "the kernel was asked for by name"),
    };
    let wave = config.grid_x(m, k, batches, &machine);
    let ctas = match overrides.ctas {
        Some(0) => return Err(Error::shape("number of CTAs", "at least 1", 0)),
        Some(ctas) => ctas,
        None => wave,
    };
    let tiles = config.tiles(m);
    let per_sm = config.ctas_per_sm(k, &machine);
    let why = vec![
        reason.to_owned(),
        format!(
            "the matrix's scales are {layout}, K = {k} allows {}-byte loads",
            config.load_bytes
        ),
        if overrides.ctas.is_some() {
            format!("{ctas} CTAs a batch entry were asked for")
        } else {
            format!(
                "{tiles} tiles a batch entry; {per_sm} CTAs fit each of {} SMs at once",
                machine.sms
            )
        },
    ];
    Ok(Plan {
        op: "gemv",
        kernel: config.name,
        arch,
        grid: [ctas, batches],
        threads: config.threads(),
        dynamic_shared: gemv::shared_bytes(k, element),
        launches: shape.l.div_ceil(MAX_GRID_Y),
        tile_rows: config.rows_per_warp * config.warps,
        load_bytes: config.load_bytes,
        additions: config.additions(k),
        repack: "none",
        why,
    })
}

fn dimension(field: &str, value: usize) -> Result<u32> {
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
