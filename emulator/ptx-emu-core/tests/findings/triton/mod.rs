//! Kernels that Triton compiled (`kernels.py` beside this) run as they are: by the model of
//! hardware, under every schedule, they give the right results without a finding. The model of PTX
//! finds the orders that they rely on beyond PTX ISA.

use ptx_emu_core::{
    Checks, Diagnostic, GlobalMemory, Gpu, Kind, Launch, LaunchError, Level, Model, Module,
    Schedule,
};
use std::collections::BTreeSet;
use std::path::Path;

/// Numbers in steps of a quarter from -1 to 1, the same for the same seed.
fn quarters(count: usize, seed: u32) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from((state >> 16) % 9) / 4.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A multiple of a quarter below 2 in magnitude as f16.
fn half(value: f64) -> [u8; 2] {
    let magnitude = value.abs();
    let exponent = if magnitude < 0.5 { 13 } else { 14 + u16::from(magnitude >= 1.0) };
    let bits = if magnitude == 0.0 {
        0
    } else {
        let fraction = magnitude / 2f64.powi(i32::from(exponent) - 15) - 1.0;
        (exponent << 10) | (fraction * 1024.0) as u16
    };
    (bits | (u16::from(value < 0.0) << 15)).to_le_bytes()
}

fn from_half(bytes: [u8; 2]) -> f64 {
    let bits = u16::from_le_bytes(bytes);
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 => f64::INFINITY,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

fn halves(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|&value| half(value)).collect()
}

/// `A B'` of matrices with `k` columns.
fn product(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum();
    a.chunks(k).flat_map(|row| b.chunks(k).map(move |column| dot(row, column))).collect()
}

enum Argument {
    /// A buffer with these bytes.
    Input(Vec<u8>),
    /// The output, so many bytes, uninitialised or zero.
    Output {
        bytes: usize,
        zero: bool,
    },
    Word(u32),
}

/// A launch, and what must come out: elements of two bytes are f16, those of four f32.
struct Case {
    file: &'static str,
    entry: &'static str,
    grid: [u32; 3],
    cluster: u32,
    block: u32,
    shared: u32,
    /// Bytes of scratch memory of each CTA.
    scratch: usize,
    arguments: Vec<Argument>,
    expected: Vec<f64>,
    element: usize,
    tolerance: f64,
}

impl Case {
    fn new(file: &'static str, entry: &'static str) -> Self {
        Self {
            file,
            entry,
            grid: [1; 3],
            cluster: 1,
            block: 128,
            shared: 0,
            scratch: 0,
            arguments: Vec::new(),
            expected: Vec::new(),
            element: 2,
            tolerance: 0.0,
        }
    }

    /// The findings of a run. By the model of hardware it must end, with the right results.
    fn run(&self, schedule: Schedule, model: Model) -> Vec<Diagnostic> {
        let Self { file, entry, grid, .. } = self;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("findings/triton").join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let gpu = if file.contains("sm_100a") { Gpu::b200() } else { Gpu::h200() };
        let module = Module::load_entry(&text, &gpu, entry).unwrap();
        let mut memory = GlobalMemory::new();
        let (mut params, mut output) = (Vec::new(), 0);
        let pointer = |params: &mut Vec<u8>, address: u64| {
            params.resize(params.len().next_multiple_of(8), 0);
            params.extend(address.to_le_bytes());
        };
        for (at, argument) in self.arguments.iter().enumerate() {
            let name = format!("argument {at}");
            match argument {
                Argument::Input(bytes) => {
                    pointer(&mut params, memory.alloc_from(&name, bytes).unwrap());
                }
                Argument::Output { bytes, zero } => {
                    output = if *zero {
                        memory.alloc_from(&name, &vec![0; *bytes]).unwrap()
                    } else {
                        memory.alloc(&name, *bytes as u64, 256).unwrap()
                    };
                    pointer(&mut params, output);
                }
                Argument::Word(word) => params.extend(word.to_le_bytes()),
            }
        }
        let ctas = grid.iter().product::<u32>() as usize;
        for (name, bytes) in [("scratch", self.scratch * ctas), ("profile", 0)] {
            pointer(&mut params, memory.alloc(name, bytes.max(16) as u64, 256).unwrap());
        }
        let launch = Launch {
            entry,
            grid: *grid,
            block: [self.block, 1, 1],
            cluster: (self.cluster > 1).then_some([self.cluster, 1, 1]),
            dynamic_shared: self.shared,
            params: &params,
            schedule,
            threads: Some(1),
            instruction_limit: Some(20_000_000),
            checks: Checks::new(model).collecting(20),
        };
        let report = match module.launch(&mut memory, &launch) {
            Ok(report) => report,
            Err(LaunchError::Diagnostic(mut first)) if model == Model::Ptx => {
                let others = std::mem::take(&mut first.others);
                return [*first].into_iter().chain(others).collect();
            }
            Err(error) => panic!("{file}, {schedule}, {model}: {error}"),
        };
        let bytes = memory.read(output, (self.expected.len() * self.element) as u64).unwrap();
        let actual = bytes.chunks(self.element).map(|element| match *element {
            [a, b] => from_half([a, b]),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).into(),
            _ => unreachable!("elements of two or four bytes"),
        });
        for (at, (actual, expected)) in actual.zip(&self.expected).enumerate() {
            let error = (actual - expected).abs();
            assert!(
                error <= self.tolerance * expected.abs().max(1.0),
                "{file}, {schedule}, {model}: element {at}: {actual} instead of {expected}"
            );
        }
        report.findings
    }

    /// Right without a finding by the model of hardware; the kinds that the model of PTX denies.
    fn check(&self) -> BTreeSet<Kind> {
        let mut denied = BTreeSet::new();
        for schedule in [Schedule::Eager, Schedule::Lazy, Schedule::Random(0), Schedule::Random(1)]
        {
            assert_eq!(self.run(schedule, Model::Hardware), [], "{}, {schedule}", self.file);
            let findings = self.run(schedule, Model::Ptx);
            let found = findings.iter().filter(|found| found.level == Level::Deny);
            denied.extend(found.map(Diagnostic::kind));
        }
        denied
    }
}

/// 256 by 256 results of products of length 192 (512 by 256 with tiles of 256 rows).
fn matmul(file: &'static str, entry: &'static str) -> Case {
    let rows = if file.starts_with("pair") { 512 } else { 256 };
    let (m, n, k) = (rows, 256, 192);
    let (a, b) = (quarters(m * k, 1), quarters(n * k, 2));
    let words = [m, n, k].map(|size| Argument::Word(size as u32));
    let mut arguments = vec![
        Argument::Input(halves(&a)),
        Argument::Input(halves(&b)),
        Argument::Output { bytes: 2 * m * n, zero: false },
    ];
    arguments.extend(words);
    // Results are multiples of 1/16 below 128, which f16 rounds to 1/16.
    let expected = product(&a, &b, k);
    Case { grid: [2, 2, 1], arguments, expected, tolerance: 1e-3, ..Case::new(file, entry) }
}

#[test]
fn products_with_specialised_warps() {
    let sm90 =
        Case { block: 384, shared: 131_672, scratch: 512, ..matmul("matmul_sm_90a.ptx", "matmul") };
    assert_eq!(sm90.check(), BTreeSet::from([Kind::SameValueRace]));
    let sm100 =
        Case { block: 256, shared: 98_524, scratch: 384, ..matmul("matmul_sm_100a.ptx", "matmul") };
    let relies = [Kind::SameValueRace, Kind::MissingTcgen05Fence];
    assert!(relies.iter().all(|kind| sm100.check().contains(kind)));
}

#[test]
fn products_by_ctas_of_several_tiles() {
    let two = |file, block, shared| Case {
        grid: [2, 1, 1],
        block,
        shared,
        scratch: 384,
        ..matmul(file, "persistent")
    };
    assert_eq!(two("persistent_sm_90a.ptx", 128, 131_096).check(), BTreeSet::new());
    let denied = two("persistent_sm_100a.ptx", 256, 131_172).check();
    assert!(denied.contains(&Kind::SameValueRace), "{denied:?}");
}

#[test]
fn products_by_pairs_of_ctas() {
    let case = Case {
        grid: [4, 2, 1],
        cluster: 2,
        shared: 98_352,
        scratch: 384,
        ..matmul("pair_sm_100a.ptx", "matmul")
    };
    assert!(case.check().contains(&Kind::TensorLoadRegisters));
}

#[test]
fn attention() {
    let (s, d, scale) = (256, 64, 0.2f32);
    let [q, k, v] = [3, 4, 5].map(|seed| quarters(s * d, seed));
    let mut expected = Vec::new();
    for scores in product(&q, &k, d).chunks(s) {
        let weights: Vec<f64> =
            scores.iter().map(|score| (score * f64::from(scale)).exp2()).collect();
        let total: f64 = weights.iter().sum();
        let column = |at: usize| -> f64 {
            weights.iter().zip(v[at..].iter().step_by(d)).map(|(w, v)| w * v).sum()
        };
        expected.extend((0..d).map(|at| column(at) / total));
    }
    for (file, shared, scratch) in
        [("attention_sm_90a.ptx", 82_616, 640), ("attention_sm_100a.ptx", 67_216, 512)]
    {
        let mut arguments: Vec<_> =
            [&q, &k, &v].into_iter().map(|x| Argument::Input(halves(x))).collect();
        arguments.push(Argument::Output { bytes: 2 * s * d, zero: false });
        arguments.extend([Argument::Word(s as u32), Argument::Word(scale.to_bits())]);
        let case = Case {
            grid: [2, 1, 1],
            block: 384,
            shared,
            scratch,
            arguments,
            expected: expected.clone(),
            tolerance: 2e-3,
            ..Case::new(file, "attention")
        };
        assert!(case.check().contains(&Kind::SameValueRace), "{file}");
    }
}

#[test]
fn products_of_nvfp4() {
    const CODES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let (m, n, k) = (256, 256, 512);
    // Codes, and scales of 1/2, 1 and 2.
    let matrix = |rows: usize, seed: u32| {
        let codes: Vec<u8> = quarters(rows * k, seed)
            .iter()
            .zip(quarters(rows * k, seed + 1))
            .map(|(low, high)| ((low * 4.0 + 4.0) as u8 % 8) | (u8::from(high < 0.0) << 3))
            .collect();
        let scales: Vec<u8> = quarters(rows * k / 16, seed + 2)
            .iter()
            .map(|pick| [0x30, 0x38, 0x40][(pick * 4.0 + 4.0) as usize % 3])
            .collect();
        let value = |(at, code): (usize, &u8)| {
            let scale = 2f64.powi(i32::from(scales[at / 16] >> 3) - 7);
            let sign = if code >> 3 == 0 { scale } else { -scale };
            sign * CODES[usize::from(code % 8)]
        };
        let values: Vec<f64> = codes.iter().enumerate().map(value).collect();
        let packed: Vec<u8> = codes.chunks(2).map(|two| two[0] | (two[1] << 4)).collect();
        (packed, scales, values)
    };
    let (a, sa, x) = matrix(m, 6);
    let (b, sb, y) = matrix(n, 9);
    let mut arguments: Vec<_> = [a, sa, b, sb].map(Argument::Input).into();
    arguments.push(Argument::Output { bytes: 4 * m * n, zero: false });
    arguments.extend([m, n, k].map(|size| Argument::Word(size as u32)));
    let case = Case {
        grid: [2, 2, 1],
        shared: 67_584,
        arguments,
        expected: product(&x, &y, k),
        element: 4,
        tolerance: 1e-6,
        ..Case::new("nvfp4_sm_100a.ptx", "nvfp4")
    };
    assert!(case.check().contains(&Kind::MissingTcgen05Fence));
}

#[test]
fn sums_behind_a_spin_lock() {
    let (ctas, width) = (6, 128);
    let rows = quarters(ctas * width, 12);
    let floats = rows.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let sum = |at: usize| rows[at..].iter().step_by(width).sum();
    let case = Case {
        grid: [ctas as u32, 1, 1],
        shared: 4,
        arguments: vec![
            Argument::Input(floats),
            Argument::Input(vec![0; 4]),
            Argument::Output { bytes: 4 * width, zero: true },
        ],
        expected: (0..width).map(sum).collect(),
        element: 4,
        ..Case::new("locked_sm_90a.ptx", "locked")
    };
    assert_eq!(case.check(), BTreeSet::new());
}
