//! The example `tensor_parallel` on emulated devices: parts of an MLP add up to the whole.

#[path = "../../host/examples/tensor_parallel/mlp.rs"]
mod mlp;

use mlp::{BOUND, Mlp, Sizes, on_several_devices, relative_error};
use nvfp4::parallel::Shard;
use nvfp4_tests::{SCHEDULES, emulated};

const SIZES: Sizes = Sizes { tokens: 8, hidden: 128, between: 192 };

#[test]
fn parts_add_up_to_the_whole() {
    let mlp = Mlp::random(SIZES).expect("quantised");
    let x = mlp::tokens(SIZES).expect("finite");
    for device in ["emu:h200", "emu:b200"] {
        let open = || Ok(emulated(device, SCHEDULES[2]));
        let kernels = emulated(device, SCHEDULES[2]);
        let place = |mlp: &Mlp| mlp.place(&kernels, SIZES.tokens).and_then(|placed| placed.run(&x));
        let whole = place(&mlp).expect("runs");
        for ranks in [2, 3] {
            let sum = on_several_devices(&mlp, &x, ranks, SIZES.tokens, open).expect("runs");
            let error = relative_error(&sum, &whole);
            assert!(error < BOUND, "{device}, {ranks} devices: {error:.1e}");
        }
        // One part alone is far from it.
        let part = mlp.part(Shard::new(0, 2).expect("valid")).expect("whole blocks");
        let error = relative_error(&place(&part).expect("runs"), &whole);
        assert!(error > 0.3, "{device}: {error:.1e}");
    }
}
