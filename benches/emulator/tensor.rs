//! Speed of the tensor-core products on one core, in multiply-adds per second: from
//! gathered bytes to accumulators, as one instruction does it.
//!
//! A GEMM of 128 x 7168 x 2048 has 1.9 G multiply-adds, one of 128 x 7168 x 16384 15 G;
//! divide by the figures here for what the products alone take.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ptx_emu_core::tensor::aligned::Adder;
use ptx_emu_core::tensor::element::{Element, ScaleType};
use ptx_emu_core::tensor::product::{Addend, FloatColumns, FloatRows, multiply_f32, multiply_i32};
use ptx_emu_core::tensor::shared::{Major, Operand, SharedDescriptor, Swizzle};
use ptx_emu_core::tensor::tile::{Packing, Tile};
use std::convert::Infallible;
use std::hint::black_box;

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 37 % 113) as u8).collect()
}

fn tile(element: Element, rows: usize, k: usize, bytes: &[u8]) -> Tile<'_> {
    Tile { element, container: element.bits(), rows, k, bytes, negate: false }
}

/// One instruction: m, n, k, and scales along K.
struct Case {
    name: &'static str,
    element: Element,
    shape: (usize, usize, usize),
    blocks: usize,
}

const CASES: [Case; 6] = [
    Case { name: "wgmma f16", element: Element::F16, shape: (64, 256, 16), blocks: 0 },
    Case { name: "wgmma e4m3", element: Element::E4m3, shape: (64, 256, 32), blocks: 0 },
    Case { name: "tcgen05 f16", element: Element::F16, shape: (128, 256, 16), blocks: 0 },
    Case { name: "tcgen05 mxfp4", element: Element::E2m1, shape: (128, 256, 64), blocks: 2 },
    Case { name: "tcgen05 nvfp4", element: Element::E2m1, shape: (128, 256, 64), blocks: 4 },
    Case { name: "tcgen05 nvfp4 N 64", element: Element::E2m1, shape: (128, 64, 64), blocks: 4 },
];

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("products");
    let bytes = pattern(256 * 32);
    for Case { name, element, shape: (m, n, k), blocks } in CASES {
        let (mut rows, mut columns) = (FloatRows::default(), FloatColumns::default());
        let mut d = vec![0f32; m * n];
        group.throughput(Throughput::Elements((m * n * k) as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let bytes = black_box(&bytes);
                tile(element, m, k, bytes).float_rows(&mut rows);
                tile(element, n, k, bytes).float_columns(&mut columns);
                if let Some(block) = k.checked_div(blocks) {
                    let scale =
                        |line: usize, at: usize| ScaleType::Ue4m3.value(bytes[line * 4 + at]);
                    rows.scale(block, scale);
                    columns.scale(block, scale);
                }
                if name.starts_with("wgmma") {
                    let adder = Adder::new(element, element, false);
                    adder.multiply_f32(&rows, &columns, Addend::Old, &mut d);
                } else {
                    multiply_f32(&rows, &columns, Addend::Old, &mut d);
                }
            });
        });
    }
    let (m, n, k) = (64, 256, 32);
    let (mut rows, mut columns) = (FloatRows::default(), FloatColumns::default());
    let mut d = vec![0i32; m * n];
    group.throughput(Throughput::Elements((m * n * k) as u64));
    group.bench_function(BenchmarkId::from_parameter("wgmma s8"), |b| {
        b.iter(|| {
            tile(Element::S8, m, k, black_box(&bytes)).float_rows(&mut rows);
            tile(Element::S8, n, k, black_box(&bytes)).float_columns(&mut columns);
            multiply_i32(&rows, &columns, true, false, &mut d);
        });
    });
    group.finish();
}

fn gathering(c: &mut Criterion) {
    let mut group = c.benchmark_group("gathering");
    let memory = pattern(1 << 18);
    let read = |address: u32| {
        let from = address as usize;
        Ok::<[u8; 16], Infallible>(memory[from..from + 16].try_into().expect("16 bytes"))
    };
    let desc = SharedDescriptor {
        start: 0x8000,
        leading: 0x4000,
        stride: 1024,
        base_offset: 0,
        swizzle: Swizzle::B128,
    };
    let packing = Packing::Dense;
    for (name, element, major, k) in [
        ("e2m1 K-major", Element::E2m1, Major::K, 64),
        ("f16 K-major", Element::F16, Major::K, 16),
        ("f16 MN-major", Element::F16, Major::Mn, 16),
    ] {
        let operand = Operand { element, packing, major, rows: 256, k };
        let mut out = Vec::new();
        group.throughput(Throughput::Bytes(256 * 32));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| black_box(&desc).gather(&operand, read, &mut out));
        });
    }
    group.finish();
}

criterion_group!(benches, products, gathering);
criterion_main!(benches);
