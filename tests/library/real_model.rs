//! Linear layers of a real model, on emulated machines: every one of a block as a GEMV, and
//! one as a GEMM, the example `real_layer`.
//!
//! NVFP4_TEST_MODEL names the `model.safetensors` of all-MiniLM-L6-v2, which
//! `cargo xtask fetch-model` fetches and `cargo xtask test` passes on. Without
//! it the tests are skipped.

#[path = "../../lab/examples/real_layer/compare.rs"]
mod compare;

use fp4_formats::ScaleLayout;
use nvfp4::gemv::GemvOptions;
use nvfp4_checkpoint::{Checkpoint, Model};
use nvfp4_lab::layer::{self, ActivationSource};
use nvfp4_tests::{REAL_LAYERS, SCHEDULES, emulated, real_model};

/// The model; without it the test is skipped.
fn model() -> Option<Checkpoint> {
    Some(Checkpoint::open(&real_model()?).expect("a readable checkpoint"))
}

/// A layer with 16-bit activations quantises the weights alone, which shows: about 3 dB.
#[test]
fn a_layer_as_gemm() {
    let Some(model) = model() else { return };
    for device in ["emu:h200", "emu:b200", "emu:rtx4090"] {
        let kernels = emulated(device, SCHEDULES[2]);
        let compared = compare::compare(&kernels, &model, 16).expect("runs");
        for compared in &compared {
            assert!(compared.verified, "{device}: {compared}");
            assert!((14.0..40.0).contains(&compared.sqnr_db), "{device}: {compared}");
            assert!(compared.relative_error < 0.2, "{device}: {compared}");
        }
        let [w4a16, w4a4] = compared.as_slice() else { panic!("{} products", compared.len()) };
        assert_eq!((w4a16.name, w4a4.name), ("W4A16", "W4A4"));
        assert!(w4a16.sqnr_db > w4a4.sqnr_db + 1.0, "{device}: {w4a16}; {w4a4}");
    }
}

#[test]
fn every_linear_layer_of_a_block() {
    let Some(model) = model() else { return };
    for device in ["emu:h200", "emu:b200", "emu:rtx4090"] {
        let kernels = emulated(device, SCHEDULES[3]);
        let model = Model::open(model.path()).expect("a readable checkpoint");
        for (layer, m, k) in REAL_LAYERS {
            let name = &format!("encoder.layer.0.{layer}.weight");
            for layout in ScaleLayout::ALL {
                let (report, _) = layer::run(
                    &kernels,
                    &model,
                    layer::Weight { tensor: name, expert: None },
                    &ActivationSource::Embedding { token: None },
                    layout,
                    GemvOptions::default(),
                )
                .unwrap_or_else(|e| panic!("{name}: {e}"));
                assert!(report.verified, "{name} on {device}:\n{report}");
                assert_eq!(report.shape, format!("gemv:{m}x{k}x1"));
                // Two operands with 4-bit elements: about 20 dB. A wrong layout, nibble order
                // or scale gives noise, around or below 0 dB.
                assert!(
                    (14.0..40.0).contains(&report.sqnr_db),
                    "{name} on {device}: SQNR {:.1} dB",
                    report.sqnr_db
                );
            }
        }
    }
}
