//! Compiling a module when it is first asked for.
//!
//! The project's tasks name a compiler to the programs that they run. Modules are code, so it is asked
//! only for those of the folder that the build of this program named: no other folder is that of the
//! checkout that both were built in.

use std::env;
use std::ffi::OsStr;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::process::{Command, Stdio};

use fp4_formats::{Arch, Family};

/// Environment variable that names a program which compiles a module when it is run with
/// `build-kernels --arch ARCH --only FAMILY`. `cargo xtask` sets it for what it runs.
pub const COMPILER_VARIABLE: &str = "NVFP4_KERNELS_COMPILER";

/// Compiles the module of `family` into `folder`, that of an architecture. Says whether it did: it does not
/// without a compiler, nor in another folder than below `built_with`.
///
/// # Errors
/// The reason why the compiler failed.
pub(super) fn compile(
    folder: &Path,
    built_with: Option<&Path>,
    arch: Arch,
    family: Family,
) -> Result<bool, String> {
    match env::var_os(COMPILER_VARIABLE) {
        Some(compiler) if is_below(folder, built_with) => run(&compiler, folder, arch, family),
        _ => Ok(false),
    }
}

/// Runs the compiler for a module of the checkout around `folder`.
fn run(compiler: &OsStr, folder: &Path, arch: Arch, family: Family) -> Result<bool, String> {
    let mut command = Command::new(compiler);
    command.args(["build-kernels", "--arch", arch.name(), "--only", family.name()]);
    // It works on the checkout around the folder, whichever package cargo runs this program for.
    command.current_dir(folder).env_remove("CARGO_MANIFEST_DIR").stdin(Stdio::null());
    // Somebody who watches sees how far it is.
    if stderr().is_terminal() {
        command.stderr(Stdio::inherit());
    }
    let output = command.output().map_err(|e| format!("{}: {e}", compiler.display()))?;
    match output.status.success() {
        true => Ok(true),
        false => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(format!("{command:?}: {}\n{}", output.status, text.trim_end()))
        }
    }
}

/// Says whether `folder` is in the folder of kernels that the build of this program named.
fn is_below(folder: &Path, built_with: Option<&Path>) -> bool {
    let parent = folder.parent().and_then(|parent| parent.canonicalize().ok());
    parent.is_some() && parent == built_with.and_then(|folder| folder.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_compiler_that_fails_is_named_with_its_reason() {
        let run = |compiler: &str| {
            run(OsStr::new(compiler), &env::temp_dir(), Arch::Sm90a, Family::Ceiling)
        };
        assert_eq!(run("true"), Ok(true));
        let reason = run("false").expect_err("it fails");
        for part in ["false", "build-kernels", "sm_90a", "ceiling", "exit status: 1"] {
            assert!(reason.contains(part), "{part} in {reason}");
        }
        let reason = run("/nowhere/xtask").expect_err("it is not there");
        assert!(reason.contains("/nowhere/xtask"), "{reason}");
    }

    #[test]
    fn only_the_folder_of_the_build_is_compiled_into() {
        let root = env::temp_dir().join(format!("nvfp4-is-below-{}", std::process::id()));
        let (ours, others) = (root.join("ours"), root.join("others"));
        for folder in [&ours, &others] {
            std::fs::create_dir_all(folder.join("sm_90a")).expect("a folder");
        }
        assert!(is_below(&ours.join("sm_90a"), Some(&ours)));
        assert!(is_below(&others.join("../ours/sm_90a"), Some(&ours)));
        assert!(!is_below(&others.join("sm_90a"), Some(&ours)));
        assert!(!is_below(&ours.join("sm_90a"), None));
        assert!(!is_below(&root.join("gone/sm_90a"), Some(&root.join("gone"))));
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
