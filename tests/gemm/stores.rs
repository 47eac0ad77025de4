//! The path of sm_100a's GEMM results to memory: in boxes of the copy engine, or stored by threads.

use fp4_formats::FloatType;
use fp4_formats::gemm::sm100::Sm100Config;
use nvfp4_tests::SCHEDULES;
use nvfp4_tests::gemm::FLOATS;
use nvfp4_tests::gemm::tcgen05::{Product, config, without};
use ptx_emu::Schedule;

/// Every number of boxes of a warp and of columns of a box, accumulators that overlap,
/// pairs, splits, shares, 16-bit activations, narrow tiles.
const NAMES: [&str; 12] = [
    "gemm_sm100_nvfp4_128x64",
    "gemm_sm100_nvfp4_128x256_multicast2",
    "gemm_sm100_mxfp4_256x256_multicast2",
    "gemm_sm100_nvfp4_256x128_multicast2",
    "gemm_sm100_nvfp4_128x64_split2",
    "gemm_sm100_nvfp4_128x128_split4",
    "gemm_sm100_nvfp4_256x64_split4",
    "gemm_sm100_nvfp4_f16_128x64_split4",
    "gemm_sm100_mxfp4_bf16_128x64",
    "gemm_sm100_nvfp4_bf16_256x256",
    "gemm_sm100_nvfp4_128x16",
    "gemm_sm100_mxfp4_128x32",
];

/// Every type of the result, both orientations, with and without vectors, ragged: both
/// ways give the same bits, each only with its own kind of store.
#[test]
fn both_ways_give_the_same_bits() {
    let mut i = 0;
    for name in NAMES {
        for output in FLOATS {
            for swapped in [false, true] {
                let config = config(name);
                let k = config.step() * config.k_parts() + 32;
                // The first row and the last column of the last tile.
                let (m, n) = (config.rows() + 1, config.cluster_columns() - 8);
                let [m, n] = if swapped || config.only_swapped() { [n - 3, m + 7] } else { [m, n] };
                let mut product = Product::new(config, [m, n, k, 2]);
                product.swapped |= swapped;
                product.schedule = SCHEDULES[i % 5];
                product.case.result = output.into();
                product.case.alpha = 0.75;
                product.case.vectors = [i & 1 != 0, i & 2 != 0, i & 4 != 0];
                product.case.seed = i as u64;
                let copied = product.check();
                product.direct = true;
                let direct = product.check();
                let differs = copied.bytes.iter().zip(&direct.bytes).position(|(a, b)| a != b);
                assert_eq!(differs, None, "{product:?}: first byte that differs");
                let bytes = u64::from(m * n * 2 * output.bytes());
                let counters = copied.counters;
                assert_eq!(counters.global.writes, 0, "{product:?}");
                assert_eq!(counters.asynchronous.tensor_stores.bytes, bytes, "{product:?}");
                let stores = direct.counters.asynchronous.tensor_stores.operations;
                assert_eq!(stores, 0, "{product:?}");
                assert_eq!(direct.counters.global.bytes_written, bytes, "{product:?}");
                i += 1;
            }
        }
    }
}

/// Whole sectors, each written once, and no two lanes of a storing warp in a bank (decoding
/// ones meet where they read scales, with either way); threads that hold rows store twice
/// as many sectors.
#[test]
fn whole_sectors_and_no_bank_conflicts() {
    let run = |config: &'static Sm100Config, swapped, output: FloatType, direct| {
        let m = 2 * config.rows();
        let n = 2 * config.cluster_columns();
        let [m, n] = if swapped { [n, m] } else { [m, n] };
        let mut product = Product::new(config, [m, n, config.step() * config.k_parts(), 1]);
        (product.swapped, product.direct) = (swapped, direct);
        product.case.result = output.into();
        let counters = product.check().counters;
        let what = format!("{product:?}\n{:?}", counters.global);
        (counters, u64::from(m * n * output.bytes() / 32), what)
    };
    for name in NAMES {
        let config = config(name);
        for output in FLOATS {
            for swapped in [false, true] {
                if config.only_swapped() && !swapped {
                    continue;
                }
                let (counters, sectors, what) = run(config, swapped, output, false);
                assert_eq!(counters.global.sectors_written, sectors, "{what}");
                let conflicts = counters.shared_wavefronts - counters.shared_wavefronts_ideal;
                let others = if config.activations.is_some() {
                    let (direct, _, _) = run(config, swapped, output, true);
                    direct.shared_wavefronts - direct.shared_wavefronts_ideal
                } else {
                    0
                };
                assert_eq!(conflicts, others, "{what}");
            }
        }
        if !config.only_swapped() {
            let (counters, sectors, what) = run(config, false, FloatType::F16, true);
            assert_eq!(counters.global.sectors_written, 2 * sectors, "{what}");
        }
    }
}

/// Rows that are not multiples of 16 bytes, or do not begin at one, are stored by threads.
#[test]
fn rows_that_the_copy_engine_cannot_store() {
    for (n, output, shift, copied) in [
        (136, FloatType::F16, 0, true),
        (136, FloatType::Bf16, 16, true),
        (136, FloatType::F16, 8, false),
        (136, FloatType::F32, 4, false),
        (132, FloatType::F16, 0, false),
        (132, FloatType::F32, 0, true),
        (130, FloatType::F32, 0, false),
        (129, FloatType::Bf16, 0, false),
        (129, FloatType::Bf16, 2, false),
    ] {
        for swapped in [false, true] {
            let mut product = Product::new(config("gemm_sm100_nvfp4_128x64"), [70, n, 272, 3]);
            (product.swapped, product.shift) = (swapped, shift);
            product.case.result = output.into();
            let stores = product.check().counters.asynchronous.tensor_stores.operations;
            assert_eq!(stores > 0, copied, "{product:?}");
        }
    }
}

/// The instruction that the diagnoses name.
const STORE: &str = "cp.async.bulk.tensor.3d.global.shared::cta";

/// Each step from a thread's results to memory, left out or weakened, is diagnosed: under
/// most schedules, or where the copy engine is late enough to outlive its CTA.
#[test]
fn boxes_that_are_not_ordered_are_found() {
    let name = "gemm_sm100_nvfp4_128x64";
    let read = "cp.async.bulk.wait_group.read";
    for (what, from, to, diagnosis, least) in [
        ("the proxy fence", "fence.proxy.async.shared::cta;", "", "fence.proxy.async", 5),
        ("waiting for reads", &format!("{read} 1;"), "", STORE, 5),
        ("waiting long enough", &format!("{read} 1;"), &format!("{read} 2;"), STORE, 5),
        ("waiting at the end", "cp.async.bulk.wait_group 0;", "", STORE, 1),
    ] {
        let module = without(name, from, to);
        let schedules = [Schedule::Lazy].into_iter().chain((0..7).map(Schedule::Random));
        let found = schedules
            .enumerate()
            .filter(|&(i, schedule)| {
                let mut product = Product::new(config(name), [250, 256, 272, 1]);
                product.case.result = FLOATS[i % 3].into();
                (product.schedule, product.clusters) = (schedule, 1);
                product.run(&module).is_err_and(|error| {
                    let text = error.to_string();
                    assert!(text.contains(diagnosis), "{what}: {text}");
                    true
                })
            })
            .count();
        assert!(found >= least, "without {what}: {found} of 8 schedules");
    }
}
