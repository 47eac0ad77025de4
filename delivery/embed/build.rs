//! Finds or compiles the kernels, compresses them, and writes the table of what is embedded. The
//! crate's documentation says where kernels come from.

#[path = "src/parts.rs"]
mod parts;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail};
use fp4_formats::{Arch, Family};
use nvfp4_kernels_build::Workshop;
use nvfp4_manifest::{FILE_NAME, Manifest, Module};

use parts::{Part, parts};

/// Names a folder that the program looks in; nothing is embedded then.
const FOLDER_VARIABLE: &str = "NVFP4_KERNELS_AT";
/// The folder into which `cargo xtask package` puts modules, relative to this crate's folder.
const PACKAGED: &str = "compiled";
/// The sources of the kernels, relative to the repository's root.
const SOURCES: [&str; 6] = [
    "kernels-gpu/src",
    "kernels-gpu/Cargo.toml",
    "kernels-gpu/Cargo.lock",
    "cuda_std",
    "cuda_builder/src",
    "formats",
];
/// Level of compression: beyond it, modules become hardly smaller.
const LEVEL: u8 = 6;

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed={FOLDER_VARIABLE}");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/parts.rs");
    let variable = |name| env::var_os(name).with_context(|| format!("cargo sets {name}"));
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let table = match env::var_os(FOLDER_VARIABLE) {
        Some(_) => String::new(),
        None => {
            let families: Vec<Family> = Family::ALL.into_iter().filter(is_selected).collect();
            let folder = kernels(&here, &out, &families)?;
            let embed = |arch| embed(arch, &families, &folder, &out);
            Arch::ALL.into_iter().map(embed).collect::<Result<_>>()?
        }
    };
    let table = format!("static EMBEDDED: &[Embedded] = &[\n{table}];\n");
    fs::write(out.join("embedded.rs"), table).context("writing the table")
}

/// Says whether a feature of this build puts the family into the program.
fn is_selected(family: &Family) -> bool {
    parts(*family).iter().any(|part| match part {
        Part::Vectors => true,
        Part::Gemm => cfg!(feature = "gemm"),
        Part::Moe => cfg!(feature = "moe"),
    })
}

/// The folder with the kernels of all architectures.
fn kernels(here: &Path, out: &Path, families: &[Family]) -> Result<PathBuf> {
    println!("cargo:rerun-if-changed={PACKAGED}");
    let packaged = here.join(PACKAGED);
    if packaged.is_dir() {
        return Ok(packaged);
    }
    let Some(root) = here.ancestors().nth(2).filter(|root| root.join("kernels-gpu").is_dir())
    else {
        bail!(
            "{} has no kernels, and there is no checkout to compile them from",
            packaged.display()
        );
    };
    for source in SOURCES {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    let checkout = Workshop::of_checkout(root, |_| ());
    let there = checkout.inventory(&Arch::ALL, families)?;
    if there.iter().all(|inventory| inventory.missing.is_empty()) {
        return Ok(checkout.kernels);
    }
    let workshop =
        Workshop { kernels: out.join("kernels"), intermediate: out.join("gpu"), ..checkout };
    workshop.build(&Arch::ALL, families, false, None).context("compiling the kernels")?;
    Ok(workshop.kernels)
}

/// Compresses the modules of `arch` in `folder`; returns their entry of the table.
fn embed(arch: Arch, families: &[Family], folder: &Path, out: &Path) -> Result<String> {
    let folder = folder.join(arch.name());
    let out = out.join("compressed").join(arch.name());
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let mut manifest: Manifest = Manifest::read(&folder.join(FILE_NAME))?;
    manifest.modules.retain(|module| families.contains(&module.family));
    let path = out.join(FILE_NAME);
    fs::write(&path, serde_json::to_string(&manifest)?).context("writing a manifest")?;
    let mut entry = format!(
        "Embedded {{ arch: {:?}, manifest: include_str!({path:?}), files: &[\n",
        arch.name()
    );
    for file in manifest.modules.iter().flat_map(Module::files) {
        let from = folder.join(&file.name);
        let contents = fs::read(&from).with_context(|| from.display().to_string())?;
        let path = out.join(format!("{}.deflate", file.name));
        fs::write(&path, miniz_oxide::deflate::compress_to_vec(&contents, LEVEL))
            .with_context(|| path.display().to_string())?;
        writeln!(entry, "    ({:?}, include_bytes!({path:?})),", file.name)?;
    }
    Ok(entry + "] },\n")
}
