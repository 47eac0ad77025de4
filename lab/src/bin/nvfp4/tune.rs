//! `bench --tune`: measures, and writes the measurements to the device's table.

use std::process::ExitCode;

use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result};
use nvfp4::gemm::check_table;
use nvfp4::tune::{self, Location};
use nvfp4_lab::bench::{self, GemmBench, TuneSummary, TuneTarget};
use nvfp4_lab::shape::Shape;

use crate::args::Bench;
use crate::common::{gated, print};
use crate::progress::{Progress, Steps};

/// The table is written after each shape, so that measurements survive an interruption.
pub fn run(
    args: &Bench,
    kernels: &Kernels,
    shapes: &[Shape],
    bench: &GemmBench,
    progress: Progress,
) -> anyhow::Result<ExitCode> {
    let targets: Vec<Vec<TuneTarget>> =
        shapes.iter().map(|shape| targets(shape, args, bench)).collect::<Result<_>>()?;
    // This is checked before the table is read, because without a GPU there are no measurements.
    kernels.device().gpu("tuning")?;
    let key = kernels.tune_key();
    let path = match &args.tune.tune_out {
        Some(path) => path.clone(),
        None => Location::find(&key.name).path().map_err(Error::from)?,
    };
    let origin = path.display().to_string();
    let mut replace = args.tune.tune_replace;
    if !replace {
        let table = tune::open(&path, key).map_err(Error::from)?;
        check_table(kernels, &table, &origin).map_err(Error::from)?;
    }

    let (mut reports, mut entries) = (Vec::new(), 0);
    drop(progress);
    let progress = Steps::new(targets.iter().flatten().count());
    for target in targets.iter().flatten() {
        progress.step(format!("tuning {}", target.problem()));
        let report = bench::tune(kernels, target)?;
        entries = tune::add(&path, key, report.entry(), replace)?;
        replace = false;
        if !args.target.json {
            progress.suspend(|| print(&report, false))?;
        }
        reports.push(report);
    }
    drop(progress);
    let summary = TuneSummary { device: key.clone(), table: origin, entries, reports };
    print(&summary, args.target.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The products of a shape, and how they are measured.
fn targets(shape: &Shape, args: &Bench, bench: &GemmBench) -> Result<Vec<TuneTarget>> {
    match shape {
        Shape::Dual(_) | Shape::GroupedDual(_) | Shape::Moe(_) => {
            TuneTarget::of(shape, &gated(bench, args.gemm.activation))
        }
        Shape::Gemm(_)
        | Shape::Grouped(_)
        | Shape::Gemv(_)
        | Shape::Quantize(_)
        | Shape::Rows(_)
        | Shape::Mlp(_) => TuneTarget::of(shape, bench),
    }
}
