//! The kernels for sm_100f, which are those for sm_100a with other spellings: a GPU of the family
//! gives the same results by them.

use fp4_formats::gemm::sm100;
use fp4_formats::{Arch, FloatType, ScaleLayout};
use nvfp4::device::Kernels;
use nvfp4::kernels::KernelFiles;
use nvfp4_tests::gemm::{ActivationType, BLOCKED, Case};
use nvfp4_tests::{b300, emulated, kernels_dir, ptx};
use ptx_emu::{Gpu, Module, Schedule};

fn on(device: &str, arch: Arch) -> Kernels {
    let kernels = emulated(device, Schedule::Eager);
    assert_eq!(kernels.device().choice().arch, arch);
    kernels
}

/// A product by every configuration: the same bytes on a B200 and on a B300.
#[test]
fn products_are_the_same() {
    let [b200, b300] = [on("emu:b200", Arch::Sm100a), on("emu:b300", Arch::Sm100f)];
    for config in &sm100::CONFIGS {
        let k = (config.step() * (config.k_parts() + 1)) as usize;
        let mut case = Case::new([40, 200, k, 1]).format(config.format).result(FloatType::Bf16);
        case.layout = ScaleLayout::Blocked128x4;
        case.activations = config.activations.map_or(BLOCKED, ActivationType::as_they_are);
        let case = case.kernel(config.name, config.split);
        let [one, other] = [&b200, &b300].map(|kernels| case.check(kernels));
        assert_eq!([one.plan.arch, other.plan.arch], [Arch::Sm100a, Arch::Sm100f]);
        assert!(one.bytes == other.bytes, "{}", config.name);
    }
}

/// The emulated B300 takes every module of the family's target, and none of sm_100a's.
#[test]
fn only_the_family_target_runs_on_a_b300() {
    let modules = |arch| {
        let files = KernelFiles::find(arch, Some(&kernels_dir())).expect("kernels are built");
        let modules = files.modules().expect("all are compiled");
        modules.into_iter().map(move |m| (m.family, files.ptx(&m).expect("PTX")))
    };
    for (family, text) in modules(Arch::Sm100f) {
        Module::load(&text, &b300()).unwrap_or_else(|error| panic!("{family}: {error}"));
    }
    for (family, text) in modules(Arch::Sm100a) {
        Module::load(&text, &b300()).expect_err(family.name());
    }
    assert!(modules(Arch::Sm100a).count() == modules(Arch::Sm100f).count());
}

/// The module that scales vectors spells them as `f` targets must, and only so.
#[test]
fn scale_vectors_are_spelled_by_their_length() {
    for (kernel, old, new) in [
        ("gemm_sm100_nvfp4_128x64", ".block_scale.scale_vec::4X", ".block_scale.block16"),
        ("gemm_sm100_mxfp4_128x64", ".block_scale.scale_vec::2X", ".block_scale.block32"),
    ] {
        let [a, f] = [Arch::Sm100a, Arch::Sm100f].map(|arch| ptx(arch, kernel));
        let count = a.matches(old).count();
        assert!(count > 0 && f.matches(new).count() == count && !f.contains("scale_vec"));
        // As the emulator says of a module whose spelling is left.
        let version = |text: &str| -> String {
            let line = text.lines().find(|line| line.starts_with(".version"));
            line.expect("a module says its version").to_owned()
        };
        let wrong = a.replace(".target sm_100a", ".target sm_100f");
        let wrong = wrong.replace(&version(&a), &version(&f));
        let error = Module::load(&wrong, &Gpu::b300()).expect_err("refused").to_string();
        assert!(error.contains("scale_vec"), "{error}");
    }
}
