//! `bench --tune`: measures, and writes the measurements to the device's table.

use std::process::ExitCode;

use nvfp4::bench::{self, GemmBench, TuneSummary};
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result};
use nvfp4::gemm::check_table;
use nvfp4::shape::{GemmShape, Shape};
use nvfp4::tune::{self, Location};

use crate::args::Bench;
use crate::commands::{gated, print};
use crate::progress::{Progress, Steps};

/// The table is written after each shape, so that measurements survive an interruption.
pub fn run(
    args: &Bench,
    kernels: &Kernels,
    shapes: &[Shape],
    bench: &GemmBench,
    progress: Progress,
) -> anyhow::Result<ExitCode> {
    let problems: Vec<(GemmShape, GemmBench)> =
        shapes.iter().map(|shape| problem(shape, args, bench)).collect::<Result<_>>()?;
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
    let progress = Steps::new(problems.len());
    for (shape, (sizes, bench)) in shapes.iter().zip(problems) {
        progress.step(format!("tuning {shape}"));
        let report = bench::tune(kernels, sizes, &bench)?;
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

/// The sizes of a product, and how it is measured.
fn problem(shape: &Shape, args: &Bench, bench: &GemmBench) -> Result<(GemmShape, GemmBench)> {
    match shape {
        Shape::Gemm(sizes) => Ok((*sizes, bench.clone())),
        Shape::Dual(sizes) => Ok((*sizes, gated(bench, args.gemm.activation))),
        Shape::Gemv(_)
        | Shape::Grouped(_)
        | Shape::GroupedDual(_)
        | Shape::Moe(_)
        | Shape::Quantize(_) => Err(Error::Shape {
            field: "shape to tune".into(),
            required: "a GEMM (gemm:MxNxK, dual:MxNxK, --set gemm, dual or decode)".into(),
            actual: shape.to_string(),
        }),
    }
}
