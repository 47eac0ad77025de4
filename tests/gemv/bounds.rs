//! GEMVs on the emulated machines of sm_120f: the bound of the time, as a multiple of the time that memory needs.

use fp4_formats::FloatType;
use fp4_formats::ScaleLayout::{Blocked128x4, Linear};
use nvfp4::gemv::{GemvOptions, GemvRun};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::shape::{GEMV_CONTEST, GemvShape};
use nvfp4_tests::bounds::{Needed, Spread, bound, machines};
use nvfp4_tests::emulated_on;
use ptx_emu::Schedule;

/// The contest's shapes in either layout, and those of decoding.
#[test]
fn memory_is_the_limit_on_sm_120f() {
    let shapes = GEMV_CONTEST.into_iter().chain([GemvShape::of(7168, 4096, 1)]);
    for shape in shapes {
        let GemvShape { m, k, l } = shape;
        for layout in [Linear, Blocked128x4] {
            let (a, b) = Generator::Contest.gemv(shape, [layout; 2], 1).expect("inputs");
            for gpu in machines() {
                let (kernels, reports) = emulated_on(gpu.clone(), Schedule::Eager).observed();
                let options = GemvOptions::new().output(FloatType::F16);
                let run = GemvRun::new(&kernels, &a, &b, options).expect("planned");
                let plan = run.run().expect("runs").plan;
                // As many CTAs as SMs have at once have all rows.
                let operands = (l * (m + 1) * (k / 2 + k / 16)) as u64;
                let needed = Needed { operands, result: (2 * l * m) as u64, products: 0 };
                let bound = bound(&reports.take(), &gpu, needed, Spread::Even);
                assert!(bound.over <= 1.05, "{} {shape}: {bound:?}\n{plan}", gpu.name);
            }
        }
    }
}
