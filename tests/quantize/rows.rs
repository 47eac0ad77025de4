//! Operations on rows on the emulators, against the CPU's reference: bit for bit where the arithmetic is not approximate
//! by contract, and against f64.

mod options;
mod rotations;

use fp4_formats::recipe::{Mxfp4Recipe, Nvfp4Recipe};
use fp4_formats::{HalfType, ScaleLayout, e4m3};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::gemm::Activation;
use nvfp4::quantize::{QuantizeOptions, Recipe, TensorScale};
use nvfp4::rows::{
    Gather, Made, Operands, Reference, Results, Rotation, Rows, RowsOptions, Source, reference,
    values,
};
use nvfp4_lab::rng::SplitMix64;
use nvfp4_lab::rows::{exact, first_wrong};
use nvfp4_tests::quantize::recipes;
use nvfp4_tests::{SCHEDULES, TARGETS, emulated};

/// Machines, each under every schedule.
type Machines = Vec<[Kernels; SCHEDULES.len()]>;

/// A machine of each target.
fn machines() -> Machines {
    let of = |machine| SCHEDULES.map(|schedule| emulated(machine, schedule));
    TARGETS.map(of).into()
}

/// The schedules, in turn.
struct Turns(usize);

impl Turns {
    fn next(&mut self) -> usize {
        self.0 += 1;
        self.0
    }
}

/// Operands of a case as bytes.
struct Inputs {
    input: Vec<u8>,
    up: Option<Vec<u8>>,
    residual: Option<Vec<u8>>,
    weight: Option<Vec<u8>>,
    bias: Option<Vec<u8>>,
    index: Option<Vec<u8>>,
}

/// A case: rows, columns, type, options.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    cols: usize,
    element: HalfType,
    options: RowsOptions,
}

impl Case {
    /// Operands of many magnitudes, of `scale`.
    fn inputs(&self, random: &mut SplitMix64, scale: f64) -> Inputs {
        let Self { rows, cols, element, options } = self;
        let mut matrix = |rows: usize, scale: f64| {
            let element = element.float();
            // One row is small, one large.
            let sizes = [1.0, 1e-3, 30.0];
            let of = |at: usize| sizes[at / cols % 3] * scale;
            floats::encode(element, (0..rows * cols).map(|at| random.normal() * of(at)))
        };
        let from = options.gather.map_or(*rows, |gather| gather.rows);
        let input = matrix(from, scale);
        let source = options.source;
        let up = source.is_gated().then(|| matrix(from, 1.0));
        let residual = source.has_residual().then(|| matrix(*rows, scale));
        let has_norm = matches!(source, Source::RmsNorm { .. } | Source::LayerNorm { .. });
        let weight = has_norm.then(|| matrix(1, 1.0));
        let bias = matches!(source, Source::LayerNorm { bias: true, .. }).then(|| matrix(1, 0.5));
        let index = options.gather.map(|gather| {
            let slots = gather.rows as u64 * u64::from(gather.divisor);
            let mut slot = |row: usize| match row % 5 {
                3 => u32::MAX,
                _ => (random.next_u64() % slots) as u32,
            };
            (0..*rows).flat_map(|row| slot(row).to_le_bytes()).collect()
        });
        Inputs { input, up, residual, weight, bias, index }
    }

    /// The name of the kernel that is planned.
    fn kernel(&self, kernels: &Kernels) -> &'static str {
        let Self { rows, cols, element, options } = self;
        let operation = Rows::new(kernels, *rows, *cols, *element, options).expect("planned");
        operation.plan().steps[0].kernel
    }

    /// Runs the case with the sums in the residual's place, or elsewhere.
    fn run(&self, kernels: &Kernels, inputs: &Inputs, in_place: bool) -> nvfp4::Result<Reference> {
        let device = kernels.device();
        let operation = Rows::new(kernels, self.rows, self.cols, self.element, &self.options)?;
        let upload = |name: &str, bytes: &Option<Vec<u8>>| {
            bytes.as_ref().map(|bytes| DeviceBuffer::upload(device, name, bytes)).transpose()
        };
        let input = DeviceBuffer::upload(device, "input", &inputs.input)?;
        let (up, residual) = (upload("up", &inputs.up)?, upload("residual", &inputs.residual)?);
        let (weight, bias) = (upload("weight", &inputs.weight)?, upload("bias", &inputs.bias)?);
        let index = upload("index", &inputs.index)?;
        let elsewhere = match &inputs.residual {
            Some(bytes) if !in_place => {
                Some(DeviceBuffer::poisoned(device, "residual out", bytes.len())?)
            }
            _ => None,
        };
        operation.launch(&Operands {
            input: &input,
            up: up.as_ref(),
            residual: residual.as_ref(),
            residual_out: elsewhere.as_ref(),
            weight: weight.as_ref(),
            bias: bias.as_ref(),
            index: index.as_ref(),
        })?;
        let sums = elsewhere.as_ref().or(residual.as_ref());
        let residual = sums.map(DeviceBuffer::read).transpose()?;
        Ok(Reference { made: operation.result("input")?, residual })
    }

    fn operands<'a>(&self, inputs: &'a Inputs) -> Operands<'a, [u8]> {
        let Inputs { input, up, residual, weight, bias, index } = inputs;
        Operands {
            input,
            up: up.as_deref(),
            residual: residual.as_deref(),
            residual_out: None,
            weight: weight.as_deref(),
            bias: bias.as_deref(),
            index: index.as_deref(),
        }
    }

    /// Runs the case on every machine.
    fn check(&self, turn: usize, scale: f64) {
        self.check_on(&machines(), turn, scale);
    }

    /// Runs the case on these machines, each under one of its schedules. Results have the reference's bits, or for gated
    /// sources those of values near the exact ones.
    fn check_on(&self, machines: &Machines, turn: usize, scale: f64) {
        let mut random = SplitMix64::new(turn as u64);
        let inputs = self.inputs(&mut random, scale);
        let operands = self.operands(&inputs);
        let want = reference(self.rows, self.cols, self.element, &self.options, &operands)
            .unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let is_gated = self.options.source.is_gated();
        for (at, kernels) in machines.iter().enumerate() {
            let kernels = &kernels[(turn + at) % SCHEDULES.len()];
            let machine = kernels.device().choice().arch;
            let got = self
                .run(kernels, &inputs, turn.is_multiple_of(2))
                .unwrap_or_else(|error| panic!("{machine} {turn} {self:?}: {error}"));
            assert_eq!(got.residual, want.residual, "{machine} {self:?}: residual");
            if is_gated {
                let exact = exact(self.rows, self.cols, self.element, &self.options, &operands)
                    .expect("checked before");
                let wrong = first_wrong(&got.made, &want.made, &exact, self.element);
                assert_eq!(wrong, None, "{machine} {turn} {self:?}");
            } else if let Some(difference) = got.made.difference(&want.made) {
                panic!("{machine} {turn} {self:?}: {difference}");
            }
        }
    }
}

/// Norms with and without residual and bias.
const NORMS: [Source; 5] = [
    Source::RmsNorm { epsilon: 1e-6, residual: false },
    Source::RmsNorm { epsilon: 1e-5, residual: true },
    Source::LayerNorm { epsilon: 1e-5, residual: false, bias: false },
    Source::LayerNorm { epsilon: 1e-6, residual: true, bias: true },
    Source::Plain,
];

/// A recipe with a scale of each row, or a given one.
fn blocks(recipe: Recipe, turn: usize) -> Results {
    let divides = match recipe {
        Recipe::Nvfp4(recipe) => recipe.parameter_is_divisor(),
        Recipe::Adaptive(recipe) => recipe.project().parameter_is_divisor(),
        Recipe::Mxfp4(_) => false,
    };
    let given = if divides { 150.0 } else { 0.008 };
    let scale = [TensorScale::PerRow, TensorScale::Given(given)][turn % 2];
    let layout = ScaleLayout::ALL[turn / 2 % 2];
    Results::Blocks(QuantizeOptions::new(recipe).scale(scale).layout(layout))
}

const TYPES: [HalfType; 2] = [HalfType::F16, HalfType::Bf16];

const TORCHAO: Recipe = Recipe::Nvfp4(Nvfp4Recipe::TorchAo);

/// Rows that are longer than a CTA keeps, with the residual in place and elsewhere; up to the longest.
#[test]
fn long_rows() {
    let mut turns = Turns(200);
    for (cols, source, results) in [
        (24_592, NORMS[1], blocks(TORCHAO, 0)),
        (
            20_512,
            NORMS[3],
            Results::Blocks(QuantizeOptions::new(Recipe::Mxfp4(Mxfp4Recipe::Floor))),
        ),
        (65_536, NORMS[3], Results::E4m3),
        (40_000, NORMS[1], Results::Half),
        (24_592, Source::Gated(Activation::Silu), blocks(TORCHAO, 2)),
    ] {
        for _ in 0..2 {
            let turn = turns.next();
            let options = RowsOptions::new(source, results);
            Case { rows: 1, cols, element: TYPES[turn % 2], options }.check(turn, 1.0);
        }
    }
}

/// More rows than CTAs: each takes several in turn.
#[test]
fn many_rows() {
    for (turn, results) in [Results::E4m3, blocks(TORCHAO, 0)].into_iter().enumerate() {
        let source = NORMS[[3, 1][turn]];
        let options = RowsOptions::new(source, results);
        // An RTX 5090 has 170 SMs, of 32 CTAs of one warp each, or 16.
        let rows = 32 * 170 + 37;
        Case { rows, cols: 32, element: HalfType::Bf16, options }.check(turn, 1.0);
    }
}

/// Magnitudes over the whole range of bf16: sums that overflow and vanish.
#[test]
fn the_whole_range() {
    let mut turns = Turns(500);
    for scale in [1e-36, 1e-20, 1e17, 1e36] {
        for results in [Results::E4m3, Results::Half, blocks(TORCHAO, 0)] {
            for source in [NORMS[0], NORMS[1]] {
                let turn = turns.next();
                let options = RowsOptions::new(source, results);
                Case { rows: 3, cols: 96, element: HalfType::Bf16, options }.check(turn, scale);
            }
        }
    }
}

/// A row's bits do not depend on the number of rows, on its place or on the launch's shape.
#[test]
fn rows_do_not_depend_on_others() {
    let options = RowsOptions::new(NORMS[0], Results::Half);
    let make = |rows| Case { rows, cols: 16 * 70, element: HalfType::Bf16, options };
    let inputs = make(140).inputs(&mut SplitMix64::new(7), 1.0);
    let kernels = emulated("emu:h200", SCHEDULES[0]);
    let many = make(140).run(&kernels, &inputs, true).expect("runs");
    let Made::Half(many) = many.made else { panic!("16 bits were asked for") };
    let row = 16 * 70 * 2;
    for at in [0, 3, 139] {
        let one = inputs.input[at * row..(at + 1) * row].to_vec();
        let weight = inputs.weight.clone();
        let one = Inputs { input: one, weight, up: None, residual: None, bias: None, index: None };
        let one = make(1).run(&kernels, &one, true).expect("runs");
        assert_eq!(one.made, Made::Half(many[at * row..(at + 1) * row].to_vec()), "row {at}");
    }
}

/// The first value that is not finite is reported for block formats; a token's scale says it for e4m3.
#[test]
fn values_that_are_not_finite() {
    let machines = machines();
    for (turn, recipe) in recipes().enumerate() {
        let sources = [Source::Plain, Source::Gated(Activation::Silu), NORMS[0]];
        for (i, source) in sources.into_iter().enumerate() {
            for (j, element) in TYPES.into_iter().enumerate() {
                let bad = [f64::NAN, f64::INFINITY][(turn + i + j) % 2];
                let options = RowsOptions::new(source, blocks(recipe, turn + j));
                let case = Case { rows: 4, cols: 64, element, options };
                let mut inputs = case.inputs(&mut SplitMix64::new(1), 1.0);
                for at in [2 * 64 + 41, 2 * 64 + 50, 3 * 64] {
                    let bytes = floats::encode(case.element.float(), [bad]);
                    inputs.input[at * 2..at * 2 + 2].copy_from_slice(&bytes);
                }
                for machine in &machines {
                    let error = case.run(&machine[turn % SCHEDULES.len()], &inputs, true);
                    let message = error.expect_err("not finite").to_string();
                    // A norm spreads NaN over its row; by infinity it divides the others.
                    let is_spread = i == 2 && bad.is_nan();
                    let place = if is_spread { "[0, 2, 0]" } else { "[0, 2, 41]" };
                    assert!(message.contains(place), "{case:?}: {message}");
                }
            }
        }
    }
    let options = RowsOptions::new(NORMS[0], Results::E4m3);
    let case = Case { rows: 2, cols: 64, element: HalfType::F16, options };
    let mut inputs = case.inputs(&mut SplitMix64::new(1), 1.0);
    inputs.input[64 * 2..64 * 2 + 2]
        .copy_from_slice(&floats::encode(case.element.float(), [f64::NAN]));
    let got = case.run(&emulated(TARGETS[0], SCHEDULES[1]), &inputs, true).expect("runs");
    let Made::E4m3 { codes, scales } = got.made else { panic!("e4m3 was asked for") };
    assert!(scales[0].is_finite() && scales[1].is_nan());
    assert!(codes[64..].iter().all(|&code| e4m3::is_nan(code)));
}

/// The values themselves are near those of f64: norms within 2^-20 of the row's largest.
#[test]
fn values_are_near_exact_ones() {
    for (turn, source) in NORMS.into_iter().enumerate() {
        for rotation in [None, Some(Rotation { signs: 0x1234 })] {
            let options = RowsOptions::new(source, Results::Half).rotation(rotation);
            let case = Case { rows: 3, cols: 16 * 700, element: TYPES[turn % 2], options };
            let inputs = case.inputs(&mut SplitMix64::new(9), 1.0);
            let operands = case.operands(&inputs);
            let Case { rows, cols, element, .. } = case;
            let (found, _) = values(rows, cols, element, &options, &operands).expect("fits");
            let exact = exact(rows, cols, element, &options, &operands).expect("fits");
            for (row, (found, exact)) in found.chunks(cols).zip(exact.chunks(cols)).enumerate() {
                let largest = exact.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
                for (at, (&found, &exact)) in found.iter().zip(exact).enumerate() {
                    let error = (f64::from(found) - exact).abs();
                    assert!(
                        error <= largest * 2f64.powi(-20),
                        "{case:?} [{row}, {at}]: {found} {exact}"
                    );
                }
            }
        }
    }
}

/// Bad input is refused before any launch, by name.
#[test]
fn refusals() {
    let kernels = emulated("emu:h200", SCHEDULES[0]);
    let of = |cols: usize, source: Source, results: Results| {
        let options = RowsOptions::new(source, results);
        Rows::new(&kernels, 2, cols, HalfType::F16, &options).expect_err("refused").to_string()
    };
    let message = of(24, Source::Plain, Results::Half);
    assert!(message.contains("K") && message.contains("multiple of 16"), "{message}");
    let mxfp4 = Results::Blocks(QuantizeOptions::new(Recipe::Mxfp4(Mxfp4Recipe::Even)));
    assert!(of(48, Source::Plain, mxfp4).contains("multiple of 32"));
    assert!(of(1 << 17, Source::Plain, Results::E4m3).contains("65536"));
    let message = of(64, Source::Plain, Results::Blocks(QuantizeOptions::new(TORCHAO)));
    assert!(message.contains("tensor-level scale"), "{message}");
    let given = QuantizeOptions::new(TORCHAO).scale(TensorScale::Given(0.0));
    assert!(of(64, Source::Plain, Results::Blocks(given)).contains("tensor scale"));
    for epsilon in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let source = Source::RmsNorm { epsilon, residual: false };
        assert!(of(64, source, Results::Half).contains("epsilon"), "{epsilon}");
    }
    let clamped = Activation::ClampedSwiglu { limit: 0.0, slope: 1.0 };
    assert!(of(64, Source::Gated(clamped), Results::Half).contains("limit"));
    let gather = Gather { rows: 2, divisor: 1 };
    let options = RowsOptions::new(NORMS[1], Results::Half).gather(Some(gather));
    let error = Rows::new(&kernels, 2, 64, HalfType::F16, &options).expect_err("refused");
    assert!(error.to_string().contains("index"), "{error}");

    let device = kernels.device();
    let buffer = |bytes: usize| DeviceBuffer::zeroed(device, "zeros", bytes).expect("room");
    let (x, weight, short) = (buffer(2 * 64 * 2), buffer(64 * 2), buffer(2 * 64));
    let options = RowsOptions::new(NORMS[0], Results::Half);
    let norm = Rows::new(&kernels, 2, 64, HalfType::F16, &options).expect("fits");
    for (operands, what) in [
        (Operands::plain(&x), "weights"),
        (Operands::normed(&short, &weight), "input"),
        (Operands::normed(&x, &x), "weights"),
        (Operands::normed(&x, &weight).residual(&x), "residual"),
        (Operands::normed(&x, &weight).bias(&weight), "bias"),
        (Operands::normed(&x, &weight).index(&weight), "index"),
        (Operands::normed(&x, &weight).residual_out(&x), "sums"),
    ] {
        let message = norm.launch(&operands).expect_err("refused").to_string();
        assert!(message.contains(what), "{message}");
    }
    assert!(norm.launch(&Operands::normed(&x, &weight)).is_ok());
}
