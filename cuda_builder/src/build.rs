//! Runs cargo and rustc for the NVPTX target and collects the PTX.
//!
//! cargo builds what the crate depends on, `core` included, and checks the crate with no kernel
//! selected. rustc then compiles the crate once for each module, with the kernels of that module
//! selected: cargo has one output for a package, and its lock would keep modules from compiling
//! side by side.

use crate::compiler::{Compiler, Fetch};
use crate::error::BuildError;
use crate::ptx::{self, Kernel};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The PTX ISA version of the emitted modules: what driver 580 (CUDA 13.0)
/// accepts.
pub const PTX_VERSION: (u32, u32) = (9, 0);

const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// The profile of the crate and of all that it depends on, as cargo and as rustc spell it. With
/// fat LTO and one unit of code generation the assembly file is one whole module.
const PROFILE: [[&str; 2]; 4] = [
    ["opt-level=3", "-Copt-level=3"],
    ["lto=\"fat\"", "-Clto=fat"],
    ["codegen-units=1", "-Ccodegen-units=1"],
    ["panic=\"abort\"", "-Cpanic=abort"],
];

/// The `cfg` with which only those kernels are entries whose names are values of [`ENTRY_CFG`]:
/// `#[kernel]` expands to that condition.
const MODULE_CFG: &str = "cuda_builder_module";
const ENTRY_CFG: &str = "cuda_builder_entry";

/// A finished build of a whole crate.
#[derive(Debug, Clone)]
pub struct Built {
    /// The `.target`.
    pub target: String,
    /// The module's text.
    pub ptx: String,
    /// Its entry points.
    pub kernels: Vec<Kernel>,
    /// The compiler that was used.
    pub compiler: Compiler,
}

/// Some kernels of a crate, to be compiled to a module of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleSpec {
    /// Names the intermediate files.
    pub name: String,
    /// The kernels.
    pub entries: Vec<String>,
    /// `cfg`s with values: a crate may leave out the source files that these kernels do not need.
    pub cfgs: Vec<(String, String)>,
}

/// A compiled module.
#[derive(Debug, Clone)]
pub struct BuiltModule {
    /// Its text.
    pub ptx: String,
    /// Its entry points.
    pub kernels: Vec<Kernel>,
    /// The crate's source files that were read for it.
    pub sources: Vec<PathBuf>,
}

/// Builds one GPU crate for one target.
#[derive(Debug, Clone)]
pub struct CudaBuilder {
    crate_path: PathBuf,
    target: String,
    ptx_version: (u32, u32),
    cfgs: Vec<String>,
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
            ptx_version: PTX_VERSION,
            cfgs: Vec::new(),
            target_dir: None,
            compiler: None,
            fetch: Fetch::Never,
        }
    }

    /// Compiles with `--cfg name="value"`: what the target can do.
    pub fn cfg(mut self, name: &str, value: &str) -> Self {
        self.cfgs.push(with_value(name, value));
        self
    }

    /// The version of the PTX, [`PTX_VERSION`] by default: drivers take no later one than they know.
    pub fn ptx_version(mut self, major: u32, minor: u32) -> Self {
        self.ptx_version = (major, minor);
        self
    }

    /// Folder for intermediate files; the crate's own `target` by default.
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

    /// Compiles the whole crate to one module.
    ///
    /// # Errors
    /// See [`BuildError`]; compiler messages are in the error.
    pub fn build(self) -> Result<Built, BuildError> {
        let prepared = self.prepare()?;
        let BuiltModule { ptx, kernels, .. } = prepared.compile("whole", &[])?;
        Ok(Built { target: prepared.target, ptx, kernels, compiler: prepared.compiler })
    }

    /// Builds what the crate depends on, after which its modules can be compiled.
    ///
    /// # Errors
    /// See [`BuildError`]; compiler messages are in the error.
    pub fn prepare(self) -> Result<Prepared, BuildError> {
        let manifest = self.crate_path.join("Cargo.toml");
        if !manifest.exists() {
            return Err(BuildError::NoCrate { path: self.crate_path });
        }
        let compiler = match &self.compiler {
            Some(compiler) => compiler.clone(),
            None => Compiler::find(self.fetch)?,
        };
        // One folder for each compiler and target: cargo would otherwise rebuild
        // core whenever either changes.
        let folder = self.folder(&format!("{}-{}", self.target, compiler.release));
        let mut cargo = self.cargo("build", &compiler, &folder, &manifest, &[MODULE_CFG.into()]);
        cargo.arg("--message-format=json-render-diagnostics");
        let output = run(&mut cargo, "cargo")?;
        self.succeeded(&output, "cargo build")?;

        let artifacts = artifacts(&output.stdout);
        let Some(crate_itself) = artifacts.iter().find(|a| same_file(&a.manifest_path, &manifest))
        else {
            return Err(BuildError::NoCrate { path: self.crate_path });
        };
        let mut arguments: Vec<OsString> = vec![
            "--crate-name=module".into(),
            format!("--edition={}", crate_itself.target.edition).into(),
            crate_itself.target.src_path.clone().into(),
            "--crate-type=cdylib".into(),
            format!("--target={TRIPLE}").into(),
            // For `noprelude`.
            "-Zunstable-options".into(),
            // cargo and clippy show warnings.
            "--cap-lints=allow".into(),
        ];
        arguments.extend(PROFILE.map(|[_, rustc]| rustc.into()));
        arguments.extend(self.flags().into_iter().map(OsString::from));
        let mut folders = BTreeSet::new();
        for artifact in &artifacts {
            for file in &artifact.filenames {
                folders.extend(file.parent());
                let of_target = file.starts_with(folder.join(TRIPLE));
                if of_target && file.extension().is_some_and(|extension| extension == "rlib") {
                    let name = artifact.target.name.replace('-', "_");
                    let built_in = ["core", "compiler_builtins"].contains(&name.as_str());
                    let options = if built_in { "noprelude:" } else { "" };
                    let mut dependency = OsString::from(format!("--extern={options}{name}="));
                    dependency.push(file);
                    arguments.push(dependency);
                }
            }
        }
        for folder in folders {
            let mut search = OsString::from("-Ldependency=");
            search.push(folder);
            arguments.push(search);
        }
        let modules = folder.join("modules");
        let crate_path = self.crate_path.clone();
        let Self { target, ptx_version, .. } = self;
        Ok(Prepared { target, ptx_version, compiler, arguments, crate_path, modules })
    }

    /// Runs clippy over the crate with the flags of a build, all kernels selected; any warning
    /// fails.
    ///
    /// # Errors
    /// [`BuildError::Compile`] with clippy's messages.
    pub fn clippy(self) -> Result<(), BuildError> {
        let manifest = self.crate_path.join("Cargo.toml");
        let compiler = match &self.compiler {
            Some(compiler) => compiler.clone(),
            None => Compiler::find(self.fetch)?,
        };
        let folder = self.folder(&format!("clippy-{}-{}", self.target, compiler.release));
        let mut cargo = self.cargo("clippy", &compiler, &folder, &manifest, &[]);
        cargo.args(["--", "-Dwarnings"]);
        self.succeeded(&run(&mut cargo, "cargo")?, "cargo clippy")
    }

    fn folder(&self, name: &str) -> PathBuf {
        let target = self.target_dir.clone().unwrap_or_else(|| self.crate_path.join("target"));
        target.join(name)
    }

    /// The flags of all crates, which cargo rebuilds when they change.
    fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            format!("-Ctarget-cpu={}", self.target),
            format!("-Ctarget-feature=+ptx{}{}", self.ptx_version.0, self.ptx_version.1),
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
        flags
    }

    fn cargo(
        &self,
        subcommand: &str,
        compiler: &Compiler,
        target_dir: &Path,
        manifest: &Path,
        cfgs: &[String],
    ) -> Command {
        let mut flags = self.flags();
        flags.extend(cfgs.iter().map(|cfg| format!("--cfg={cfg}")));
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .arg(subcommand)
            .args(["--release", "-Zbuild-std=core", "--target", TRIPLE])
            .arg("--manifest-path")
            .arg(manifest)
            .arg("--target-dir")
            .arg(target_dir);
        for [setting, _] in PROFILE {
            command.arg("--config").arg(format!("profile.release.{setting}"));
        }
        command
            .env("RUSTC", &compiler.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_BUILD_TARGET");
        command
    }

    fn succeeded(&self, output: &Output, what: &str) -> Result<(), BuildError> {
        succeeded(output, what, &self.crate_path, &self.target)
    }
}

/// A crate whose dependencies are built. Modules may be compiled on several threads.
#[derive(Debug, Clone)]
pub struct Prepared {
    target: String,
    ptx_version: (u32, u32),
    compiler: Compiler,
    /// Arguments of rustc for every module.
    arguments: Vec<OsString>,
    crate_path: PathBuf,
    /// Folder of rustc's output.
    modules: PathBuf,
}

impl Prepared {
    /// The compiler.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Compiles the kernels of one module.
    ///
    /// # Errors
    /// [`BuildError::Compile`] with rustc's messages, [`BuildError::Ptx`], and
    /// [`BuildError::Entries`] where the module has other kernels than it should.
    pub fn module(&self, spec: &ModuleSpec) -> Result<BuiltModule, BuildError> {
        let mut cfgs = vec![MODULE_CFG.into()];
        cfgs.extend(spec.entries.iter().map(|entry| with_value(ENTRY_CFG, entry)));
        cfgs.extend(spec.cfgs.iter().map(|(name, value)| with_value(name, value)));
        let built = self.compile(&spec.name, &cfgs)?;
        let wanted: BTreeSet<&str> = spec.entries.iter().map(String::as_str).collect();
        let found: BTreeSet<&str> = built.kernels.iter().map(|k| k.name.as_str()).collect();
        if wanted != found {
            let of = |names: BTreeSet<&&str>| names.into_iter().map(ToString::to_string).collect();
            return Err(BuildError::Entries {
                module: spec.name.clone(),
                missing: of(wanted.difference(&found).collect()),
                unexpected: of(found.difference(&wanted).collect()),
            });
        }
        Ok(built)
    }

    fn compile(&self, name: &str, cfgs: &[String]) -> Result<BuiltModule, BuildError> {
        // All output, temporary files too, is named after the crate.
        let folder = self.modules.join(name);
        std::fs::create_dir_all(&folder).map_err(|source| BuildError::Io {
            action: "creating",
            path: folder.clone(),
            source,
        })?;
        let mut rustc = Command::new(&self.compiler.rustc);
        rustc
            .current_dir(&self.crate_path)
            .env("RUSTC_BOOTSTRAP", "1")
            .args(&self.arguments)
            .args(cfgs.iter().map(|cfg| format!("--cfg={cfg}")))
            // Without something to link there is no LTO either.
            .arg("--emit=asm,dep-info,link")
            .arg("--out-dir")
            .arg(&folder);
        let output = run(&mut rustc, &self.compiler.rustc.display().to_string())?;
        succeeded(&output, &format!("rustc of module {name}"), &self.crate_path, &self.target)?;
        let (ptx, kernels) =
            ptx::finish(&read(&folder.join("module.s"))?, &self.target, self.ptx_version)?;
        let sources = dependencies(&read(&folder.join("module.d"))?);
        let sources = sources.into_iter().map(|path| self.crate_path.join(path)).collect();
        Ok(BuiltModule { ptx, kernels, sources })
    }
}

fn with_value(name: &str, value: &str) -> String {
    format!("{name}=\"{value}\"")
}

fn run(command: &mut Command, program: &str) -> Result<Output, BuildError> {
    command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| BuildError::Spawn { program: program.into(), source })
}

fn succeeded(
    output: &Output,
    what: &str,
    crate_path: &Path,
    target: &str,
) -> Result<(), BuildError> {
    if output.status.success() {
        return Ok(());
    }
    Err(BuildError::Compile {
        what: what.into(),
        krate: crate_path.to_owned(),
        target: target.into(),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Cargo's message about a unit that it built or found built.
#[derive(Debug, Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: ArtifactTarget,
    filenames: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct ArtifactTarget {
    name: String,
    src_path: PathBuf,
    edition: String,
}

/// The artifacts among cargo's messages, one of which is a line.
fn artifacts(messages: &[u8]) -> Vec<Artifact> {
    String::from_utf8_lossy(messages)
        .lines()
        .filter(|line| line.contains("\"reason\":\"compiler-artifact\""))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// The files that rustc's list of dependencies names: those after the first colon of its first
/// rule, separated by spaces, where a space in a name has a backslash before it.
fn dependencies(list: &str) -> Vec<PathBuf> {
    let rule = list.lines().next().and_then(|line| line.split_once(": "));
    let Some((_, files)) = rule else { return Vec::new() };
    let mut names = vec![String::new()];
    let mut characters = files.chars();
    while let Some(character) = characters.next() {
        let last = names.last_mut().expect("never empty");
        match character {
            '\\' => last.extend(characters.next()),
            ' ' => names.push(String::new()),
            _ => last.push(character),
        }
    }
    names.into_iter().filter(|name| !name.is_empty()).map(PathBuf::from).collect()
}

fn read(path: &Path) -> Result<String, BuildError> {
    std::fs::read_to_string(path).map_err(|source| BuildError::Io {
        action: "reading",
        path: path.into(),
        source,
    })
}

/// Writes through a temporary file, so that a reader never sees half of it.
///
/// # Errors
/// [`BuildError::Io`].
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), BuildError> {
    let io = |action| move |source| BuildError::Io { action, path: path.into(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(io("creating the folder of"))?;
    }
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    std::fs::write(&temporary, contents).map_err(io("writing"))?;
    std::fs::rename(&temporary, path).map_err(io("replacing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_dependencies_are_read() {
        let list = "/o/gemv.s: src/lib.rs src/a\\ b.rs /abs/c.rs\n\nsrc/lib.rs:\nsrc/a\\ b.rs:\n";
        let expected = ["src/lib.rs", "src/a b.rs", "/abs/c.rs"].map(PathBuf::from);
        assert_eq!(dependencies(list), expected);
        assert!(dependencies("").is_empty());
    }
}
