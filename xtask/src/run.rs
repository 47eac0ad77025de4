//! Paths of the project, and how other programs are run.

use crate::build_kernels;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

/// The checkout that the program works on.
static ROOT: OnceLock<PathBuf> = OnceLock::new();

/// Finds the checkout that this program is run in, which need not be the one that it was built in: that
/// of cargo, if cargo runs it, else the one around the working folder.
pub fn enter_checkout() -> Result<()> {
    let by_cargo = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let working = std::env::current_dir().context("the working folder")?;
    let found = by_cargo.as_deref().and_then(checkout_around).or_else(|| checkout_around(&working));
    let Some(root) = found else {
        bail!("{} is not in a checkout: no folder above it has {MARK}", working.display())
    };
    ROOT.get_or_init(|| root);
    Ok(())
}

/// The file that a checkout's root has.
const MARK: &str = "xtask/Cargo.toml";

/// The nearest folder at or above `folder` that is a checkout's root.
fn checkout_around(folder: &Path) -> Option<PathBuf> {
    folder.ancestors().find(|folder| folder.join(MARK).is_file()).map(Path::to_path_buf)
}

/// The workspace's root.
pub fn root() -> PathBuf {
    let built_in = || Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    ROOT.get().map_or_else(|| built_in().to_path_buf(), PathBuf::clone)
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The folder of the kernels.
pub fn kernels() -> PathBuf {
    root().join("target/kernels")
}

/// The folder of tools that are installed for the project.
pub fn tools() -> PathBuf {
    root().join("target/cuda-tools")
}

/// Whether this machine has a GPU.
pub fn has_gpu() -> bool {
    Path::new("/dev/nvidiactl").exists()
}

/// The cargo that runs us.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Tells the build of a program from which commit it is; its reports say so.
const COMMIT_VARIABLE: &str = "NVFP4_COMMIT";

/// The commit of a checkout, and whether files differ from it. `None` outside of git.
fn commit_of(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let out = Command::new("git").current_dir(root).args(arguments).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    // A checkout without git may be in a folder that has.
    let top = git(&["rev-parse", "--show-toplevel"]).map(PathBuf::from)?;
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { commit } else { format!("{commit} with changes") })
}

/// The profile of the workspace's tests.
pub const TESTS: &str = "tests";

/// A profile that programs are built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// A build for a first result: without optimisation, which compiles in a fraction of the time.
    First,
    /// A build for tests and measurements.
    Release,
}

impl Profile {
    /// The profile's name, which is also that of its folder.
    fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Release => "release",
        }
    }

    /// Chooses for `program`: `release` where it is asked for, where the program has been built that way,
    /// and where there is a GPU, whose times an unoptimised program would lengthen.
    fn choose(asked: bool, program: Program) -> Self {
        match asked || has_gpu() || program.path(Self::Release).is_file() {
            true => Self::Release,
            false => Self::First,
        }
    }
}

/// A program of the workspace.
#[derive(Clone, Copy)]
pub enum Program {
    /// `nvfp4`.
    Nvfp4,
    /// `ptx-emu`.
    PtxEmu,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Nvfp4 => "nvfp4",
            Self::PtxEmu => "ptx-emu",
        }
    }

    /// The package, and the features that the program is built with.
    fn package(self, profile: Profile) -> [&'static str; 2] {
        match (self, profile) {
            (Self::Nvfp4, Profile::Release) => ["nvfp4-lab", "cust"],
            // The crate cust takes time to compile and is of no use without a GPU.
            (Self::Nvfp4, Profile::First) => ["nvfp4-lab", ""],
            (Self::PtxEmu, Profile::Release) => ["ptx-emu", "cli,cust"],
            (Self::PtxEmu, Profile::First) => ["ptx-emu", "cli"],
        }
    }

    /// Builds it with that profile and returns its path.
    pub fn build(self, profile: Profile) -> Result<PathBuf> {
        let (name, [package, features]) = (self.name(), self.package(profile));
        let mut build = cargo();
        build.args(["build", "--quiet", "--profile", profile.name(), "--package", package]);
        build.args(["--bin", name, "--features", features]);
        // A value that the caller sets goes before.
        if std::env::var_os(COMMIT_VARIABLE).is_none()
            && let Some(commit) = commit_of(&root())
        {
            build.env(COMMIT_VARIABLE, commit);
        }
        let status = build.status().context("running cargo")?;
        if !status.success() {
            bail!("building {name} failed ({status})");
        }
        Ok(self.path(profile))
    }

    fn path(self, profile: Profile) -> PathBuf {
        target().join(profile.name()).join(self.name())
    }

    /// Builds it with that profile and runs it as `prepare` says; its exit code is ours.
    pub fn run(self, profile: Profile, prepare: impl FnOnce(&mut Command)) -> Result<ExitCode> {
        let program = self.build(profile)?;
        let mut command = Command::new(&program);
        prepare(&mut command);
        let status = command.status().with_context(|| format!("running {}", program.display()))?;
        Ok(match status.code() {
            Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
            None => {
                note!("error: {} was ended by a signal ({status})", self.name());
                ExitCode::from(1)
            }
        })
    }
}

/// Tells the library which program compiles a module of this checkout.
const COMPILER_VARIABLE: &str = "NVFP4_KERNELS_COMPILER";

/// Makes a program use this checkout's kernels, and this program compile missing ones when they are asked
/// for.
pub fn on_demand(command: &mut Command) {
    command.env("NVFP4_KERNELS_DIR", kernels());
    // Without it, the error of a missing module says which command compiles it.
    if let Ok(compiler) = std::env::current_exe() {
        command.env(COMPILER_VARIABLE, compiler);
    }
}

/// Runs `nvfp4` with this checkout's kernels, built with the profile `release` if that is asked for; its exit
/// code is ours.
pub fn nvfp4(arguments: &[&str], release: bool) -> Result<ExitCode> {
    let profile = Profile::choose(release, Program::Nvfp4);
    if profile == Profile::First && arguments.first() == Some(&"bench") {
        note!(
            "built for a quick first result; `cargo xtask bench --release` builds the program that \
             runs kernels several times as fast"
        );
    }
    build_kernels::sweep()?;
    Program::Nvfp4.run(profile, |command| on_demand(command.args(arguments)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_is_the_nearest_one_above() {
        let scratch = std::env::temp_dir().join(format!("xtask-checkout-{}", std::process::id()));
        let inner = scratch.join("other");
        for root in [&scratch, &inner] {
            std::fs::create_dir_all(root.join("xtask")).expect("a folder");
            std::fs::write(root.join(MARK), "").expect("a file");
        }
        let deep = inner.join("host/src");
        std::fs::create_dir_all(&deep).expect("a folder");
        assert_eq!(checkout_around(&deep), Some(inner.clone()));
        assert_eq!(checkout_around(&scratch), Some(scratch.clone()));
        std::fs::remove_file(inner.join(MARK)).expect("removed");
        assert_eq!(checkout_around(&deep), Some(scratch.clone()));
        assert_eq!(checkout_around(Path::new("/")), None);
        std::fs::remove_dir_all(&scratch).expect("removed");
    }
    #[test]
    fn a_commit_is_that_of_the_checkout_itself() {
        let git = |folder: &Path, arguments: &[&str]| {
            let name = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
            let mut command = Command::new("git");
            command.current_dir(folder).args(name).args(arguments);
            command.output().is_ok_and(|out| out.status.success())
        };
        let scratch = std::env::temp_dir().join(format!("xtask-commit-{}", std::process::id()));
        let inner = scratch.join("inner");
        std::fs::create_dir_all(&inner).expect("a folder");
        std::fs::write(scratch.join("file"), "1").expect("written");
        if !git(&scratch, &["init", "--quiet"]) {
            std::fs::remove_dir_all(&scratch).expect("removed");
            return skipped::test("git does not run");
        }
        assert_eq!(commit_of(&scratch), None, "nothing is committed");
        assert!(git(&scratch, &["add", "file"]));
        assert!(git(&scratch, &["commit", "--quiet", "--message", "One"]));
        let commit = commit_of(&scratch).expect("committed");
        assert!(commit.len() >= 40 && commit.bytes().all(|c| c.is_ascii_hexdigit()), "{commit}");
        assert_eq!(commit_of(&inner), None);
        std::fs::write(scratch.join("file"), "2").expect("written");
        assert_eq!(commit_of(&scratch), Some(format!("{commit} with changes")));
        std::fs::remove_dir_all(&scratch).expect("removed");
    }
}
