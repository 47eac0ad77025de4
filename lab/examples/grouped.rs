//! A grouped product: the tokens of four experts, each times its own weights, in one launch. Token
//! counts are in device memory, so that a kernel before may make them, and a launch in a CUDA graph
//! works with those of each replay.
//!
//! ```text
//! cargo run --release --package nvfp4-lab --example grouped -- [DEVICE]
//! ```
//!
//! DEVICE is as for `nvfp4 --device`; without a GPU the kernels run on the emulator.

use fp4_formats::{FloatType, HalfType, ScaleLayout};
use nvfp4::buffer::DeviceBuffer;
use nvfp4::device::{Device, Kernels};
use nvfp4::floats;
use nvfp4::gemm::{
    ActivationBuffers, ActivationKind, Activations, Gemm, GemmOptions, GroupBuffers, Grouping,
    HalfMatrix, Repacked, ResultBuffers, Vectors, Weights, Workspace, group_offsets,
};
use nvfp4::quantize::{TensorScale, quantize};
use nvfp4::tensor::Dims;
use nvfp4_lab::gemm::reference_grouped;
use nvfp4_lab::oracle::Verification;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_lab::shape::GroupedShape;

/// The tokens of each expert in two launches, whose sum is at most [`BOUND`].
const LAUNCHES: [[usize; 4]; 2] = [[3, 0, 17, 12], [0, 1, 2, 20]];
/// Tokens that the buffers have room for.
const BOUND: usize = 32;
/// Columns of the result, and K.
const SIZES: [usize; 2] = [192, 256];

fn main() -> anyhow::Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".into());
    let kernels = Device::open(&device.parse()?)?.kernels(None)?;
    println!("on {}", kernels.device().choice());
    let (plan, verified) = run(&kernels)?;
    println!("{plan}");
    for (counts, verification) in LAUNCHES.iter().zip(verified) {
        println!("{counts:?} tokens: {}", verification.summary());
        anyhow::ensure!(verification.passed(), "the result differs from the oracle's");
    }
    Ok(())
}

/// Runs both launches on random numbers: the plan, and how far each result is from the f64 oracle.
pub fn run(kernels: &Kernels) -> anyhow::Result<(String, Vec<Verification>)> {
    let [n, k] = SIZES;
    let device = kernels.device();
    let mut rng = SplitMix64::new(2);
    let mut normal =
        |count: usize| -> Vec<f32> { (0..count).map(|_| 0.1 * rng.normal() as f32).collect() };

    // Once per layer: each expert is a tensor with its own scale.
    let kind = ActivationKind::Halves(HalfType::F16);
    let experts = [(); 4].map(|()| {
        let (dims, layout) = (Dims::new(1, n, k)?, ScaleLayout::Linear);
        quantize("expert", &normal(n * k), dims, TensorScale::FromAmax, layout)
    });
    let experts: Vec<_> = experts.into_iter().collect::<Result<_, _>>()?;
    let parts = experts.iter().map(|expert| Repacked::for_device(device, expert, kind));
    let weights = Repacked::stack(&parts.collect::<Result<Vec<_>, _>>()?)?.upload(device)?;

    // Once: the plan knows how many tokens there may be, and never how many there are.
    let options = GemmOptions::new().output(FloatType::F32);
    let grouping = Grouping::Contiguous { bound: BOUND };
    let product = Gemm::grouped(kernels, &weights, grouping, kind, &options)?;
    let workspace = Workspace::new(device, product.workspace_bytes().max(1))?;
    let x = HalfMatrix::round("x", Dims::new(1, BOUND, k)?, HalfType::F16, &normal(BOUND * k))?;
    let input = DeviceBuffer::upload(device, "x", x.bytes())?;
    let out = DeviceBuffer::zeroed(device, "y", product.out_bytes()?[0])?;
    let offsets = DeviceBuffer::zeroed(device, "offsets", 4 * (experts.len() + 1))?;
    let status = DeviceBuffer::zeroed(device, "status", 4)?;
    let groups = GroupBuffers { status: Some(&status), ..GroupBuffers::of(&offsets) };

    let mut verified = Vec::new();
    for counts in LAUNCHES {
        let bytes =
            group_offsets(&counts)?.iter().flat_map(|at| at.to_le_bytes()).collect::<Vec<_>>();
        offsets.write(&bytes)?;
        product.launch_grouped(
            groups,
            ActivationBuffers::Halves(&input),
            &weights,
            ResultBuffers::Floats(&out),
            Some(&workspace),
            Vectors::default(),
        )?;
        anyhow::ensure!(status.read()? == [0; 4], "the kernel found the offsets to be bad");

        let shape = GroupedShape { counts: counts.to_vec(), n, k };
        let of_experts: Vec<Weights<'_, _>> = experts.iter().map(Into::into).collect();
        let (a, all) = (Activations::Halves(&x), vec![options.clone(); experts.len()]);
        let mut reference = reference_grouped(&a, &of_experts, &shape.ranges(), &all)?;
        // Rows behind the last token are left alone.
        let used = shape.tokens() * n;
        let values = floats::decode(FloatType::F32, &out.read()?[..4 * used]);
        reference.values.truncate(used);
        reference.magnitudes.truncate(used);
        let reference = reference.with_additions(product.plan().additions);
        verified.push(reference.verify(&values, FloatType::F32));
    }
    Ok((product.plan().to_string(), verified))
}
