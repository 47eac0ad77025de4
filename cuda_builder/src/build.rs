//! Runs cargo for the NVPTX target and collects the PTX.

use crate::compiler::{Compiler, Fetch};
use crate::error::BuildError;
use crate::ptx::{self, Kernel};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The PTX ISA version of the emitted modules: what driver 580 (CUDA 13.0)
/// accepts.
pub const PTX_VERSION: (u32, u32) = (9, 0);

/// A finished build.
#[derive(Debug, Clone)]
pub struct Built {
    /// The `.target`.
    pub target: String,
    /// The module's text.
    pub ptx: String,
    /// Its entry points.
    pub kernels: Vec<Kernel>,
    /// What compiled it.
    pub compiler: Compiler,
}

/// Builds one GPU crate for one target.
#[derive(Debug, Clone)]
pub struct CudaBuilder {
    crate_path: PathBuf,
    target: String,
    cfgs: Vec<String>,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    compiler: Option<Compiler>,
    fetch: Fetch,
}

impl CudaBuilder {
    /// Builds the crate in folder `path` for `target`, such as `sm_90a`.
    pub fn new(path: impl Into<PathBuf>, target: impl Into<String>) -> Self {
        Self {
            crate_path: path.into(),
            target: target.into(),
            cfgs: Vec::new(),
            copy_to: None,
            target_dir: None,
            compiler: None,
            fetch: Fetch::Never,
        }
    }

    /// Compiles with `--cfg name="value"`: what the target can do.
    pub fn cfg(mut self, name: &str, value: &str) -> Self {
        self.cfgs.push(format!("{name}=\"{value}\""));
        self
    }

    /// Where the PTX goes besides the return value.
    pub fn copy_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.copy_to = Some(path.into());
        self
    }

    /// Folder for cargo's intermediate files; the crate's own `target` unless
    /// told.
    pub fn target_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.target_dir = Some(path.into());
        self
    }

    /// Uses this compiler instead of searching for one.
    pub fn compiler(mut self, compiler: Compiler) -> Self {
        self.compiler = Some(compiler);
        self
    }

    /// Whether a missing source of `core` may be installed.
    pub fn fetch(mut self, fetch: Fetch) -> Self {
        self.fetch = fetch;
        self
    }

    /// Compiles.
    ///
    /// # Errors
    /// See [`BuildError`]; compiler messages are in the error.
    pub fn build(self) -> Result<Built, BuildError> {
        let manifest = self.crate_path.join("Cargo.toml");
        if !manifest.exists() {
            return Err(BuildError::NoCrate { path: self.crate_path });
        }
        let compiler = match &self.compiler {
            Some(compiler) => compiler.clone(),
            None => Compiler::find(self.fetch)?,
        };
        let target_dir = self.target_dir.clone().unwrap_or_else(|| self.crate_path.join("target"));
        // One folder for each compiler and target: cargo would otherwise rebuild
        // core whenever either changes.
        let target_dir = target_dir.join(format!("{}-{}", self.target, compiler.release));
        self.run_cargo("build", &compiler, &target_dir, &manifest)?;
        let output_file = target_dir
            .join("nvptx64-nvidia-cuda/release/deps")
            .join(format!("{}.s", crate_name(&manifest)?.replace('-', "_")));
        let raw = std::fs::read_to_string(&output_file).map_err(|source| BuildError::Io {
            action: "reading",
            path: output_file,
            source,
        })?;
        let (text, kernels) = ptx::finish(&raw, &self.target)?;
        if let Some(path) = &self.copy_to {
            write(path, &text)?;
        }
        Ok(Built { target: self.target, ptx: text, kernels, compiler })
    }

    /// Runs clippy over the crate with the flags of a build; any warning fails.
    ///
    /// # Errors
    /// [`BuildError::Compile`] with clippy's messages.
    pub fn clippy(self) -> Result<(), BuildError> {
        let manifest = self.crate_path.join("Cargo.toml");
        let compiler = match &self.compiler {
            Some(compiler) => compiler.clone(),
            None => Compiler::find(self.fetch)?,
        };
        let target_dir = self.target_dir.clone().unwrap_or_else(|| self.crate_path.join("target"));
        let target_dir = target_dir.join(format!("clippy-{}-{}", self.target, compiler.release));
        self.run_cargo("clippy", &compiler, &target_dir, &manifest)
    }

    fn run_cargo(
        &self,
        subcommand: &str,
        compiler: &Compiler,
        target_dir: &Path,
        manifest: &Path,
    ) -> Result<(), BuildError> {
        let mut flags = vec![
            format!("-Ctarget-cpu={}", self.target),
            format!("-Ctarget-feature=+ptx{}{}", PTX_VERSION.0, PTX_VERSION.1),
            "--emit=asm".into(),
            // The PTX is complete before linking; the NVPTX linker, which only
            // merges bitcode, is not part of every toolchain.
            "-Clinker=true".into(),
            // An array in registers needs every loop over it unrolled: a
            // run-time index would move it to local memory.
            "-Cllvm-args=-unroll-threshold=6000".into(),
            // Labels inside `{ }` scopes of PTX are scoped.
            "-Anamed_asm_labels".into(),
        ];
        flags.extend(self.cfgs.iter().map(|cfg| format!("--cfg={cfg}")));
        let name = crate_name(manifest)?;
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .arg(subcommand)
            .args(["--release", "-Zbuild-std=core", "--target", "nvptx64-nvidia-cuda"])
            .arg("--manifest-path")
            .arg(manifest)
            .arg("--target-dir")
            .arg(target_dir)
            .env("RUSTC", &compiler.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_BUILD_TARGET")
            .stdin(std::process::Stdio::null());
        if subcommand == "clippy" {
            command.args(["--", "-Dwarnings"]);
        }
        let out = command
            .output()
            .map_err(|source| BuildError::Spawn { program: "cargo".into(), source })?;
        if !out.status.success() {
            return Err(BuildError::Compile {
                krate: name,
                target: self.target.clone(),
                status: out.status.to_string(),
                output: String::from_utf8_lossy(&out.stderr).into_owned(),
            });
        }
        Ok(())
    }
}

/// The package name: what names the assembly file.
fn crate_name(manifest: &Path) -> Result<String, BuildError> {
    let text = std::fs::read_to_string(manifest).map_err(|source| BuildError::Io {
        action: "reading",
        path: manifest.into(),
        source,
    })?;
    let name = text
        .lines()
        .skip_while(|l| l.trim() != "[package]")
        .find_map(|l| l.trim().strip_prefix("name")?.trim_start().strip_prefix('='))
        .map(|v| v.trim().trim_matches('"').to_string());
    name.ok_or_else(|| BuildError::NoCrate { path: manifest.into() })
}

/// Writes through a temporary file, so that a reader never sees half of it.
///
/// # Errors
/// [`BuildError::Io`].
pub fn write(path: &Path, text: &str) -> Result<(), BuildError> {
    let io = |action| move |source| BuildError::Io { action, path: path.into(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(io("creating the folder of"))?;
    }
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    std::fs::write(&temporary, text).map_err(io("writing"))?;
    std::fs::rename(&temporary, path).map_err(io("replacing"))
}
