//! The example `expert_parallel` on emulated devices: rows that go to their experts' devices give the bits of one.

#[path = "../../host/examples/expert_parallel/layer.rs"]
mod layer;

use layer::{Form, Sizes, agrees};
use nvfp4_tests::{DEVICES, SCHEDULES, emulated};

#[test]
fn several_devices_give_the_bits_of_one() {
    let sizes = Sizes { experts: 6, top_k: 2, hidden: 64, between: 96 };
    for (form, device) in Form::ALL.into_iter().flat_map(|form| DEVICES.map(|at| (form, at))) {
        let found = agrees(sizes, form, [3, 4], || Ok(emulated(device, SCHEDULES[2])));
        assert!(found.expect("runs"), "{device}, {form:?}");
    }
}
