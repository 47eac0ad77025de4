//! Products of up to 32 tokens of block-scaled activations on sm_100a: one launch, which takes the
//! activations as they are, against the f64 oracle.

use fp4_formats::gemm::Split;
use fp4_formats::gemm::sm100::CONFIGS;
use fp4_formats::quantize::Format;
use fp4_formats::{FloatType, ScaleLayout};
use nvfp4::shape::GemmShape;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::{ActivationType, Case, Placement};
use nvfp4_tests::{SCHEDULES, emulated};
use ptx_emu::Schedule;

/// Warp instructions that a CTA issues for a K step, with all that it does for a tile: where a token's
/// scales are loaded at once, and by fours.
const ISSUED: [u64; 2] = [340, 375];

/// One launch as planned, in both layouts of the scales, whose padding holds NaN: K of whole steps, of
/// whole words and of single blocks, also with rows that are not multiples of 16 bytes; batches, of
/// matrices that lie apart and that all entries share.
#[test]
fn one_launch() {
    let machines = SCHEDULES.map(|schedule| emulated("emu:b200", schedule).observed());
    let mut i = 0;
    for format in [Format::Nvfp4, Format::Mxfp4] {
        for layout in ScaleLayout::ALL {
            for (m, n, l) in [(1, 300, 1), (5, 72, 3), (16, 200, 2), (17, 136, 1), (32, 520, 2)] {
                for k in [512, 704, 1040, 48] {
                    let k = usize::next_multiple_of(k, format.block() as usize);
                    let case = Case::new([m, n, k, l]).format(format);
                    let case = case.result(FloatType::ALL[i % 3]);
                    let mut case = case.activations(ActivationType::Blocks(layout));
                    case.layout = ScaleLayout::ALL[i / 2 % 2];
                    case.generator = Generator::FullRange;
                    case.activations_at = match i % 4 {
                        0 | 1 => [Placement::Dense; 2],
                        2 if layout == ScaleLayout::Linear => {
                            [Placement::Padded(64), Placement::Padded(7)]
                        }
                        2 => [Placement::Padded(64), Placement::Padded(512)],
                        _ => [Placement::Shared; 2],
                    };
                    case.seed = i as u64;
                    let (kernels, reports) = &machines[i % 5];
                    let plan = case.check(kernels).plan;
                    let config = CONFIGS.iter().find(|config| config.name == plan.kernel);
                    assert!(config.is_some_and(|config| config.columns <= 32), "{plan}");
                    assert!(plan.before.is_empty(), "{plan}");
                    assert_eq!(reports.take().len(), 1, "{plan}");
                    // Nothing is laid out: there are partial sums, or nothing.
                    let sums = plan.why.iter().any(|why| why.contains("partial sums"));
                    assert_eq!(plan.workspace_bytes > 0, sums, "{plan}");
                    i += 1;
                }
            }
        }
    }
}

/// A large product stays within its budget: memory gives the operands and little else, which is not
/// written before and read again, and the warp that loads scales issues few of all instructions.
#[test]
fn within_budget() {
    let shape = GemmShape::of(1, 7168, 16384);
    let row = (shape.k / 2 + shape.k / 16) as u64;
    let operands = (shape.m + shape.n) as u64 * row;
    let (kernels, reports) = emulated("emu:b200", Schedule::Eager).observed();
    let config =
        CONFIGS.iter().find(|config| config.name == "gemm_sm100_nvfp4_128x8").expect("a kernel");
    let tiles = shape.n.div_ceil(config.rows() as usize) as u64;
    let steps = tiles * u64::from(config.steps(shape.k as u32));
    for (layout, most) in ScaleLayout::ALL.into_iter().zip(ISSUED) {
        let case = Case::new([shape.m, shape.n, shape.k, 1]).result(FloatType::F16);
        let case = case.activations(ActivationType::Blocks(layout));
        let plan = case.kernel(config.name, Split::StreamK).product(&kernels).plan;
        let [report] = &reports.take()[..] else { panic!("launches of {plan}") };
        let counters = &report.counters;
        let read = counters.global_unique_bytes_read;
        // The rest is partial sums, and sectors of 128x4 scales in which there are other rows.
        assert!((operands..operands + operands / 100).contains(&read), "{read} of {operands}");
        let issued = counters.warp_instructions;
        assert!(issued <= most * steps, "{layout}: {} for a step", issued / steps);
    }
}
