//! CTAs of an sm_90a cluster that share activations: each copies its part by multicast for all.

use fp4_formats::gemm::Split;
use fp4_formats::gemm::sm90::CONFIGS;
use nvfp4_lab::generate::Generator;
use nvfp4_tests::gemm::{Case, F16};
use nvfp4_tests::{DEVICES, SCHEDULES, emulated, emulated_on};
use ptx_emu::Gpu;

/// Tiles without a neighbour, halves without tokens, rings that do not fill and that wrap, one
/// tile per CTA and several, sums through the workspace.
#[test]
fn shared_activations() {
    let sharing: Vec<_> = CONFIGS.iter().filter(|config| config.multicast > 1).collect();
    let count = sharing.len();
    assert!(count > 0, "no configuration shares activations");
    // On few SMs a CTA has several tiles.
    let machine = |sms, schedule| emulated_on(Gpu { sms, ..Gpu::h200() }, schedule);
    let machines = SCHEDULES.map(|schedule| [132, 2, 14].map(|sms| machine(sms, schedule)));
    let mut index = 0;
    for m in [1, 33, 64, 129, 260] {
        for n in [8, 129, 300, 640, 900] {
            for k in [16, 160, 1168, 1424] {
                let config = sharing[index % count];
                let scheme = config.scheme;
                let mut case = Case::new([m, n, k, [1, 1, 1, 2][index / 3 % 4]])
                    .decoded_to(scheme.format, scheme.operand, index)
                    .kernel(config.name, [Split::StreamK, Split::None][index / count % 2]);
                case.shared_weights = index % 7 == 3;
                case.generator = Generator::ALL[index % 3];
                case.seed = index as u64;
                let result = case.check(&machines[index % 5][index / 5 % 3]);
                assert_eq!(result.plan.cluster, 2);
                index += 1;
            }
        }
    }
}

/// Shared activations are read once for two CTAs, and are the same results.
#[test]
fn sharing_halves_what_is_read() {
    let (kernels, reports) = emulated(DEVICES[0], SCHEDULES[3]).observed();
    for (name, pair, tokens) in [
        ("gemm_sm90_nvfp4_f16_128x64", "gemm_sm90_nvfp4_f16_128x64_multicast2", 64),
        ("gemm_sm90_nvfp4_f16_128x128", "gemm_sm90_nvfp4_f16_128x128_multicast2", 128),
    ] {
        for split in [Split::StreamK, Split::None] {
            // Three row tiles: the last one's CTA has its half of the activations still to copy.
            let [one, two] = [name, pair].map(|name| {
                let case = Case::new([tokens, 384, 1280, 1]).activations(F16);
                let case = Case { generator: Generator::FullRange, ..case };
                let result = case.kernel(name, split).check(&kernels);
                (result, reports.take()[0].counters.asynchronous)
            });
            if split == Split::None {
                assert_eq!(one.0.bytes, two.0.bytes, "{pair}");
            }
            let [one, two] = [one.1, two.1];
            let each = (tokens * 1280 * 2) as u64;
            assert_eq!((one.tensor_loads.bytes, one.multicast_bytes), (3 * each, 0), "{name}");
            assert_eq!(two.tensor_loads.bytes, 2 * each, "{pair}");
            assert_eq!(two.multicast_bytes, 2 * each, "{pair}");
        }
    }
}
