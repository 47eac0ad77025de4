//! The commands for whole checkpoints.

use std::process::ExitCode;

use fp4_formats::ScaleLayout;
use nvfp4::device::Device;
use nvfp4::quantize::{TensorScale, recipe_by_name};
use nvfp4_checkpoint::{
    self as checkpoint, Calibration, DequantizeOptions, Model, ModelOptions, QuantizedInputs,
    SaveOptions, VerifyOptions,
};

use crate::args::{
    Calibrated, CheckpointOutput, Convert, Dequantize, Inspect, OutputFolder, Quantize, Verify,
};
use crate::common::{exit, print};
use crate::progress::Bar;

fn save_options(output: &CheckpointOutput) -> SaveOptions {
    let scales = if output.swizzled { ScaleLayout::Blocked128x4 } else { ScaleLayout::Linear };
    SaveOptions::new(output.layout)
        .scales(scales)
        .force(output.folder.force)
        .shard_bytes(output.folder.shard_bytes)
}

pub fn quantize(args: &Quantize) -> anyhow::Result<ExitCode> {
    let recipe = recipe_by_name(args.format, &args.recipe)?;
    let mut options = ModelOptions::new(recipe, args.output.layout);
    options.save = save_options(&args.output);
    if args.one_level {
        options.scale = TensorScale::OneLevel;
    }
    if let Some(search) = args.search {
        options.search = search;
    }
    if let (Some(format), Some(file)) = (args.activations, &args.calibration) {
        let calibration = Calibration::open(file)?;
        options.inputs = match format {
            Calibrated::Nvfp4 => QuantizedInputs::Nvfp4(calibration),
            Calibrated::Fp8 => QuantizedInputs::Fp8(calibration),
        };
    }
    if args.all_layers {
        options.experts_only = false;
    }
    if args.no_default_excludes {
        options.default_excludes = false;
    }
    options.exclude.extend(args.exclude.iter().cloned());
    let model = Model::open(&args.model)?;
    if args.list {
        print(&checkpoint::plan_quantize(&model, &options)?, args.output.folder.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let kernels = match &args.device {
        Some(request) => Some(Device::open(request)?.kernels(args.kernels.as_deref())?),
        None => None,
    };
    let mut bar = Bar::new();
    let out = &args.output.folder.out;
    let report = checkpoint::quantize_model(&model, &options, out, kernels.as_ref(), &mut bar)?;
    drop(bar);
    print(&report, args.output.folder.json)?;
    Ok(ExitCode::SUCCESS)
}

pub fn convert(args: &Convert) -> anyhow::Result<ExitCode> {
    let model = Model::open(&args.checkpoint)?;
    let mut bar = Bar::new();
    let mut options = save_options(&args.output);
    options.share_scales = args.share_scales;
    options.repair_input_scales = args.repair_input_scales;
    options.repair_zero_layers = args.repair_zero_layers;
    let out = &args.output.folder.out;
    let report = checkpoint::convert_model(&model, args.format, &options, out, &mut bar)?;
    drop(bar);
    print(&report, args.output.folder.json)?;
    Ok(ExitCode::SUCCESS)
}

pub fn dequantize(args: &Dequantize) -> anyhow::Result<ExitCode> {
    let model = Model::open(&args.checkpoint)?;
    let OutputFolder { out, force, shard_bytes, json } = &args.output;
    let options =
        DequantizeOptions::new().dtype(args.dtype).force(*force).shard_bytes(*shard_bytes);
    let mut bar = Bar::new();
    let report = checkpoint::dequantize_model(&model, &options, out, &mut bar)?;
    drop(bar);
    print(&report, *json)?;
    Ok(ExitCode::SUCCESS)
}

pub fn verify(args: &Verify) -> anyhow::Result<ExitCode> {
    let model = Model::open(&args.checkpoint)?;
    let original = args.against.as_ref().map(Model::open).transpose()?;
    let options = VerifyOptions::new().block_bound(args.block_bound).seed(args.seed);
    let mut bar = Bar::new();
    let report = checkpoint::verify_with(&model, original.as_ref(), options, &mut bar)?;
    drop(bar);
    print(&report, args.json)?;
    Ok(exit(report.verified))
}

pub fn inspect(args: &Inspect) -> anyhow::Result<ExitCode> {
    print(&checkpoint::inspect(&Model::open(&args.checkpoint)?)?, args.json)?;
    Ok(ExitCode::SUCCESS)
}
