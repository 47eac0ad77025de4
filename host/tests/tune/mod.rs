//! Tuning tables: text, files, merging, damage, and what planning makes of them. Nothing here is
//! measured, and no kernel runs: modules without kernels are planned for.

mod damage;
mod plans;
mod tables;

use nvfp4::device::Kernels;
use nvfp4::gemm::ActivationKind;
use nvfp4::quantize::Format;
use nvfp4::shape::GemmShape;
use nvfp4::tune::{DeviceKey, Measured, ResultKind, Table, TuneGroups, TuneProblem, Tuning};

use crate::support::{Folder, MACHINES, no_kernels};
use fp4_formats::gemm::{Adding, Split};
use fp4_formats::{Arch, FloatType, HalfType, ScaleLayout};
use proptest::prelude::*;

/// Kernels of an emulated machine, of a module that has none.
fn kernels(folder: &Folder, machine: (&str, Arch)) -> Kernels {
    no_kernels(folder, machine).with_tuning(Tuning::off())
}

fn key() -> DeviceKey {
    DeviceKey {
        name: "NVIDIA \"H200\"".into(),
        compute_capability: "9.0".into(),
        sms: 132,
        driver: "13.0 (580.65.06)".into(),
        kernels: "0123456789abcdef".into(),
    }
}

fn measured(kernel: &str, split: Split, median_ns: u64) -> Measured {
    Measured { kernel: kernel.into(), split, median_ns }
}

fn nvfp4(m: usize, n: usize, k: usize) -> TuneProblem {
    let layout = ScaleLayout::Linear;
    let activations = ActivationKind::Blocks { format: Format::Nvfp4, layout };
    let (format, output) = (Format::Nvfp4, FloatType::F16.into());
    let shape = GemmShape { m, n, k, l: 1 };
    TuneProblem {
        format,
        activations,
        output,
        gated: false,
        shape,
        groups: None,
        adding: Adding::default(),
    }
}

/// Results of floats.
fn floats() -> impl Strategy<Value = ResultKind> {
    prop::sample::select(FloatType::ALL.map(ResultKind::Floats).to_vec())
}

/// All results that a table can have.
fn results() -> impl Strategy<Value = ResultKind> {
    let layouts = prop::sample::select(ScaleLayout::ALL.to_vec());
    let blocks = (prop::sample::select(Format::ALL.to_vec()), layouts);
    let blocks = blocks.prop_map(|(format, layout)| ResultKind::Blocks(format, layout));
    prop_oneof![2 => floats(), 1 => blocks]
}

/// Problems with what varies in them, sizes from the strategies given.
fn problems(
    m: impl Strategy<Value = usize>,
    n: impl Strategy<Value = usize>,
    blocks: impl Strategy<Value = usize>,
    outputs: impl Strategy<Value = ResultKind>,
) -> impl Strategy<Value = TuneProblem> {
    let adding = prop::sample::select(Adding::ALL.to_vec());
    let all = (m, n, blocks, 1usize..3, 0usize..10, outputs, any::<bool>(), adding);
    all.prop_map(|(m, n, blocks, l, kind, output, gated, adding)| {
        let blocks_in = |format, layout| (format, ActivationKind::Blocks { format, layout });
        let (format, activations) = match kind {
            0..3 => blocks_in(Format::Nvfp4, ScaleLayout::Linear),
            3 => blocks_in(Format::Nvfp4, ScaleLayout::Blocked128x4),
            4 => blocks_in(Format::Mxfp4, ScaleLayout::Linear),
            5 => blocks_in(Format::Mxfp4, ScaleLayout::Blocked128x4),
            6 => (Format::Nvfp4, ActivationKind::Halves(HalfType::F16)),
            7 => (Format::Nvfp4, ActivationKind::Halves(HalfType::Bf16)),
            _ => (Format::Mxfp4, ActivationKind::Halves(HalfType::Bf16)),
        };
        let shape = GemmShape { m, n, k: blocks * 32, l };
        TuneProblem { format, activations, output, gated, shape, groups: None, adding }
    })
}

/// The same of `count` groups.
fn grouped(problem: TuneProblem, count: usize, slots: bool) -> TuneProblem {
    let shape = GemmShape { l: if slots { count } else { 1 }, ..problem.shape };
    TuneProblem { shape, groups: Some(TuneGroups { count, slots }), ..problem }
}

/// All splits of K, in clusters of up to `most` CTAs.
fn splits(most: u32) -> impl Strategy<Value = Split> {
    prop_oneof![
        1 => Just(Split::StreamK),
        1 => Just(Split::None),
        4 => (2..=most).prop_map(Split::Cluster),
    ]
}

/// Tables of any problems, their kernels' names as they come.
fn tables() -> impl Strategy<Value = Table> {
    let groups = prop::option::of((1usize..5, any::<bool>()));
    let entry = (
        (problems(1usize..9, 1usize..4, 1usize..4, results()), groups),
        "[a-z\"\\\\é_0-9]{0,12}",
        splits(u32::MAX),
        1u64..,
    );
    prop::collection::vec(entry, 0..30).prop_map(|entries| {
        let mut table = Table::new(key());
        for ((problem, groups), kernel, split, median_ns) in entries {
            let problem = groups.map_or(problem, |(count, slots)| grouped(problem, count, slots));
            table.insert(problem, Measured { kernel, split, median_ns });
        }
        table
    })
}
