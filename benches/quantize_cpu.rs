//! The CPU's speed in quantising a matrix of bf16 weights of normal values, by each project's
//! recipe, and in decoding it again, on all threads.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fp4_formats::FloatType;
use nvfp4::floats;
use nvfp4::quantize::{Format, QuantizeOptions, quantize_bytes, recipe_by_name};
use nvfp4::tensor::Dims;
use nvfp4_lab::rng::SplitMix64;

const RECIPES: [(Format, &str); 9] = [
    (Format::Nvfp4, "torchao"),
    (Format::Nvfp4, "te"),
    (Format::Nvfp4, "modelopt"),
    (Format::Nvfp4, "compressed-tensors"),
    (Format::Nvfp4, "te-4over6"),
    (Format::Nvfp4, "modelopt-4over6"),
    (Format::Mxfp4, "floor"),
    (Format::Mxfp4, "modelopt"),
    (Format::Mxfp4, "compressed-tensors"),
];

fn matrices(criterion: &mut Criterion) {
    let dims = Dims::new(1, 2048, 4096).expect("sizes above zero");
    let mut rng = SplitMix64::new(1);
    let values = (0..dims.elements()).map(|_| 0.02 * rng.normal());
    let bytes = floats::encode(FloatType::Bf16, values);
    let mut group = criterion.benchmark_group("2048x4096 of bf16 on the CPU");
    group.sample_size(20).throughput(Throughput::Bytes(bytes.len() as u64));
    for (format, name) in RECIPES {
        let options = QuantizeOptions::new(recipe_by_name(format, name).expect("known"));
        let quantize =
            || quantize_bytes("x", FloatType::Bf16, &bytes, dims, &options).expect("finite");
        group.bench_function(format!("quantize {} {name}", format.name()), |b| b.iter(quantize));
        if ["torchao", "floor"].contains(&name) {
            let blocks = quantize().into_blocks("x", dims).expect("one scale");
            let decode = || blocks.dequantize().expect("memory");
            group.bench_function(format!("decode {}", format.name()), |b| b.iter(decode));
        }
    }
}

criterion_group!(benches, matrices);
criterion_main!(benches);
