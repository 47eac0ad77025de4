//! `dist`: what a GPU machine without cargo needs.

use crate::{build_kernels, run};
use anyhow::{Context, Result};
use fp4_formats::Arch;
use nvfp4_manifest::{FILE_NAME, Module};
use std::process::ExitCode;

const README: &str = "\
Everything needed on a machine with an NVIDIA GPU since Ampere and a driver: for CUDA 12.7
(565) or later for an H100 or H200, for CUDA 12.8 (570) for a B200, for CUDA 12.9 (575) for a B300,
an RTX 50, an RTX PRO Blackwell or a DGX Spark, for CUDA 11.4 (470) or later for all others:

    ./nvfp4 doctor
    ./nvfp4 bench --shape gemv:7168x16384x1 --vs cublas
    ./nvfp4 selftest --report selftest.json

The kernels are found in kernels/ beside the program. cuBLAS, for --vs cublas,
is looked for as libcublas.so.13 or .12, for activations in e4m3 as libcublasLt
beside it; NVFP4_CUBLAS_PATH names it elsewhere.
";

/// Builds and collects.
pub fn run() -> Result<ExitCode> {
    for line in build_kernels::inventory()?.iter().filter_map(build_kernels::missing) {
        say!("{line}: compiling all");
    }
    build_kernels::refresh()?;
    let dist = run::root().join("target/dist");
    let program = run::Program::Nvfp4.build(run::Profile::Release)?;
    if dist.exists() {
        std::fs::remove_dir_all(&dist).with_context(|| format!("clearing {}", dist.display()))?;
    }
    let mut files = vec![(program, dist.join("nvfp4"))];
    for arch in Arch::ALL {
        let manifest = build_kernels::manifest(arch)?;
        let modules = manifest.modules.iter().flat_map(Module::files);
        for name in modules.map(|file| file.name.as_str()).chain([FILE_NAME]) {
            files.push((
                build_kernels::folder(arch).join(name),
                dist.join("kernels").join(arch.name()).join(name),
            ));
        }
    }
    for (from, to) in files {
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let bytes = std::fs::copy(&from, &to)
            .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        say!("{:>10} {}", bytes, to.display());
    }
    std::fs::write(dist.join("README.txt"), README)?;
    say!("copy {} to the GPU machine", dist.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page and the packed text name the oldest driver of every target.
    #[test]
    fn drivers_are_those_of_the_targets() {
        let page = run::root().join("docs/new-gpu.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        for arch in Arch::ALL {
            let driver = arch.ptx_version().driver().to_string();
            assert!(README.contains(&format!("CUDA {driver}")), "{arch}: {driver}");
            let of = |line: &&str| line.starts_with('|') && line.contains(arch.name());
            let rows: Vec<&str> = page.lines().filter(of).collect();
            assert!(rows.iter().any(|row| row.contains(&driver)), "{arch}: {driver}: {rows:?}");
        }
    }
}
