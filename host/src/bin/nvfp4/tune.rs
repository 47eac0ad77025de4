//! `bench --tune`: measures, and writes what was measured into the device's table.

use std::path::PathBuf;
use std::process::ExitCode;

use nvfp4::bench::{self, GemmBench, TuneSummary};
use nvfp4::device::Kernels;
use nvfp4::error::{Error, Result};
use nvfp4::gemm::check_table;
use nvfp4::shape::{GemmShape, Shape};
use nvfp4::tune::{self, DeviceKey, Location, Table};

use crate::args::Bench;
use crate::commands::print;
use crate::progress::Progress;

/// The table is written after each shape, so that what was measured survives an interruption.
pub fn run(
    args: &Bench,
    kernels: &Kernels,
    shapes: &[Shape],
    bench: &GemmBench,
    progress: Progress,
) -> anyhow::Result<ExitCode> {
    let shapes: Vec<GemmShape> = shapes.iter().map(gemm).collect::<Result<_>>()?;
    // Before the table is looked at: without a GPU there is nothing to put into it.
    kernels.device().gpu("tuning")?;
    let key = kernels.tune_key();
    let path = match &args.tune.tune_out {
        Some(path) => path.clone(),
        None => Location::find(&key.name).path().map_err(Error::from)?,
    };
    let origin = path.display().to_string();
    let mut replace = args.tune.tune_replace;
    check_table(kernels, &open(&path, key, replace)?, &origin).map_err(Error::from)?;

    let (mut reports, mut entries) = (Vec::new(), 0);
    for shape in shapes {
        progress.step(format!("tuning {shape}"));
        let report = bench::tune(kernels, shape, bench)?;
        // Read again: another run may have added to it.
        let mut table = open(&path, key, replace)?;
        let (problem, measured) = report.entry();
        table.insert(problem, measured);
        tune::write(&path, &table)?;
        (replace, entries) = (false, table.len());
        if !args.target.json {
            progress.suspend(|| print!("{report}"));
        }
        reports.push(report);
    }
    drop(progress);
    let summary = TuneSummary { device: key.clone(), table: origin, entries, reports };
    print(&summary, args.target.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The table to add to.
fn open(path: &PathBuf, key: &DeviceKey, replace: bool) -> Result<Table> {
    if replace { Ok(Table::new(key.clone())) } else { Ok(tune::open(path, key)?) }
}

fn gemm(shape: &Shape) -> Result<GemmShape> {
    match shape {
        Shape::Gemm(shape) => Ok(*shape),
        other => Err(Error::Shape {
            field: "shape to tune".into(),
            required: "a GEMM (gemm:MxNxK, --set gemm or decode)".into(),
            actual: other.to_string(),
        }),
    }
}
