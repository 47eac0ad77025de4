//! Every GEMV configuration gives the bits that are recorded in `tests/data/checksums`, whose
//! README says when a change is legitimate.

use fp4_formats::gemv::CONFIGS;
use fp4_formats::{FloatType, ScaleLayout};
use nvfp4::gemv::{GemvOptions, GemvOverrides, GemvRun};
use nvfp4::shape::GemvShape;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::checksums::{self, Checksums};
use nvfp4_tests::emulated;

/// Rows that fill CTAs and that do not, K of more than one panel and of a part of one; as planned, and
/// with fewer CTAs.
#[test]
fn gemv() {
    let mut sums = Checksums::default();
    for device in ["emu:h200", "emu:b200"] {
        let kernels = emulated(device, checksums::schedule());
        let mut seed = 0;
        for config in &CONFIGS {
            for (m, k) in [(1, 32), (37, 1056), (261, 2080), (19, 20512)] {
                for ctas in [None, Some(3)] {
                    let shape = GemvShape { m, k: k + config.load_bytes as usize % 16 * 2, l: 2 };
                    let activations = ScaleLayout::ALL[seed as usize % 2];
                    let options = GemvOptions::new()
                        .alpha([1.0, -0.375][seed as usize / 2 % 2])
                        .output(FloatType::ALL[seed as usize % 3])
                        .overrides(GemvOverrides::new().kernel(config.name.to_string()).ctas(ctas));
                    let layouts = [activations, config.scale_layout];
                    let (a, b) = Generator::FullRange.gemv(shape, layouts, seed).expect("inputs");
                    let prepared = GemvRun::new(&kernels, &a, &b, options.clone());
                    let result = prepared.and_then(|gemv| gemv.run()).expect("runs");
                    let GemvShape { m, k, l } = shape;
                    let key = format!(
                        "{} {} x {activations}, load {}, {m}x{k}x{l}{}, {} alpha {}",
                        result.plan.arch,
                        config.scale_layout,
                        config.load_bytes,
                        ctas.map_or(String::new(), |ctas| format!(" by {ctas} CTAs")),
                        options.output.name(),
                        options.alpha,
                    );
                    sums.add(key, &[&result.bytes]);
                    seed += 1;
                }
            }
        }
    }
    sums.compare("gemv");
}
