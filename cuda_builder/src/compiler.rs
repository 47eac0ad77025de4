//! Finds a rustc whose sysroot has the source of `core`.
//!
//! In this order: the rustc named by `CUDA_BUILDER_RUSTC`; the active
//! toolchain; the active toolchain after `rustup component add rust-src`;
//! Debian's `rustc-web` with `rust-web-src`, installed first where the user is
//! root; else an error that lists the three remedies.

use crate::error::BuildError;
use crate::note;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable that names a rustc and ends the search.
pub const COMPILER_VARIABLE: &str = "CUDA_BUILDER_RUSTC";

/// Debian's rustc, where its package puts it.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// Debian's packages of the current compiler and its library source.
const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];
/// Oldest release that builds the kernels.
const MINIMUM: (u32, u32) = (1, 95);

/// Whether missing parts may be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fetch {
    /// Look, install nothing.
    #[default]
    Never,
    /// Run rustup and, as root on Debian, apt-get; says so on standard error.
    Allowed,
}

/// A compiler that can build GPU crates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiler {
    /// The rustc binary itself, not rustup's proxy.
    pub rustc: PathBuf,
    /// Release, e.g. `1.95.0`.
    pub release: String,
    /// LLVM's version.
    pub llvm: String,
    /// The way in which it was found.
    pub origin: &'static str,
}

impl Compiler {
    /// Searches as the module describes.
    ///
    /// # Errors
    /// [`BuildError::NoCompiler`] with everything that was tried.
    pub fn find(fetch: Fetch) -> Result<Self, BuildError> {
        let mut tried = Vec::new();
        if let Some(named) = std::env::var_os(COMPILER_VARIABLE) {
            return Self::inspect(Path::new(&named), "named by CUDA_BUILDER_RUSTC").map_err(
                |why| BuildError::NoCompiler {
                    tried: vec![format!("{COMPILER_VARIABLE}={}: {why}", named.display())],
                },
            );
        }
        let mut attempt = |rustc: &Path, origin: &'static str| {
            Self::inspect(rustc, origin)
                .map_err(|why| tried.push(format!("{origin} ({}): {why}", rustc.display())))
                .ok()
        };
        let active = Path::new("rustc");
        if let Some(found) = attempt(active, "active toolchain") {
            return Ok(found);
        }
        if fetch == Fetch::Allowed {
            announce(&["rustup", "component", "add", "rust-src"]);
            if run(Command::new("rustup").args(["component", "add", "rust-src"]))
                && let Some(found) = attempt(active, "active toolchain after rustup component add")
            {
                return Ok(found);
            }
        }
        let debian = Path::new(DEBIAN_RUSTC);
        if let Some(found) = attempt(debian, "Debian's rustc-web") {
            return Ok(found);
        }
        if fetch == Fetch::Allowed && Path::new("/usr/bin/apt-get").exists() && is_root() {
            let mut install = vec!["apt-get", "install", "-y", "--no-install-recommends"];
            install.extend(DEBIAN_PACKAGES);
            announce(&install);
            run(Command::new("apt-get").args(["update", "-qq"]));
            if run(Command::new("apt-get").args(&install[1..]))
                && let Some(found) = attempt(debian, "Debian's rustc-web after apt-get install")
            {
                return Ok(found);
            }
        }
        Err(BuildError::NoCompiler { tried })
    }

    /// Every compiler on this machine that would do, without installing
    /// anything: the active toolchain and Debian's.
    pub fn all() -> Vec<Self> {
        let candidates = [
            (Path::new("rustc"), "active toolchain"),
            (Path::new(DEBIAN_RUSTC), "Debian's rustc-web"),
        ];
        let mut found: Vec<Self> = Vec::new();
        for (rustc, origin) in candidates {
            if let Ok(compiler) = Self::inspect(rustc, origin)
                && found.iter().all(|f| f.rustc != compiler.rustc)
            {
                found.push(compiler);
            }
        }
        found
    }

    /// Checks one rustc; the error says what it lacks.
    fn inspect(rustc: &Path, origin: &'static str) -> Result<Self, String> {
        let sysroot = output(Command::new(rustc).args(["--print", "sysroot"]))?;
        let sysroot = Path::new(sysroot.trim());
        // rustup's proxy would pick the toolchain anew in cargo's working
        // directory: use what it resolved to here.
        let binary = sysroot.join("bin").join("rustc");
        let rustc = if binary.exists() { binary } else { rustc.to_path_buf() };
        let verbose = output(Command::new(&rustc).arg("-vV"))?;
        let field = |name: &str| {
            verbose.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_string())
        };
        let release = field("release:").ok_or("its -vV output has no release")?;
        let llvm = field("LLVM version:").unwrap_or_else(|| "unknown".into());
        if !at_least(&release, MINIMUM) {
            return Err(format!(
                "release {release}, required at least {}.{}",
                MINIMUM.0, MINIMUM.1
            ));
        }
        let core = sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs");
        if !core.exists() {
            return Err(format!("the source of core is missing ({})", core.display()));
        }
        Ok(Self { rustc, release, llvm, origin })
    }

    /// Short description for reports.
    pub fn describe(&self) -> String {
        format!("rustc {} (LLVM {}), {}", self.release, self.llvm, self.origin)
    }
}

fn at_least(release: &str, (major, minor): (u32, u32)) -> bool {
    let mut parts = release.split(['.', '-']).map(|p| p.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
}

fn output(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Ok(out) if out.status.success() => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        Ok(out) => Err(format!(
            "{}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr).lines().next().unwrap_or("no message")
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs with output on standard error, so that standard output stays the
/// caller's.
fn run(command: &mut Command) -> bool {
    match command.stdin(std::process::Stdio::null()).output() {
        Ok(out) => {
            if !out.status.success() {
                note(String::from_utf8_lossy(&out.stderr).trim_end());
            }
            out.status.success()
        }
        Err(error) => {
            note(format_args!("  {error}"));
            false
        }
    }
}

fn announce(command: &[&str]) {
    let command = command.join(" ");
    note(format_args!("the source of core is missing, trying: {command}"));
}

fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_number() {
        assert!(at_least("1.95.0", (1, 95)));
        assert!(at_least("1.100.0-nightly", (1, 95)));
        assert!(at_least("2.0.0", (1, 95)));
        assert!(!at_least("1.94.2", (1, 95)));
        assert!(!at_least("garbage", (1, 95)));
    }

    #[test]
    fn a_missing_compiler_is_said_so() {
        let why = Compiler::inspect(Path::new("/nowhere/rustc"), "test").unwrap_err();
        assert!(why.contains("No such file"), "{why}");
    }

    #[test]
    fn the_error_lists_three_ways_out() {
        let text =
            BuildError::NoCompiler { tried: vec!["active toolchain: no core".into()] }.to_string();
        for part in ["rustup component add rust-src", "rustc-web rust-web-src", COMPILER_VARIABLE] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
