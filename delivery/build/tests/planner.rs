//! Modules are as fresh as the sources that kernels are compiled from: the contract is one of them, the
//! planner is not.

use anyhow::Result;
use cuda_builder::Kernel;
use fp4_formats::{Arch, Family, stamp};
use nvfp4_kernels_build::{Entry, Manifest, Workshop};
use nvfp4_manifest::{FILE_NAME, File, Module, Sources};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A source file of a checkout with nothing in it but one line.
const CONTRACT: &str = "formats/src/gemm/mod.rs";
const KERNEL: &str = "kernels-gpu/src/gemm/mod.rs";
const PLANNER: [&str; 7] = [
    "host/src/plan/gemv.rs",
    "host/src/plan/sm80.rs",
    "host/src/plan/sm90.rs",
    "host/src/plan/sm100.rs",
    "host/src/plan/sm120.rs",
    "host/src/plan/vector.rs",
    "host/src/plan/warps.rs",
];

fn write(root: &Path, file: &str, text: &str) -> Result<()> {
    let path = root.join(file);
    fs::create_dir_all(path.parent().expect("a folder"))?;
    Ok(fs::write(path, text)?)
}

/// The folder of an architecture, all of whose modules have the same PTX and the sources of one kernel.
fn modules(workshop: &Workshop, arch: Arch) -> Result<()> {
    let ptx = "// PTX\n";
    let files = vec![PathBuf::from(KERNEL)];
    let sources = Sources { digest: workshop.digest(&files)?, files };
    let module = |family: Family| {
        let name = format!("{family}.ptx");
        fs::write(workshop.folder(arch).join(&name), ptx)?;
        let kernel = |name: &str| Kernel {
            name: name.into(),
            threads: [0; 3],
            exact_threads: false,
            min_blocks: 0,
            max_registers: 0,
            cluster: [0; 3],
            param_bytes: 0,
            parameters: 1,
        };
        let entries = family.entries(arch);
        Ok(Module {
            family,
            ptx: File::of(name, ptx.as_bytes()),
            cubins: Vec::new(),
            stamp: nvfp4_manifest::stamp(Some(stamp::STAMP)),
            compiler: "rustc".into(),
            sources: sources.clone(),
            kernels: entries
                .map(|entry| Entry { kernel: kernel(entry), resources: BTreeMap::new() })
                .collect(),
        })
    };
    fs::create_dir_all(workshop.folder(arch))?;
    let modules = Family::of(arch).map(module).collect::<Result<_>>()?;
    let sources = workshop.digest(&[])?;
    let manifest = Manifest { arch, ptx_version: "9.0".into(), sources, modules };
    let text = serde_json::to_string(&manifest)?;
    Ok(fs::write(workshop.folder(arch).join(FILE_NAME), text)?)
}

/// Whether every module of the architectures that are compiled is fresh.
fn is_complete(workshop: &Workshop) -> Result<bool> {
    let archs: Vec<Arch> = Arch::compiled().collect();
    let found = workshop.inventory(&archs, &Family::ALL)?;
    Ok(found.iter().all(|found| !found.compiled.is_empty() && found.missing.is_empty()))
}

#[test]
fn a_constant_of_the_planner_recompiles_no_kernel() -> Result<()> {
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = std::env::temp_dir().join(format!("nvfp4-planner-{}", std::process::id()));
    let workshop = Workshop::of_checkout(&root, |_| {});
    for file in ["kernels-gpu/Cargo.toml", "kernels-gpu/Cargo.lock"] {
        write(&root, file, "\n")?;
    }
    for file in ["cuda_std/src/lib.rs", "cuda_builder/src/lib.rs", CONTRACT, KERNEL] {
        assert!(real.join(file).is_file(), "{file} is not in the checkout");
        write(&root, file, "//! One line.\n")?;
    }
    for file in PLANNER {
        fs::create_dir_all(root.join("host/src/plan"))?;
        fs::copy(real.join(file), root.join(file))?;
    }
    for arch in Arch::compiled() {
        modules(&workshop, arch)?;
    }
    assert!(is_complete(&workshop)?);
    for file in PLANNER {
        let text = fs::read_to_string(root.join(file))?;
        let (before, number) =
            text.split_once(": u32 = ").or(text.split_once(": u64 = ")).expect("a constant");
        write(&root, file, &format!("{before}: u32 = 1{number}"))?;
        assert!(is_complete(&workshop)?, "{file}");
    }
    for file in [CONTRACT, KERNEL] {
        write(&root, file, "//! Another line.\n")?;
        assert!(!is_complete(&workshop)?, "{file}");
        write(&root, file, "//! One line.\n")?;
        assert!(is_complete(&workshop)?, "{file}");
    }
    Ok(fs::remove_dir_all(root)?)
}

/// Modules that are compiled say which files the compiler read; the stamp is of the contract's.
#[test]
fn compiled_modules_are_made_of_kernels_alone() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workshop = Workshop::of_checkout(&root, |_| {});
    for arch in Arch::ALL {
        for module in workshop.modules(arch) {
            let other = |file: &&PathBuf| !file.starts_with("kernels-gpu/src");
            assert_eq!(module.sources.files.iter().find(other), None, "{arch}/{}", module.family);
        }
    }
    Ok(())
}
