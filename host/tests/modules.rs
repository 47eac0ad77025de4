//! Modules of kernels: loaded when first used, and refused by name where they are missing or are
//! not those of this program.

use crate::support::{Folder, write_kernels, write_no_kernels};
use fp4_formats::stamp::STAMP;
use fp4_formats::{Arch, Family, ceiling, gemv};
use nvfp4::device::{Device, Kernels};
use nvfp4::error::Error;
use nvfp4::kernels::{KernelFiles, KernelSource, KernelsError};
use nvfp4_manifest::{File, Manifest, stamp, stamped};

const PTX: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";

fn open(folder: &Folder) -> Kernels {
    let device = Device::open(&"emu:h200".parse().expect("known")).expect("opens");
    device.kernels(Some(folder.path())).expect("a manifest")
}

fn refused(kernels: &Kernels, entry: &str) -> KernelsError {
    match kernels.load([entry]) {
        Err(Error::Kernels(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_module_is_loaded_when_it_is_used() {
    let folder = Folder::new("modules-lazy");
    write_no_kernels(folder.path(), Arch::Sm90a);
    let kernels = open(&folder);
    assert!(kernels.loaded().is_empty());
    for _ in 0..2 {
        kernels.load(gemv::CONFIGS.iter().map(|config| config.name)).expect("loads");
        let families: Vec<Family> = kernels.loaded().iter().map(|module| module.family).collect();
        assert_eq!(families, [Family::Gemv]);
    }
    let shared = kernels.clone();
    shared.load([ceiling::NAME]).expect("loads");
    assert_eq!(kernels.loaded().len(), 2);
    assert_eq!(kernels.files().check().map_err(|error| error.to_string()), Ok(()));
}

#[test]
fn families_that_are_missing_or_stale_are_named() {
    let folder = Folder::new("modules-missing");
    let gemv = gemv::CONFIGS[0].name;
    write_kernels(folder.path(), Arch::Sm90a, &[(Family::Gemv, PTX, &[gemv])], 1);
    let kernels = open(&folder);
    kernels.load([gemv]).expect("it is there");

    let error = refused(&kernels, ceiling::NAME);
    assert!(matches!(error, KernelsError::NoFamily { family: Family::Ceiling, .. }), "{error}");
    // The folder is not that of the build, so that no compiler is asked.
    let command = "no module of ceiling: `cargo xtask build-kernels --arch sm_90a --only ceiling`";
    assert!(error.to_string().contains(command), "{error}");
    let others = Family::of(Arch::Sm90a).count() - 1;
    assert_eq!(kernels.files().missing().len(), others);
    let error = refused(&kernels, gemv::CONFIGS[1].name);
    assert!(matches!(error, KernelsError::Stale { family: Family::Gemv, .. }), "{error}");
    assert!(error.to_string().contains("the module of gemv is stale"), "{error}");
    let error = refused(&kernels, "gemm");
    assert!(matches!(error, KernelsError::NoKernel { .. }), "{error}");
    assert!(kernels.files().check().is_err());
}

#[test]
fn files_that_the_manifest_does_not_describe_are_refused() {
    let folder = Folder::new("modules-changed");
    write_no_kernels(folder.path(), Arch::Sm90a);
    let module = folder.file("sm_90a").join("ceiling.ptx");
    std::fs::write(&module, format!("{PTX}\n")).expect("written");
    let error = refused(&open(&folder), ceiling::NAME);
    assert!(matches!(error, KernelsError::Changed { family: Family::Ceiling, .. }), "{error}");
    std::fs::remove_file(&module).expect("removed");
    let error = refused(&open(&folder), ceiling::NAME);
    assert!(matches!(error, KernelsError::Unreadable { family: Family::Ceiling, .. }), "{error}");
}

#[test]
fn manifests_that_are_others_are_refused() {
    let folder = Folder::new("modules-others");
    write_no_kernels(folder.path(), Arch::Sm90a);
    std::fs::rename(folder.file("sm_90a"), folder.file("sm_100a")).expect("renamed");
    let error = KernelFiles::find(Arch::Sm100a, Some(folder.path())).expect_err("refused");
    assert!(error.to_string().ends_with("architecture must be sm_100a, got sm_90a"), "{error}");
    std::fs::write(folder.file("sm_100a").join("manifest.json"), "{}").expect("written");
    let error = KernelFiles::find(Arch::Sm100a, Some(folder.path())).expect_err("refused");
    assert!(matches!(error, KernelsError::Manifest(_)), "{error}");
}

/// Kernels that were compiled with another version of the contract crate may have the same names and
/// parameter sizes, and another layout.
#[test]
fn modules_with_another_stamp_are_refused() {
    let both = [stamp(Some(STAMP)), stamp(Some(1))];
    let is_named = |error: &KernelsError| {
        let text = error.to_string();
        matches!(error, KernelsError::OtherStamp { family: Family::Gemv, .. })
            && both.iter().all(|stamp| text.contains(stamp))
    };
    let folder = Folder::new("modules-stamp");
    write_no_kernels(folder.path(), Arch::Sm90a);
    let path = folder.file("sm_90a").join("manifest.json");
    let written: Manifest = Manifest::read(&path).expect("a manifest");
    let write = |manifest: &Manifest| {
        std::fs::write(&path, serde_json::to_string(manifest).expect("JSON")).expect("written");
    };
    let at = written.modules.iter().position(|module| module.family == Family::Gemv);
    let at = at.expect("there are GEMVs");

    let mut other = written.clone();
    other.modules[at].stamp.clone_from(&both[1]);
    write(&other);
    let error = KernelFiles::find(Arch::Sm90a, Some(folder.path())).expect_err("refused");
    assert!(is_named(&error), "{error}");

    // The text counts, too, whatever the manifest says.
    let mut other = written.clone();
    let text = stamped(PTX, 1);
    std::fs::write(folder.file("sm_90a").join("gemv.ptx"), &text).expect("written");
    other.modules[at].ptx = File::of("gemv.ptx", text.as_bytes());
    write(&other);
    let error = refused(&open(&folder), gemv::CONFIGS[0].name);
    assert!(is_named(&error), "{error}");
    let gemv = format!("{text}.visible .entry {}() {{ ret; }}\n", gemv::CONFIGS[0].name);
    let error = KernelFiles::from_ptx([gemv]).expect_err("refused");
    assert!(is_named(&error), "{error}");
}

#[test]
fn modules_can_be_given_as_ptx() {
    let head = stamped(PTX, STAMP);
    let entry = |name: &str| format!(".visible .entry {name}(.param .b64 p) {{ ret; }}\n");
    let gemv = gemv::CONFIGS[0].name;
    let text = [head.clone(), entry(gemv), entry("own"), entry(ceiling::NAME)].concat();
    let device = Device::open(&"emu:h200".parse().expect("known")).expect("opens");
    // SAFETY: the device is the emulator, which checks every access.
    let kernels = unsafe { Kernels::from_ptx(&device, [text.clone()]) }.expect("ours");
    assert!(matches!(kernels.files().place(), KernelSource::Given(_)));
    kernels.load([gemv, ceiling::NAME]).expect("both families are in the text");
    let error = refused(&kernels, gemv::CONFIGS[1].name);
    assert!(matches!(error, KernelsError::Stale { family: Family::Gemv, .. }), "{error}");

    let refused = |texts: &[String]| match KernelFiles::from_ptx(texts.to_vec()) {
        Err(KernelsError::NotOurs { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&[]), "modules");
    assert_eq!(refused(&[head.clone() + &entry("own")]), "kernels");
    assert_eq!(refused(&[text.replace("sm_90a", "sm_75")]), "target");
    assert_eq!(refused(&[text.clone(), text.replace("sm_90a", "sm_100a")]), "target");
    let b200 = Device::open(&"emu:b200".parse().expect("known")).expect("opens");
    // SAFETY: as above.
    let error = unsafe { Kernels::from_ptx(&b200, [text]) }.expect_err("another architecture's");
    assert!(error.to_string().contains("must be sm_100a, got sm_90a"), "{error}");
}
