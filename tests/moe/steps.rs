//! A layer of experts step by step: each step alone queues what the whole layer queues in its
//! place, and together they leave the same.

use std::sync::{Arc, Mutex};

use fp4_formats::Nvfp4;
use nvfp4::device::{Kernels, LaunchSpec};
use nvfp4::moe::MoeStep;
use nvfp4::observe::LaunchObserver;
use nvfp4_lab::moe::MoeRun;
use nvfp4_tests::mixture::{Mixture, small};
use nvfp4_tests::{MACHINES, emulated};
use ptx_emu::{LaunchReport, Schedule};

/// Kernel, grid and threads of a CTA of each launch.
type Launches = Vec<(String, [u32; 3], [u32; 3])>;

/// An observer that keeps what was launched.
#[derive(Default)]
struct Kept(Mutex<Launches>);

impl Kept {
    /// The launches since the last call.
    fn take(&self) -> Launches {
        std::mem::take(&mut *self.0.lock().expect("nobody failed"))
    }
}

impl LaunchObserver for Kept {
    fn launching(&self, spec: &LaunchSpec<'_>) {
        let launch = (spec.entry.to_string(), spec.grid, spec.block);
        self.0.lock().expect("nobody failed").push(launch);
    }

    fn launched(&self, _: &LaunchReport) {}
}

/// The same kernels, and what is launched with them.
fn watched(kernels: &Kernels) -> (Kernels, Arc<Kept>) {
    let kept = Arc::new(Kept::default());
    (kernels.with_observer(kept.clone()), kept)
}

/// Layers of every kind: routed or not, quantised or not, with experts elsewhere, biases and a shared expert. The
/// tokens change in between, which no step but the last shows in the result.
#[test]
fn steps_alone_make_the_layer() {
    for case in small() {
        for device in MACHINES {
            let what = format!("{device}: {case:?}");
            let (kernels, kept) = watched(&emulated(device, Schedule::Eager));
            let mixture = Mixture::<Nvfp4>::new(case, 7);
            let tokens = [1, 2].map(|seed| mixture.step(seed));
            let first = mixture.operands(&tokens[0]);
            let weights = first.repack(kernels.device()).expect("weights");
            let run = || MoeRun::new(&kernels, &first, weights.each_ref()).expect("a layer");
            let (whole, alone) = (run(), run());
            let steps: Vec<MoeStep> = whole.layer().steps().collect();
            let mut before = None;
            for tokens in &tokens {
                let operands = mixture.next(tokens, &first);
                for run in [&whole, &alone] {
                    run.write(&operands).expect("written");
                }
                whole.launch().expect("a launch");
                let (of_layer, right) = (kept.take(), whole.result().expect("readable"));
                assert!(of_layer.len() >= steps.len(), "{what}: {of_layer:?}");

                let mut of_steps = Launches::new();
                for &step in &steps {
                    // Before the first launch there is no result.
                    assert!(alone.result().ok() == before, "{what}: before {}", step.name());
                    alone.launch_step(step).unwrap_or_else(|error| panic!("{what}: {error}"));
                    let launches = kept.take();
                    assert!(!launches.is_empty(), "{what}: {} launches nothing", step.name());
                    of_steps.extend(launches);
                    let so_far = &of_layer[..of_steps.len().min(of_layer.len())];
                    assert_eq!(of_steps, so_far, "{what}: up to {}", step.name());
                }
                assert_eq!(of_steps.len(), of_layer.len(), "{what}");
                let got = alone.result().expect("readable");
                let differs = got.iter().zip(&right).position(|(a, b)| a != b);
                assert_eq!((got.len(), differs), (right.len(), None), "{what}: first other byte");
                for check in alone.check(&operands).expect("readable") {
                    assert!(check.verified, "{what}\n{check}");
                }
                assert_eq!(alone.problem().expect("readable"), None, "{what}");
                assert!(before.as_ref() != Some(&right), "{what}: tokens change nothing");
                before = Some(right);
            }
            // Steps leave what they read: each may be repeated.
            for &step in &steps {
                alone.launch_step(step).expect("again");
                assert!(alone.result().ok() == before, "{what}: after another {}", step.name());
            }
        }
    }
}
