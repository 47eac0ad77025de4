//! Every kernel of operations on rows with every option: what its kernel has its own code for. The coverage of the
//! kernels (`cargo xtask test --coverage`) rests on this.

use fp4_formats::rows::{ROWS, RowsConfig, RowsSink, RowsSource};
use fp4_formats::{Arch, HalfType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::gemm::Activation;
use nvfp4::quantize::{Recipe, TensorScale};
use nvfp4::rows::{
    Gather, Made, Operands, Outputs, Results, Rotation, Rows, RowsOptions, Source, reference,
};
use nvfp4_lab::rng::SplitMix64;
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
    match config.source {
        RowsSource::One => NORMS.to_vec(),
        RowsSource::Few => NORMS[..2].to_vec(),
        RowsSource::Gated => Activation::ALL.map(Source::Gated).to_vec(),
    }
}

/// SMs of a machine on which CTAs have several rows.
const ONE: u32 = 1;
/// SMs of a machine on which 8, 4 and 2 CTAs share each of 1, 3 and 6 rows, and 7 are not few.
const SHARING: u32 = 13;
/// SMs of a machine on which 2 CTAs share each row, also of padding.
const PADDED: u32 = 256;

/// Machines of so many SMs for each target.
fn machines(sms: u32) -> Machines {
    let small = |arch| (arch, Gpu { sms, ..machine(arch) });
    [Arch::Sm80, Arch::Sm90a, Arch::Sm100a, Arch::Sm120f]
        .map(small)
        .map(|(arch, gpu)| SCHEDULES.map(|schedule| emulated_for(arch, gpu.clone(), schedule)))
        .into()
}

/// Machines of the sizes that kernels are launched on.
struct Sizes {
    of_one: Machines,
    sharing: Machines,
    padded: Machines,
}

impl Sizes {
    fn new() -> Self {
        let [of_one, sharing, padded] = [ONE, SHARING, PADDED].map(machines);
        Self { of_one, sharing, padded }
    }

    /// Machines on which a kernel is chosen for these results: that of few rows where CTAs share them.
    fn of(&self, config: &RowsConfig, results: &Results) -> &Machines {
        let layout = match results {
            Results::Blocks(options) => options.layout,
            Results::E4m3 | Results::Half => ScaleLayout::Linear,
        };
        match (config.source, layout) {
            (RowsSource::One | RowsSource::Gated, _) => &self.of_one,
            (RowsSource::Few, ScaleLayout::Linear) => &self.sharing,
            (RowsSource::Few, ScaleLayout::Blocked128x4) => &self.padded,
        }
    }
}

/// Rows that fill no warp and several, that a thread keeps one chunk of and two; each source with kinds of results in turn,
/// rows by an index, rotations.
#[test]
fn every_kernel_with_every_option() {
    let machines = Sizes::new();
    for (at, config) in ROWS.iter().enumerate() {
        let is_few = config.source == RowsSource::Few;
        let shapes: &[[usize; 2]] = match is_few {
            true => &[[1, 1], [3, 37], [6, 5], [1, 250]],
            false => &[[1, 1], [3, 37], [40, 35]],
        };
        let results = all_results(config.sink);
        let step = config.sink.granularity() as usize;
        for (i, source) in sources(config).into_iter().enumerate() {
            for (j, &[rows, steps]) in shapes.iter().enumerate() {
                let turn = at + 3 * i + j;
                let gather = (!is_few && (i + j) % 3 == 2 && !source.has_residual())
                    .then_some(Gather { rows: 4, divisor: 1 + i as u32 % 2 });
                let rotation = (!is_few && turn % 3 == 0).then_some(Rotation { signs: 0xa5c3 });
                let options = RowsOptions::new(source, results[turn % results.len()]);
                let options = options.rotation(rotation).gather(gather);
                let case = Case { rows, cols: steps * step, element: config.input, options };
                let machines = machines.of(config, &options.results);
                if is_few {
                    assert_eq!(case.kernel(&machines[0][0]), config.name, "{case:?}");
                }
                case.check_on(machines, turn, [2.0, 1e-3, 1e2][(i + j) % 3]);
            }
        }
    }
}

/// Magnitudes at both ends of what an element holds, to every kind of results: scales that vanish, and the largest.
#[test]
fn extremes_of_every_kernel() {
    let machines = Sizes::new();
    for (at, config) in ROWS.iter().enumerate() {
        let step = config.sink.granularity() as usize;
        let source = match config.source {
            RowsSource::One => Source::Plain,
            RowsSource::Few => NORMS[0],
            RowsSource::Gated => Source::Gated(Activation::Identity),
        };
        let scales = match (config.input, config.source) {
            (HalfType::F16, _) => [1e-5, 500.0],
            (HalfType::Bf16, RowsSource::One | RowsSource::Few) => [1e-37, 1e36],
            (HalfType::Bf16, RowsSource::Gated) => [1e-37, 1e33],
        };
        for (i, results) in all_results(config.sink).into_iter().enumerate() {
            for scale in scales {
                let options = RowsOptions::new(source, results);
                let case = Case { rows: 3, cols: 4 * step, element: config.input, options };
                case.check_on(machines.of(config, &results), at + i, scale);
            }
        }
    }
}

/// Rows that are longer than a CTA keeps, which are read again: from every source, also by an index with a row of zeros;
/// where a row's largest magnitude is found before its results are made, and where it is not. Few rows are never so long.
#[test]
fn long_rows_of_every_kernel() {
    let machines = machines(ONE);
    let most = RowsConfig::kept(RowsConfig::MAX_THREADS) as usize;
    let is_found_before = |results: &Results| match results {
        Results::Blocks(options) => options.scale == TensorScale::PerRow,
        Results::E4m3 => true,
        Results::Half => false,
    };
    let all = ROWS.iter().filter(|config| config.source != RowsSource::Few);
    for (at, config) in all.enumerate() {
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

/// Results in the input's place: CTAs that share a row would read what another has written.
#[test]
fn results_may_take_the_inputs_place() {
    let machines = machines(SHARING);
    for (turn, source) in NORMS[..2].iter().enumerate() {
        for rows in [1, 3, 6] {
            let options = RowsOptions::new(*source, Results::Half);
            let case = Case { rows, cols: 16 * 70, element: HalfType::Bf16, options };
            let inputs = case.inputs(&mut SplitMix64::new(turn as u64), 1.0);
            let operands = case.operands(&inputs);
            let want = reference(rows, case.cols, case.element, &options, &operands).expect("made");
            for kernels in machines.iter().flatten() {
                let device = kernels.device();
                let upload = |name, bytes: &[u8]| DeviceBuffer::upload(device, name, bytes);
                let input = upload("input", &inputs.input).expect("fits");
                let weight = upload("weight", operands.weight.expect("a norm")).expect("fits");
                let residual = operands.residual.map(|bytes| upload("residual", bytes));
                let residual = residual.transpose().expect("fits");
                let rows =
                    Rows::new(kernels, rows, case.cols, case.element, &options).expect("plans");
                let operands =
                    Operands { residual: residual.as_ref(), ..Operands::normed(&input, &weight) };
                let outputs = Outputs { elements: &input, scales: None, multipliers: None };
                rows.launch_into(&operands, &outputs).expect("launches");
                assert_eq!(Made::Half(input.read().expect("read")), want.made, "{source:?}");
                let sums = residual.map(|residual| residual.read().expect("read"));
                assert_eq!(sums, want.residual, "{source:?}: residual");
            }
        }
    }
}
