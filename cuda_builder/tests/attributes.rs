//! `#[kernel]`'s arguments and the shared-memory markers, from Rust source to
//! PTX and, where ptxas is at hand, to machine code.

use cuda_builder::{BuildError, CudaBuilder, Fetch, ModuleSpec, ptxas};
use fp4_formats::Arch;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of the workspace")
}

/// The builder of the fixture, with the folder and the flags of the kernels: `core` is compiled once for both.
fn fixture(arch: Arch) -> CudaBuilder {
    let version = arch.ptx_version();
    let builder = CudaBuilder::new(root().join("cuda_builder/tests/fixture"), arch.name())
        .ptx_version(version.major, version.minor)
        .target_dir(root().join("target/gpu"))
        .fetch(Fetch::Allowed);
    arch.cfgs().into_iter().fold(builder, |builder, cfg| builder.cfg(cfg.name, cfg.value))
}

/// The text from an entry's `.visible` to the end of its directives.
fn head<'a>(ptx: &'a str, entry: &str) -> &'a str {
    let start = ptx.find(&format!(".visible .entry {entry}(")).expect("the entry exists");
    let end = start + ptx[start..].find('{').expect("a body");
    &ptx[start..end]
}

#[test]
fn attributes_reach_the_ptx() {
    // The fixture has a kernel of clusters.
    for arch in Arch::compiled().filter(|arch| arch.tensor() != fp4_formats::TensorFamily::MmaSync)
    {
        let built = fixture(arch).build().expect("the fixture builds");
        let ptx = &built.ptx;
        assert!(ptx.contains(&format!(".version {}\n", arch.ptx_version())), "{arch}");
        assert!(ptx.contains(&format!(".target {arch}\n")), "{arch}");

        let bounded = head(ptx, "bounded");
        for line in [
            ".reqntid 64, 2, 1\n",
            ".minnctapersm 3\n",
            ".maxnreg 64\n",
            ".reqnctapercluster 2, 1, 1\n",
        ] {
            assert!(bounded.contains(line), "{arch}: {line:?} is missing in\n{bounded}");
        }
        let sharing = head(ptx, "sharing");
        assert!(sharing.contains(".maxntid 96, 1, 1\n"), "{arch}:\n{sharing}");
        for absent in [".reqntid", ".minnctapersm", ".maxnreg", ".reqnctapercluster"] {
            assert!(!sharing.contains(absent), "{arch}: {absent} in\n{sharing}");
        }
        for declaration in [
            ".extern .shared .align 512 .b8 __dynamic_shared[];",
            ".shared .align 128 .b8 __static_shared_7[4096];",
        ] {
            assert_eq!(ptx.matches(declaration).count(), 1, "{arch}: {declaration}");
        }
        let find = |name| built.kernels.iter().find(|k| k.name == name).expect("listed");
        assert_eq!(find("bounded").threads, [64, 2, 1]);
        assert_eq!(find("bounded").cluster, [2, 1, 1]);
        assert_eq!(find("sharing").param_bytes, 12);
        assert!(!find("sharing").exact_threads);

        let tools = root().join("target/cuda-tools");
        let Some(assembler) = ptxas::find(&tools) else {
            skipped::part(format!("machine code for {arch}"), "no ptxas on this machine");
            continue;
        };
        let folder = std::env::temp_dir().join(format!("cuda-builder-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let path = folder.join(format!("{arch}.ptx"));
        std::fs::write(&path, ptx).expect("written");
        let usage = ptxas::report(&assembler, &path, arch.name(), &folder.join("out.cubin"));
        std::fs::remove_dir_all(&folder).expect("removed");
        let usage = usage.expect("ptxas accepts it");
        let sharing = usage.iter().find(|u| u.name == "sharing").expect("reported");
        assert!(sharing.shared >= 4096, "{arch}: {sharing:?}");
        assert_eq!(sharing.barriers, 1);
    }
}

/// A module has the kernels that were asked for and no others, and says what it was made of.
#[test]
fn modules_have_their_kernels() {
    let prepared = fixture(Arch::Sm90a).prepare().expect("the fixture's dependencies build");
    let spec = |name: &str, entries: &[&str]| ModuleSpec {
        name: name.into(),
        entries: entries.iter().map(ToString::to_string).collect(),
        cfgs: Vec::new(),
    };
    let module = prepared.module(&spec("two", &["bounded", "panics"])).expect("compiles");
    let names: Vec<&str> = module.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.contains(&"bounded") && names.contains(&"panics"), "{names:?}");
    assert!(!module.ptx.contains("sharing") && !module.ptx.contains("__dynamic_shared"));
    assert!(module.sources[0].ends_with("src/lib.rs"), "{:?}", module.sources);

    match prepared.module(&spec("none", &["bounded", "absent"])) {
        Err(BuildError::Entries { module, missing, unexpected }) => {
            assert_eq!(
                (module.as_str(), missing, unexpected),
                ("none", vec!["absent".into()], vec![])
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_crate_is_said_so() {
    let error =
        CudaBuilder::new("/nowhere", "sm_90a").build().expect_err("there is none").to_string();
    assert!(error.contains("Cargo.toml is missing"), "{error}");
}
