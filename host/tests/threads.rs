//! Two threads with one device, one set of kernels and one weight, as an inference engine has them.
//!
//! Kernels that are not built are left out, or a failure where `NVFP4_KERNELS_DIR` promises
//! them.

use crate::support;
use std::sync::Barrier;
use std::thread;

use fp4_formats::{FloatType, HalfType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, DeviceWeights, Gemm, GemmOptions, HalfMatrix, Repacked,
    ResultBuffers, Vectors, Workspace,
};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;

const M: usize = 4;
const N: usize = 48;
const K: usize = 128;
const KIND: ActivationKind = ActivationKind::Halves(HalfType::F16);

/// A product of this thread's own activations with the shared weights by the shared plan.
fn multiply(product: &Gemm, device: &Device, weights: &DeviceWeights, x: f32) {
    let dims = Dims::new(1, M, K).expect("dims");
    let input = HalfMatrix::round("x", dims, HalfType::F16, &[x; M * K]).expect("finite");
    let input = DeviceBuffer::upload(device, "x", input.bytes()).expect("uploaded");
    let out = DeviceBuffer::poisoned(device, "c", M * N * 4).expect("allocated");
    let workspace = Workspace::new(device, product.workspace_bytes().max(1)).expect("allocated");
    let (a, result) = (ActivationBuffers::Halves(&input), ResultBuffers::Floats(&out));
    let launched = product.launch(a, weights, result, Some(&workspace), Vectors::default());
    launched.expect("launched");
    let values = floats::decode(FloatType::F32, &out.read().expect("a result"));
    let expected = x * 0.5 * K as f32;
    assert!(values.iter().all(|c| (c - expected).abs() < 1e-3 * expected), "{values:?}");
}

/// Two threads use the same weights, each with one of `kernels`.
fn share(kernels: [&Kernels; 2]) {
    let device = kernels[0].device();
    let dims = Dims::new(1, N, K).expect("dims");
    let (scale, layout) = (TensorScale::FromAmax, ScaleLayout::Linear);
    let weight = quantize("w", &[0.5; N * K], dims, scale, layout).expect("finite");
    let repacked = Repacked::for_device(device, &weight, KIND).expect("repacked");
    let weights = repacked.upload(device).expect("uploaded");
    let options = GemmOptions::new().output(FloatType::F32);
    let start = Barrier::new(2);
    // Both threads want the module at once.
    let plans = thread::scope(|scope| {
        let threads = kernels.map(|kernels| {
            let (weights, options, start) = (&weights, &options, &start);
            scope.spawn(move || {
                start.wait();
                Gemm::new(kernels, weights, [1, M], KIND, options).expect("planned")
            })
        });
        threads.map(|thread| thread.join().expect("no panic"))
    });
    for kernels in kernels {
        assert_eq!(kernels.loaded().len(), 1, "the module is loaded once");
    }
    thread::scope(|scope| {
        // A thread may launch what another has planned.
        for (x, (plan, kernels)) in [1.0, 2.0].into_iter().zip(plans.iter().zip(kernels).rev()) {
            let (weights, start) = (&weights, &start);
            scope.spawn(move || {
                start.wait();
                (0..3).for_each(|_| multiply(plan, kernels.device(), weights, x));
            });
        }
    });
    // Weights that were made here may end elsewhere.
    thread::spawn(move || drop(weights)).join().expect("no panic");
}

#[test]
fn threads_share_an_emulated_device() {
    for kernels in support::machines() {
        share([&kernels, &kernels]);
    }
}

#[test]
fn threads_share_a_gpu() {
    // A handle that is opened again has its own stream.
    let open = || Device::open(&DeviceRequest::Cuda(0));
    let (first, second) = match (open(), open()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(error), _) | (_, Err(error)) => return skipped::test(error),
    };
    let of = |device: &Device| device.kernels(Some(&support::kernels_dir())).expect("built");
    let kernels = of(&first);
    share([&kernels, &kernels]);
    share([&of(&first), &of(&second)]);
}
