//! The harness of the GEMV tests.

use fp4_formats::ScaleLayout;
use nvfp4::device::Kernels;
use nvfp4::gemv::{GemvOptions, GemvResult, GemvRun};
use nvfp4::shape::GemvShape;
use nvfp4_lab::generate::Generator;
use nvfp4_lab::oracle::{self, Verification};

/// One GEMV, its inputs and the way it is run.
#[derive(Debug, Clone)]
pub struct Case {
    /// Problem.
    pub shape: GemvShape,
    /// Inputs.
    pub generator: Generator,
    /// Layouts of the activations' and the weights' scales.
    pub layouts: [ScaleLayout; 2],
    /// Alpha, output, overrides.
    pub options: GemvOptions,
    /// Seed of the inputs.
    pub seed: u64,
}

impl Case {
    /// Runs the case and compares with the f64 oracle.
    pub fn run(&self, kernels: &Kernels) -> (GemvResult, Verification) {
        let (a, b) = self.generator.gemv(self.shape, self.layouts, self.seed).expect("inputs");
        let reference = oracle::gemv(&a, &b, self.options.alpha).expect("the oracle");
        let prepared = GemvRun::new(kernels, &a, &b, self.options.clone())
            .unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let result = prepared.run().unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let reference = reference.with_additions(result.plan.additions);
        let verification = reference.verify(&result.values(), result.output);
        (result, verification)
    }

    /// Runs the case and fails with the first mismatch.
    pub fn check(&self, kernels: &Kernels) -> GemvResult {
        let (result, verification) = self.run(kernels);
        assert!(verification.passed(), "{self:?}\n{}\n{}", result.plan, verification.summary());
        result
    }
}
