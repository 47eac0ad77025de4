//! Kernels compiled by nvcc (`data/programs.cu`) against plain Rust.

use ptx_emu_core::{Checks, GlobalMemory, Gpu, Launch, Module, Schedule};

const SCHEDULES: [Schedule; 4] =
    [Schedule::Eager, Schedule::Lazy, Schedule::Random(11), Schedule::Random(12)];

struct Programs {
    module: Module,
    memory: GlobalMemory,
    schedule: Schedule,
}

impl Programs {
    fn each(test: impl Fn(&mut Self)) {
        for schedule in SCHEDULES {
            let text = include_str!("../data/programs.ptx");
            let module = Module::load(text, &Gpu::h200()).unwrap_or_else(|e| panic!("{e}"));
            test(&mut Self { module, memory: GlobalMemory::new(), schedule });
        }
    }

    fn upload<T: Copy, const N: usize>(
        &mut self,
        name: &str,
        values: &[T],
        f: fn(T) -> [u8; N],
    ) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|&v| f(v)).collect();
        self.memory.alloc_from(name, &bytes).unwrap()
    }

    fn run(&mut self, entry: &str, grid: u32, block: u32, dynamic_shared: u32, params: &[&[u8]]) {
        let info = self.module.entries().find(|info| info.name == entry).unwrap();
        let mut block_of_params = vec![0; info.param_bytes as usize];
        for (param, bytes) in info.params.iter().zip(params) {
            block_of_params[param.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        self.module
            .launch(
                &mut self.memory,
                &Launch {
                    entry,
                    grid: [grid, 1, 1],
                    block: [block, 1, 1],
                    cluster: None,
                    dynamic_shared,
                    params: &block_of_params,
                    schedule: self.schedule,
                    threads: None,
                    instruction_limit: None,
                    checks: Checks::default(),
                },
            )
            .unwrap_or_else(|e| panic!("{entry}: {e}"));
    }

    fn words(&self, addr: u64, count: usize) -> Vec<u32> {
        let bytes = self.memory.read(addr, count as u64 * 4).unwrap();
        bytes.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
    }
}

fn noise(count: usize) -> Vec<u32> {
    let mut state = 7u32;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.rotate_left(11)
        })
        .collect()
}

#[track_caller]
fn same<T: PartialEq + std::fmt::Debug>(schedule: Schedule, actual: &[T], expected: &[T]) {
    assert_eq!(actual.len(), expected.len());
    let wrong = actual.iter().zip(expected).position(|(a, e)| a != e);
    if let Some(at) = wrong {
        panic!("{schedule}: element {at}: {:?}, expected {:?}", actual[at], expected[at]);
    }
}

#[test]
fn collatz_steps_through_function_pointers() {
    fn collatz(mut n: u32) -> u32 {
        let mut steps = 0;
        while n != 1 {
            n = if n % 2 == 1 { 3 * n + 1 } else { n / 2 };
            steps += 1;
        }
        steps
    }
    Programs::each(|m| {
        let n = 700usize;
        let out = m.memory.alloc("out", n as u64 * 4, 256).unwrap();
        m.run("steps", 6, 128, 0, &[&out.to_le_bytes(), &(n as u32).to_le_bytes()]);
        let expected: Vec<u32> = (0..n as u32)
            .map(|i| match (i / 128 % 2, i % 3) {
                (1, _) | (_, 2) => collatz(i + 1),
                (_, 0) => (i + 1) * (i + 1),
                _ => i.div_ceil(2),
            })
            .collect();
        same(m.schedule, &m.words(out, n), &expected);
    });
}

#[test]
fn bitonic_sort() {
    Programs::each(|m| {
        let keys = noise(3 * 256);
        let data = m.upload("keys", &keys, u32::to_le_bytes);
        m.run("bitonic", 3, 128, 1024, &[&data.to_le_bytes()]);
        let mut expected = keys;
        expected.chunks_mut(256).for_each(<[u32]>::sort_unstable);
        same(m.schedule, &m.words(data, 3 * 256), &expected);
    });
}

#[test]
fn histogram() {
    Programs::each(|m| {
        let bytes: Vec<u8> = noise(5000).iter().map(|v| (v >> 9 & v >> 17) as u8).collect();
        let data = m.upload("data", &bytes, |b: u8| [b]);
        let bins = m.upload("bins", &[0u32; 256], u32::to_le_bytes);
        let n = bytes.len() as u32;
        m.run("histogram", 4, 96, 0, &[&data.to_le_bytes(), &bins.to_le_bytes(), &n.to_le_bytes()]);
        let mut expected = [0u32; 256];
        bytes.iter().for_each(|&b| expected[usize::from(b)] += 1);
        same(m.schedule, &m.words(bins, 256), &expected);
    });
}

#[test]
fn row_sums() {
    Programs::each(|m| {
        let (rows, columns) = (3usize, 1000usize);
        let x: Vec<f32> = noise(rows * columns).iter().map(|&v| (v >> 8) as f32).collect();
        let data = m.upload("x", &x, f32::to_le_bytes);
        let out = m.memory.alloc("out", rows as u64 * 8, 8).unwrap();
        m.run(
            "row_sums",
            rows as u32,
            160,
            0,
            &[&data.to_le_bytes(), &out.to_le_bytes(), &(columns as u32).to_le_bytes()],
        );
        // Sums of 24-bit integers are exact in f64, in any order.
        let expected: Vec<u64> = x
            .chunks(columns)
            .map(|row| row.iter().map(|&v| f64::from(v)).sum::<f64>().to_bits())
            .collect();
        let bytes = m.memory.read(out, rows as u64 * 8).unwrap();
        let actual: Vec<u64> =
            bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        same(m.schedule, &actual, &expected);
    });
}

#[test]
fn structs_switches_and_local_arrays() {
    Programs::each(|m| {
        let n = 96usize;
        let input: Vec<i32> = noise(n).iter().map(|&v| (v >> 20) as i32).collect();
        let (scale, bias) = ([3, -1, 4, 1, -5], 0.25f32);
        let data = m.upload("in", &input, i32::to_le_bytes);
        let out = m.memory.alloc("out", n as u64 * 4, 256).unwrap();
        let mut big: Vec<u8> = scale.iter().flat_map(|v: &i32| v.to_le_bytes()).collect();
        big.extend(bias.to_le_bytes());
        m.run("mixed", 1, n as u32, 0, &[&big, &data.to_le_bytes(), &out.to_le_bytes()]);
        let expected: Vec<u32> = (0..n)
            .map(|i| {
                let local: Vec<i32> = (0..8).map(|k| input[(i + k) % n] * scale[k % 5]).collect();
                let value = match input[i] & 7 {
                    0 => local[(input[i] >> 3 & 7) as usize] as f32,
                    1 => local[1] as f32 + 0.5,
                    2 => local[2] as f32 / 3.0,
                    3 => (local[3] as f32).abs().sqrt(),
                    5 => -local[5] as f32,
                    _ => (local[i & 7] % 7) as f32,
                };
                (value + bias).to_bits()
            })
            .collect();
        same(m.schedule, &m.words(out, n), &expected);
    });
}

#[test]
fn half_precision_pairs() {
    Programs::each(|m| {
        let n = 200usize;
        let mask = |v: &u32| v & 0x3fff_3fff;
        let x: Vec<u32> = noise(2 * n)[n..].iter().map(mask).collect();
        let y: Vec<u32> = noise(n).iter().map(mask).collect();
        let a = 0x3555_b800u32;
        let (xs, ys) = (m.upload("x", &x, u32::to_le_bytes), m.upload("y", &y, u32::to_le_bytes));
        m.run(
            "half2_axpy",
            2,
            128,
            0,
            &[&a.to_le_bytes(), &xs.to_le_bytes(), &ys.to_le_bytes(), &(n as u32).to_le_bytes()],
        );
        let value = |bits: u32, shift: u32| half::f16::from_bits((bits >> shift) as u16).to_f64();
        let fma = |i: usize, shift: u32| {
            // Exact in f64 for these magnitudes, so rounded once.
            let sum = value(a, shift) * value(x[i], shift) + value(y[i], shift);
            u32::from(half::f16::from_f64(sum).to_bits()) << shift
        };
        let expected: Vec<u32> = (0..n).map(|i| fma(i, 0) | fma(i, 16)).collect();
        same(m.schedule, &m.words(ys, n), &expected);
    });
}
