//! Failures of a build, and how to mend each.

use std::path::PathBuf;

/// A build that did not produce PTX.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No rustc with the source of `core` was found or could be fetched.
    #[error(
        "no compiler that can build `core` for nvptx64-nvidia-cuda:\n{}\n\
         any one of these helps:\n  \
         1. a Rust toolchain of at least 1.95 whose component rust-src is installed: \
         rustup component add rust-src\n  \
         2. on Debian, as root: apt-get install --no-install-recommends rustc-web rust-web-src\n  \
         3. set {variable} to a rustc (1.95 or later) with lib/rustlib/src/rust/library in its sysroot",
        tried.iter().map(|t| format!("  - {t}")).collect::<Vec<_>>().join("\n"),
        variable = crate::compiler::COMPILER_VARIABLE
    )]
    NoCompiler {
        /// The candidates, and why each was refused.
        tried: Vec<String>,
    },
    /// The crate's folder has no Cargo.toml.
    #[error("no GPU crate at {}: Cargo.toml is missing", path.display())]
    NoCrate {
        /// Folder that was given.
        path: PathBuf,
    },
    /// A program could not be started.
    #[error("could not run {program}: {source}")]
    Spawn {
        /// Program.
        program: String,
        /// Cause.
        source: std::io::Error,
    },
    /// cargo or rustc reported errors.
    #[error("{what}, {} for {target}, failed ({status}):\n{output}", krate.display())]
    Compile {
        /// The command.
        what: String,
        /// The crate's folder.
        krate: PathBuf,
        /// Target.
        target: String,
        /// Exit status.
        status: String,
        /// Its standard error.
        output: String,
    },
    /// A module has other kernels than it should.
    #[error(
        "module {module}: kernels that are missing: [{}]; kernels that were not asked for: [{}]",
        missing.join(", "),
        unexpected.join(", ")
    )]
    Entries {
        /// The module.
        module: String,
        /// Kernels that it should have: the crate has none of this name, or none for the target.
        missing: Vec<String>,
        /// Kernels that it should not have.
        unexpected: Vec<String>,
    },
    /// A file could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The emitted PTX breaks a rule.
    #[error("emitted PTX for {target}, line {line}: {message}")]
    Ptx {
        /// Target.
        target: String,
        /// Line, from 1; 0 for the module as a whole.
        line: usize,
        /// The rule.
        message: String,
    },
    /// Packages of programs could not be installed.
    #[error("installing {packages} failed:\n{message}")]
    Install {
        /// The packages.
        packages: String,
        /// The message of pip.
        message: String,
    },
    /// ptxas rejected the PTX or its report could not be read.
    #[error("ptxas: {0}")]
    Ptxas(String),
    /// nvdisasm rejected the machine code.
    #[error("nvdisasm: {0}")]
    Nvdisasm(String),
}
