//! Which kernel runs an operation, with which launch, and why.
//!
//! The choice is made by table: every configuration that can take the problem is a candidate, a
//! comparator orders them, and the plan records the reasons. Nothing is measured at run time.

use std::fmt;

use fp4_formats::ScaleLayout;
use fp4_formats::gemv::{self, CONFIGS, GemvConfig, VectorElement};
use serde::Serialize;

use crate::device::Machine;
use crate::error::{Error, Result};
use crate::shape::GemvShape;

/// Most CTAs in the grid's y dimension (CUDA C++ Programming Guide, technical specifications);
/// larger batches take several launches.
pub const MAX_GRID_Y: usize = 65_535;

/// Shared memory that the system keeps for itself in every CTA, bytes.
const RESERVED_SHARED: u32 = 1024;

/// How a GEMV will be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The operation, `gemv`.
    pub op: &'static str,
    /// Kernel name in the PTX.
    pub kernel: &'static str,
    /// Architecture of the kernel.
    pub arch: String,
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
    /// Whether operands are rearranged before the launch.
    pub repack: &'static str,
    /// Why this kernel and this grid, a sentence each.
    pub why: Vec<String>,
    #[serde(skip)]
    pub(crate) config: GemvConfig,
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

/// How the kernels of an architecture keep the vector: sm_90a has no e2m1 conversion and works on
/// integers, sm_100a converts to f16.
fn vector_element(arch: &str) -> VectorElement {
    if arch == "sm_90a" { VectorElement::I8 } else { VectorElement::F16 }
}

/// A configuration with what it means for a problem on a machine.
struct Candidate {
    config: GemvConfig,
    index: usize,
    /// CTAs of work in all batch entries.
    tiles: u64,
    /// CTAs that the machine holds at once.
    resident: u64,
}

impl Candidate {
    /// Part of the machine's CTA slots that work over the whole run, in percent: how full the
    /// last wave is. Work below one wave counts as what it fills.
    fn busy(&self) -> u64 {
        let waves = self.tiles.div_ceil(self.resident);
        100 * self.tiles / (waves * self.resident)
    }

    /// The comparator: wide loads, then a full machine (in steps of a quarter, since occupancy
    /// beyond what hides latency buys nothing), then more rows a warp (each value of the vector
    /// is read from shared memory once for all of them), then the table's order.
    fn rank(&self) -> impl Ord + use<> {
        let order = std::cmp::Reverse(self.index);
        (self.config.load_bytes, self.busy() / 25, self.config.rows_per_warp, order)
    }
}

/// Plans a GEMV with the matrix's scales in `layout` for a machine that runs kernels of `arch`.
///
/// # Errors
/// [`Error::Shape`] where no kernel takes the problem (K no multiple of 16, sizes beyond 32
/// bits), or an override names an unknown or unsuitable kernel or no CTAs.
pub fn gemv(
    shape: GemvShape,
    layout: ScaleLayout,
    arch: &str,
    machine: Machine,
    overrides: &Overrides,
) -> Result<Plan> {
    let m = dimension("M", shape.m)?;
    let k = dimension("K", shape.k)?;
    dimension("L", shape.l)?;
    let dynamic_shared = gemv::shared_bytes(k, vector_element(arch));
    let candidate = |(index, config): (usize, &GemvConfig)| {
        let by_shared = machine.shared_per_sm / (dynamic_shared + RESERVED_SHARED);
        let per_sm = config.min_blocks.min(by_shared).max(1);
        Candidate {
            config: *config,
            index,
            tiles: u64::from(config.tiles(m)) * shape.l as u64,
            resident: u64::from(per_sm) * u64::from(machine.sms.max(1)),
        }
    };
    let suitable = |config: &GemvConfig| config.scale_layout == layout && config.takes_k(k);
    let candidates = CONFIGS.iter().enumerate().filter(|(_, config)| suitable(config));
    let best = match &overrides.kernel {
        None => candidates.map(candidate).max_by_key(Candidate::rank),
        Some(name) => candidates.map(candidate).find(|c| c.config.name == name),
    };
    let Some(best) = best else {
        return Err(no_kernel(shape, layout, overrides));
    };

    let config = best.config;
    let batches = shape.l.min(MAX_GRID_Y) as u32;
    let slots = best.resident.div_ceil(u64::from(batches)).max(1);
    let ctas = match overrides.ctas {
        Some(0) => return Err(Error::shape("number of CTAs", "at least 1", 0)),
        Some(ctas) => ctas,
        None => config.tiles(m).min(slots.try_into().unwrap_or(u32::MAX)),
    };
    Ok(Plan {
        op: "gemv",
        kernel: config.name,
        arch: arch.into(),
        grid: [ctas, batches],
        threads: config.threads(),
        dynamic_shared,
        launches: shape.l.div_ceil(MAX_GRID_Y),
        tile_rows: config.rows_per_warp * config.warps,
        load_bytes: config.load_bytes,
        repack: "none",
        why: reasons(&best, shape, layout, overrides),
        config,
    })
}

fn dimension(field: &str, value: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(Error::shape(field, format!("from 1 to {}", u32::MAX), value)),
    }
}

fn no_kernel(shape: GemvShape, layout: ScaleLayout, overrides: &Overrides) -> Error {
    let k = shape.k as u32;
    let names: Vec<&str> = CONFIGS
        .iter()
        .filter(|config| config.scale_layout == layout && config.takes_k(k))
        .map(|config| config.name)
        .collect();
    match &overrides.kernel {
        Some(name) if !names.is_empty() => Error::shape(
            format!("kernel for {shape} with {layout} scales"),
            format!("one of {}", names.join(", ")),
            name,
        ),
        _ => Error::shape("K", "a multiple of 16", shape.k),
    }
}

fn reasons(
    best: &Candidate,
    shape: GemvShape,
    layout: ScaleLayout,
    overrides: &Overrides,
) -> Vec<String> {
    let Candidate { config, tiles, resident, .. } = best;
    let mut why = vec![format!("the matrix's scales are {layout}")];
    why.push(if config.load_bytes == 16 {
        format!("K = {} is a multiple of 32, so rows are aligned for 16-byte loads", shape.k)
    } else {
        format!("K = {} is an odd multiple of 16: rows are 8-byte aligned only", shape.k)
    });
    why.push(match &overrides.kernel {
        Some(_) => "the kernel was asked for by name".into(),
        None => format!(
            "{} rows a warp make {tiles} CTAs of work for {resident} that run at once, {} % of them \
             busy",
            config.rows_per_warp,
            best.busy()
        ),
    });
    if overrides.ctas.is_some() {
        why.push("the number of CTAs was asked for".into());
    }
    why
}
