//! Speed of ordinary code in lane instructions per second on one core, and on two: a separable convolution, a histogram, a product
//! of matrices and one by tensor cores, as CUDA's samples have them. Results are compared with the host's
//! before anything is timed.
//!
//! `kernels.ptx` is `kernels.cu` compiled by `nvcc -std=c++17 -ptx -arch=compute_90a` (13.0.88).

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernel::Kernel;
use ptx_emu_core::{Checks, GlobalMemory, Gpu, Model, Module, Schedule};

#[path = "../kernel.rs"]
mod kernel;

/// The first taps and the middle one of the convolution, which is symmetric.
const TAPS: [f32; 9] =
    [0.0078125, 0.015625, 0.03125, 0.046875, 0.0625, 0.078125, 0.09375, 0.1, 0.125];
const RADIUS: isize = 8;
/// Width and height of the image.
const IMAGE: [usize; 2] = [768, 512];
/// Words of the histogram's input, CTAs, and bins.
const WORDS: usize = 1 << 20;
const CTAS: usize = 240;
const BINS: usize = 256;

/// A kernel and its result.
struct Case {
    kernel: Kernel,
    out: u64,
    expected: Vec<u8>,
}

impl Case {
    fn run(&mut self, module: &Module, schedule: Schedule, threads: usize) -> u64 {
        self.kernel.run(module, schedule, Checks::new(Model::Hardware), threads)
    }

    fn check(&self) {
        let Kernel { memory, entry, .. } = &self.kernel;
        let found = memory.read(self.out, self.expected.len() as u64).expect("all of it");
        assert!(found == self.expected, "{entry}: wrong results");
    }
}

/// Numbers that look random, the same in every run.
fn numbers(count: usize) -> impl Iterator<Item = u32> {
    let mut state = 1u64;
    (0..count).map(move |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    })
}

fn floats(count: usize) -> Vec<f32> {
    numbers(count).map(|number| (number >> 16) as f32 / 65536.0 - 0.5).collect()
}

fn bytes<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    values.into_iter().flatten().collect()
}

fn params(addresses: &[u64], sizes: &[usize]) -> Vec<u8> {
    let sizes = sizes.iter().map(|&size| (size as u32).to_le_bytes());
    [bytes(addresses.iter().map(|address| address.to_le_bytes())), bytes(sizes)].concat()
}

fn convolution(entry: &'static str) -> Case {
    let [width, height] = IMAGE;
    let image = floats(width * height);
    let along_rows = entry == "convolve_rows";
    let at = |x: isize, y: isize| {
        let inside = (0..width as isize).contains(&x) && (0..height as isize).contains(&y);
        if inside { image[y as usize * width + x as usize] } else { 0.0 }
    };
    let sum = |index: usize| {
        let (x, y) = ((index % width) as isize, (index / width) as isize);
        (-RADIUS..=RADIUS).fold(0.0f32, |sum, j| {
            let value = if along_rows { at(x + j, y) } else { at(x, y + j) };
            TAPS[(RADIUS - j.abs()) as usize].mul_add(value, sum)
        })
    };
    let expected = bytes((0..image.len()).map(|index| sum(index).to_le_bytes()));
    let mut memory = GlobalMemory::new();
    let input = bytes(image.iter().map(|value| value.to_le_bytes()));
    let input = memory.alloc_from("in", &input).expect("fits");
    let out = memory.alloc("out", expected.len() as u64, 256).expect("fits");
    let (w, h) = (width as u32, height as u32);
    let (grid, block) = match along_rows {
        true => ([w / 128, h / 4, 1], [16, 4, 1]),
        false => ([w / 16, h / 64, 1], [16, 8, 1]),
    };
    let params = params(&[out, input], &[width, height]);
    let kernel = Kernel { entry, memory, grid, block, dynamic_shared: 0, params };
    Case { kernel, out, expected }
}

fn histogram() -> Case {
    let block = 192;
    let mut counts = vec![0u32; CTAS * BINS];
    for (index, word) in numbers(WORDS).enumerate() {
        let cta = index / block % CTAS;
        for byte in word.to_le_bytes() {
            counts[cta * BINS + usize::from(byte)] += 1;
        }
    }
    let expected = bytes(counts.iter().map(|count| count.to_le_bytes()));
    let mut memory = GlobalMemory::new();
    let input = bytes(numbers(WORDS).map(u32::to_le_bytes));
    let input = memory.alloc_from("in", &input).expect("fits");
    let out = memory.alloc("partial", expected.len() as u64, 256).expect("fits");
    let kernel = Kernel {
        entry: "histogram",
        memory,
        grid: [CTAS as u32, 1, 1],
        block: [block as u32, 1, 1],
        dynamic_shared: 0,
        params: params(&[out, input], &[WORDS]),
    };
    Case { kernel, out, expected }
}

/// Sums of the CTAs' counts, one for each bin.
fn merge_histograms() -> Case {
    let counts: Vec<u32> = numbers(CTAS * BINS).map(|number| number >> 16).collect();
    let sum = |bin: usize| counts.iter().skip(bin).step_by(BINS).sum::<u32>();
    let expected = bytes((0..BINS).map(|bin| sum(bin).to_le_bytes()));
    let mut memory = GlobalMemory::new();
    let input = bytes(counts.iter().map(|count| count.to_le_bytes()));
    let input = memory.alloc_from("partial", &input).expect("fits");
    let out = memory.alloc("out", expected.len() as u64, 256).expect("fits");
    let kernel = Kernel {
        entry: "merge_histograms",
        memory,
        grid: [BINS as u32, 1, 1],
        block: [256, 1, 1],
        dynamic_shared: 0,
        params: params(&[out, input], &[CTAS]),
    };
    Case { kernel, out, expected }
}

fn product() -> Case {
    let [m, k, n] = [96, 320, 160];
    let (a, b) = (floats(m * k), floats(k * n));
    let sum = |index: usize| {
        let (row, column) = (index / n, index % n);
        (0..k).fold(0.0f32, |sum, at| a[row * k + at].mul_add(b[at * n + column], sum))
    };
    let expected = bytes((0..m * n).map(|index| sum(index).to_le_bytes()));
    let mut memory = GlobalMemory::new();
    let [a, b] = [("a", &a), ("b", &b)].map(|(name, values)| {
        let values = bytes(values.iter().map(|value| value.to_le_bytes()));
        memory.alloc_from(name, &values).expect("fits")
    });
    let out = memory.alloc("c", expected.len() as u64, 256).expect("fits");
    let kernel = Kernel {
        entry: "multiply",
        memory,
        grid: [n as u32 / 32, m as u32 / 32, 1],
        block: [32, 32, 1],
        dynamic_shared: 0,
        params: params(&[out, a, b], &[k, n]),
    };
    Case { kernel, out, expected }
}

/// Small integers, so that the sums are exact.
fn tensor_product() -> Case {
    let [m, k, n] = [128, 1024, 256];
    let digits = |count: usize| -> Vec<f32> {
        numbers(count).map(|number| ((number >> 16) % 9) as f32 - 4.0).collect()
    };
    let (a, b) = (digits(m * k), digits(n * k));
    let sum = |index: usize| {
        let (row, column) = (index / n * k, index % n * k);
        (0..k).map(|at| a[row + at] * b[column + at]).sum::<f32>()
    };
    let expected = bytes((0..m * n).map(|index| sum(index).to_le_bytes()));
    let mut memory = GlobalMemory::new();
    let [a, b] = [("a", &a), ("b", &b)].map(|(name, values)| {
        let values = values.iter().map(|&value| half::bf16::from_f32(value).to_le_bytes());
        memory.alloc_from(name, &bytes(values)).expect("fits")
    });
    let out = memory.alloc("d", expected.len() as u64, 256).expect("fits");
    let kernel = Kernel {
        entry: "multiply_bf16",
        memory,
        grid: [n as u32 / 128, m as u32 / 128, 1],
        block: [256, 1, 1],
        dynamic_shared: 256 * (64 + 16) * 2,
        params: params(&[out, a, b], &[k, n]),
    };
    Case { kernel, out, expected }
}

fn lane_instructions(c: &mut Criterion) {
    let module = Module::load(include_str!("kernels.ptx"), &Gpu::h200()).expect("modelled");
    let mut group = c.benchmark_group("ordinary");
    group.sample_size(10);
    let cases = [
        convolution("convolve_rows"),
        convolution("convolve_columns"),
        histogram(),
        merge_histograms(),
        product(),
        tensor_product(),
    ];
    for mut case in cases {
        let schedules = [Schedule::Eager, Schedule::Lazy, Schedule::Random(1)];
        for (schedule, threads) in schedules.map(|schedule| (schedule, 1)).into_iter().chain([
            // CTAs of these kernels run on all cores under every schedule.
            (Schedule::Eager, 2),
            (Schedule::Lazy, 2),
        ]) {
            let instructions = case.run(&module, schedule, threads);
            case.check();
            group.throughput(Throughput::Elements(instructions));
            let label = format!("{schedule}, threads {threads}");
            group.bench_function(BenchmarkId::new(case.kernel.entry, label), |b| {
                b.iter(|| case.run(&module, schedule, threads));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, lane_instructions);
criterion_main!(benches);
