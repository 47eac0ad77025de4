//! The correctness shapes of the public contests of gated and of grouped GEMMs, whole, with the
//! contests' inputs: NVFP4 by NVFP4 to f16, on the emulated machines and a GPU where there is one,
//! against the f64 oracle.

use fp4_formats::FloatType;
use fp4_formats::ScaleLayout::Blocked128x4;
use fp4_formats::arch::TensorFamily;
use nvfp4::device::Kernels;
use nvfp4::gemm::Activation;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::{DUAL_CORRECTNESS, GemmShape, Shape};
use nvfp4_tests::gemm::mixed::check_mixed;
use nvfp4_tests::gemm::{ActivationType, BLOCKED, Case, F16};
use nvfp4_tests::{DEVICES, SCHEDULES, also_gpu, devices, emulated};
use ptx_emu::Schedule;

/// M, N and K of the groups of each problem of the grouped contest.
const GROUPED_CORRECTNESS: [[&[usize]; 3]; 10] = [
    [&[96, 128], &[128, 256], &[256, 512]],
    [&[256, 72], &[512, 384], &[256, 256]],
    [&[128, 128], &[128, 256], &[512, 256]],
    [&[80, 128, 256], &[384, 256, 128], &[256, 512, 256]],
    [&[64, 72, 96], &[128, 384, 512], &[512, 512, 256]],
    [&[64, 256, 128], &[768, 128, 256], &[512, 256, 512]],
    [&[128, 128, 64], &[256, 512, 512], &[768, 256, 768]],
    [&[128; 4], &[128; 4], &[512, 256, 512, 256]],
    [&[40, 56, 384, 512], &[512, 384, 256, 128], &[256; 4]],
    [&[512, 384, 256, 128], &[256; 4], &[512, 768, 512, 768]],
];

/// A product with the contest's layout of scales and type of result.
fn contest(
    [m, n, k]: [usize; 3],
    generator: Generator,
    activations: ActivationType,
    seed: usize,
) -> Case {
    let case = Case::new([m, n, k, 1]).activations(activations).result(FloatType::F16);
    Case { layout: Blocked128x4, generator, seed: seed as u64, ..case }
}

/// Checks a problem of the grouped contest, one launch for all groups.
fn check_groups(kernels: &Kernels, index: usize, activations: ActivationType) {
    let [rows, columns, depths] = GROUPED_CORRECTNESS[index];
    let sizes = rows.iter().zip(columns).zip(depths).map(|((&m, &n), &k)| [m, n, k]);
    let cases = sizes.enumerate().map(|(group, sizes)| {
        contest(sizes, Generator::ContestGemm, activations, 10 * index + group)
    });
    let cases: Vec<Case> = cases.collect();
    assert_eq!(check_mixed(kernels, &cases).len(), rows.len());
}

/// All groups of a problem in one launch, with the contest's activations and with 16-bit ones.
#[test]
fn grouped_shapes() {
    for kernels in devices() {
        for index in 0..GROUPED_CORRECTNESS.len() {
            for activations in [BLOCKED, F16] {
                check_groups(&kernels, index, activations);
            }
        }
    }
}

/// Problems with two, three and four groups whatever the order in which warps run.
#[test]
fn grouped_shapes_under_other_schedules() {
    for (at, schedule) in SCHEDULES.into_iter().filter(|s| *s != Schedule::Eager).enumerate() {
        for device in DEVICES {
            check_groups(&emulated(device, schedule), [0, 4, 7, 8][at], BLOCKED);
        }
    }
}

/// A gated product with the contest's activation of the gate.
fn dual(GemmShape { m, n, k, .. }: GemmShape, activations: ActivationType) -> Case {
    let case = contest([m, n, k], Generator::ContestDual, activations, m + k);
    case.gated().activation(Activation::Silu)
}

/// The most operations of a shape that is run on an emulated machine: sm_90a's makes some 2 billion in a second,
/// sm_100a's some 10.
fn most_operations(kernels: &Kernels) -> f64 {
    match kernels.device().choice().arch.tensor() {
        TensorFamily::MmaSync | TensorFamily::MmaSyncScaled | TensorFamily::Wgmma => 3e10,
        TensorFamily::Tcgen05 => 1e11,
    }
}

/// Checks shapes on each emulated machine that takes them, says which it does not, and checks all
/// on a GPU. Returns on how many emulated machines shapes were checked.
fn check_dual(shapes: &[GemmShape]) -> usize {
    let emulators = DEVICES.map(|device| emulated(device, Schedule::Eager));
    let (gpu, mut checked) = (also_gpu(), 0);
    for &shape in shapes {
        let what = Shape::Dual(shape);
        let operations = what.flops().expect("a product");
        let takes = |kernels: &&Kernels| {
            let (device, most) = (&kernels.device().choice().device, most_operations(kernels));
            if operations > most {
                let reason = format!("{operations:.1e} operations, not {most:.0e}");
                skipped::part(format!("{what} on {device}"), reason);
            }
            operations <= most
        };
        let devices: Vec<Kernels> = emulators.iter().filter(takes).cloned().collect();
        checked += devices.len();
        let devices: Vec<Kernels> = devices.into_iter().chain(gpu.clone()).collect();
        dual(shape, BLOCKED).check_on(&devices);
    }
    checked
}

/// K up to 2048. The shapes are in two tests, so that these run beside each other.
#[test]
fn dual_shapes_of_short_k() {
    let shapes: Vec<GemmShape> = DUAL_CORRECTNESS.into_iter().filter(|s| s.k <= 2048).collect();
    assert_eq!((shapes.len(), check_dual(&shapes)), (5, 8));
}

/// The others.
#[test]
fn dual_shapes_of_long_k() {
    let shapes: Vec<GemmShape> = DUAL_CORRECTNESS.into_iter().filter(|s| s.k > 2048).collect();
    assert_eq!((shapes.len(), check_dual(&shapes)), (4, 7));
}

/// The smallest shape with 16-bit activations.
#[test]
fn dual_shape_of_halves() {
    let [_, smallest, ..] = DUAL_CORRECTNESS;
    assert_eq!(smallest, GemmShape::of(256, 512, 256));
    dual(smallest, F16).check_on(&devices());
}
