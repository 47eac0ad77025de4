//! A whole mixture of experts as an engine would run it again and again: from routing to combining,
//! with tokens and choices that change from launch to launch.
//!
//! On cuda:0 where there is one, as one CUDA graph, recorded in the mode that refuses whatever waits or
//! allocates on any thread; on the emulated machines, which have no graphs, launched again.

use fp4_formats::Nvfp4;
use nvfp4::device::Kernels;
use nvfp4_lab::moe::{MoeOperands, MoeRun};
use nvfp4_tests::engine::{Engine, KERNEL, gpu};
use nvfp4_tests::mixture::{Mixture, MixtureCase, small};
use nvfp4_tests::{MACHINES, SCHEDULES, emulated};

/// The seeds of tokens and choices that are launched one after the other.
const STEPS: [u64; 4] = [1, 2, 3, 1];

/// Asserts that every step is right, and that nothing was found wrong. The result.
fn check(run: &MoeRun, operands: &MoeOperands<'_, Nvfp4>, what: &str) -> Vec<u8> {
    for check in run.check(operands).expect("readable") {
        assert!(check.verified, "{what}\n{check}");
    }
    assert_eq!(run.problem().expect("readable"), None, "{what}");
    run.result().expect("readable")
}

/// Runs a layer with each step's tokens, by `launch`; results differ where tokens do.
fn replayed(
    kernels: &Kernels,
    case: MixtureCase,
    prepare: impl FnOnce(&MoeRun) -> Box<dyn Fn(&MoeRun)>,
) {
    let what = format!("{}: {case:?}", kernels.device().choice());
    let mixture = Mixture::<Nvfp4>::new(case, 7);
    let steps = STEPS.map(|seed| mixture.step(seed));
    let first = mixture.operands(&steps[0]);
    let weights = first.repack(kernels.device()).expect("weights");
    let run = MoeRun::new(kernels, &first, weights.each_ref()).expect("a layer");
    let before = kernels.device().allocations();
    let launch = prepare(&run);
    let mut results = Vec::new();
    for step in &steps {
        let operands = mixture.next(step, &first);
        run.write(&operands).expect("written");
        launch(&run);
        results.push(check(&run, &operands, &what));
    }
    assert_eq!(kernels.device().allocations(), before, "{what}: a launch allocates");
    let [one, two, three, again] = &results[..] else { panic!("four steps") };
    assert!(one != two && two != three && one != three, "{what}: choices change nothing");
    assert!(one == again, "{what}: the same tokens and choices give another result");
}

#[test]
fn emulated_layers_with_changing_choices() {
    for (at, case) in small().into_iter().enumerate() {
        for device in MACHINES {
            let kernels = emulated(device, SCHEDULES[at % 5]);
            replayed(&kernels, case, |_| Box::new(|run| run.launch().expect("a launch")));
        }
    }
}

#[test]
fn a_layer_is_one_graph() {
    let Some((_alone, kernels)) = gpu() else { return };
    for case in small() {
        let engine = std::rc::Rc::new(std::cell::RefCell::new(Engine::new()));
        let stream = engine.borrow().stream;
        // SAFETY: the stream is the engine's, which is dropped after everything else.
        let kernels = unsafe { kernels.with_stream(stream) }.expect("the primary context");
        let of_replays = engine.clone();
        replayed(&kernels, case, move |run| {
            // The first use of every kernel is recorded, too.
            let (graph, nodes) = of_replays.borrow_mut().record(|| run.launch().expect("recorded"));
            let steps = run.layer().steps().count();
            assert!(nodes.len() >= steps, "{nodes:?} for {steps} steps");
            assert!(nodes.iter().all(|&node| node == KERNEL), "{nodes:?}");
            Box::new(move |_| of_replays.borrow().replay(graph))
        });
        drop(kernels);
        drop(engine);
    }
}
