//! `package`: the crates that are meant for others, as cargo packages them.

use crate::{build_kernels, run};
use anyhow::{Context, Result, ensure};
use fp4_formats::Arch;
use nvfp4_manifest::FILE_NAME;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Packages that others depend on, dependencies before dependents.
const PACKAGES: [&str; 15] = [
    "fp4-formats",
    "nvfp4-manifest",
    "cuda-lazy",
    "nvfp4-cuda",
    "ptx-emu-simd",
    "ptx-emu-core",
    "ptx-emu-bundle",
    "ptx-emu-conformance",
    "nvfp4-cuda-builder",
    "nvfp4-kernels-build",
    "nvfp4-kernels",
    "nvfp4",
    "nvfp4-gguf",
    "nvfp4-checkpoint",
    "nvfp4-lab",
];

/// The folder of kernels in the packed crate, which its build script takes before all others. It is
/// removed at the end: in a checkout it would hide changes of the kernels.
struct Compiled(PathBuf);

impl Drop for Compiled {
    fn drop(&mut self) {
        // A folder that stays is seen by `git status`.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Compiled {
    /// Copies the PTX of all architectures.
    fn new() -> Result<Self> {
        let compiled = Self(run::root().join("delivery/embed/compiled"));
        for arch in Arch::ALL {
            let mut manifest = build_kernels::manifest(arch)?;
            let folder = compiled.0.join(arch.name());
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            for module in &mut manifest.modules {
                // Machine code would exceed what registries take, and drivers compile the PTX.
                module.cubins.clear();
                let name = &module.ptx.name;
                copy(&build_kernels::folder(arch).join(name), &folder.join(name))?;
            }
            let path = folder.join(FILE_NAME);
            std::fs::write(&path, serde_json::to_string(&manifest)?)
                .with_context(|| path.display().to_string())?;
        }
        Ok(compiled)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

/// Builds the kernels, puts them beside `nvfp4-kernels`, packages all crates into `target/package`, and
/// builds each from its package and those of the others.
pub fn run() -> Result<ExitCode> {
    build_kernels::refresh()?;
    let _compiled = Compiled::new()?;
    let mut cargo = run::cargo();
    // The kernels are not under version control.
    cargo.args(["package", "--allow-dirty"]);
    cargo.args(PACKAGES.iter().flat_map(|name| ["--package", name]));
    succeeds(cargo)?;
    succeeds(candle())?;
    say!("packages in {} and candle/target/package", run::target().join("package").display());
    Ok(ExitCode::SUCCESS)
}

/// Packages the adapter to candle, which has its own workspace. `nvfp4` and `nvfp4-checkpoint` are
/// taken from this checkout, as no registry may have them. Packaged crates are not built again:
/// `cargo xtask test` builds them.
fn candle() -> Command {
    let mut cargo = run::cargo();
    cargo.args(["package", "--no-verify", "--allow-dirty", "--manifest-path", "candle/Cargo.toml"]);
    cargo.args(["--config", "patch.crates-io.nvfp4.path=\"host\""]);
    cargo.args(["--config", "patch.crates-io.nvfp4-checkpoint.path=\"checkpoint\""]);
    cargo
}

fn succeeds(mut cargo: Command) -> Result<()> {
    let status = cargo.status().context("running cargo")?;
    ensure!(status.success(), "cargo package failed ({status})");
    Ok(())
}
