//! Every kernel of operations on rows with every option: what its kernel has its own code for. The coverage of the
//! kernels (`cargo xtask test --coverage`) rests on this.

use fp4_formats::rows::{ROWS, RowsConfig, RowsSink};
use fp4_formats::{Arch, HalfType};
use nvfp4::gemm::Activation;
use nvfp4::quantize::{Recipe, TensorScale};
use nvfp4::rows::{Gather, Results, Rotation, RowsOptions, Source};
use nvfp4_tests::quantize::recipes;
use nvfp4_tests::{SCHEDULES, emulated_for, machine};
use ptx_emu::Gpu;

use super::{Case, Machines, NORMS, blocks};

/// Everything that a kernel stores: by each recipe of its format, with scales of rows and with given ones, in each layout.
fn all_results(sink: RowsSink) -> Vec<Results> {
    let of = |format: fn(&Recipe) -> bool| {
        let all: Vec<Recipe> = recipes().filter(format).collect();
        // One round has one kind of scales, the next one the other.
        let each = |turn: usize| blocks(all[turn % all.len()], turn + turn / all.len());
        (0..2 * all.len()).map(each).collect()
    };
    match sink {
        RowsSink::Nvfp4 => of(|recipe| matches!(recipe, Recipe::Nvfp4(_))),
        RowsSink::Adaptive => of(|recipe| matches!(recipe, Recipe::Adaptive(_))),
        RowsSink::Mxfp4 => of(|recipe| matches!(recipe, Recipe::Mxfp4(_))),
        RowsSink::E4m3 => vec![Results::E4m3],
        RowsSink::Half => vec![Results::Half],
    }
}

/// The values of a kernel's rows.
fn sources(config: &RowsConfig) -> Vec<Source> {
    match config.gated {
        true => Activation::ALL.map(Source::Gated).to_vec(),
        false => NORMS.to_vec(),
    }
}

/// Machines of one SM for each target: CTAs have several rows.
fn machines() -> Machines {
    let small = |arch| (arch, Gpu { sms: 1, ..machine(arch) });
    [Arch::Sm80, Arch::Sm90a, Arch::Sm100a, Arch::Sm120f]
        .map(small)
        .map(|(arch, gpu)| SCHEDULES.map(|schedule| emulated_for(arch, gpu.clone(), schedule)))
        .into()
}

/// Rows that fill no warp and several, that a thread keeps one chunk of and two; each source with kinds of results in turn,
/// rows by an index, rotations.
#[test]
fn every_kernel_with_every_option() {
    let machines = machines();
    for (at, config) in ROWS.iter().enumerate() {
        let results = all_results(config.sink);
        let step = config.sink.granularity() as usize;
        for (i, source) in sources(config).into_iter().enumerate() {
            for (j, [rows, steps]) in [[1, 1], [3, 37], [40, 35]].into_iter().enumerate() {
                let turn = at + 3 * i + j;
                let gather = ((i + j) % 3 == 2 && !source.has_residual())
                    .then_some(Gather { rows: 4, divisor: 1 + i as u32 % 2 });
                let rotation = (turn % 3 == 0).then_some(Rotation { signs: 0xa5c3 });
                let options = RowsOptions::new(source, results[turn % results.len()]);
                let options = options.rotation(rotation).gather(gather);
                let case = Case { rows, cols: steps * step, element: config.input, options };
                case.check_on(&machines, turn, [2.0, 1e-3, 1e2][(i + j) % 3]);
            }
        }
    }
}

/// Magnitudes at both ends of what an element holds, to every kind of results: scales that vanish, and the largest.
#[test]
fn extremes_of_every_kernel() {
    let machines = machines();
    for (at, config) in ROWS.iter().enumerate() {
        let step = config.sink.granularity() as usize;
        let (source, scales) = match (config.gated, config.input) {
            (false, HalfType::F16) => (Source::Plain, [1e-5, 500.0]),
            (true, HalfType::F16) => (Source::Gated(Activation::Identity), [1e-5, 500.0]),
            (false, HalfType::Bf16) => (Source::Plain, [1e-37, 1e36]),
            (true, HalfType::Bf16) => (Source::Gated(Activation::Identity), [1e-37, 1e33]),
        };
        for (i, results) in all_results(config.sink).into_iter().enumerate() {
            for scale in scales {
                let options = RowsOptions::new(source, results);
                let case = Case { rows: 3, cols: 4 * step, element: config.input, options };
                case.check_on(&machines, at + i, scale);
            }
        }
    }
}

/// Rows that are longer than a CTA keeps, which are read again: from every source, also by an index with a row of zeros;
/// where a row's largest magnitude is found before its results are made, and where it is not.
#[test]
fn long_rows_of_every_kernel() {
    let machines = machines();
    let most = RowsConfig::kept(RowsConfig::MAX_THREADS) as usize;
    let is_found_before = |results: &Results| match results {
        Results::Blocks(options) => options.scale == TensorScale::PerRow,
        Results::E4m3 => true,
        Results::Half => false,
    };
    for (at, config) in ROWS.iter().enumerate() {
        let (before, at_once): (Vec<Results>, Vec<Results>) =
            all_results(config.sink).into_iter().partition(is_found_before);
        for (i, source) in sources(config).into_iter().enumerate() {
            for (j, results) in [&before, &at_once].into_iter().enumerate() {
                let turn = at + i + j;
                let Some(results) = results.get(turn % results.len().max(1)) else { continue };
                let gather = (i % 4 == 0).then_some(Gather { rows: 2, divisor: 1 });
                let rows = if gather.is_some() { 4 } else { 1 };
                let options = RowsOptions::new(source, *results).gather(gather);
                let cols = most + 16 * 40;
                let case = Case { rows, cols, element: config.input, options };
                case.check_on(&machines, turn, 2.0);
            }
        }
    }
}
