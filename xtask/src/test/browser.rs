//! Chromium, in which reports are looked at.

use super::Tally;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Tells the tests where it is.
pub const VARIABLE: &str = "NVFP4_CHROMIUM";
/// Programs that are it.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Debian's package.
const PACKAGE: &str = "chromium";

/// Chromium, if it is here or may be installed.
pub fn find(tally: &mut Tally, offline: bool) -> Option<PathBuf> {
    let found = match present() {
        Some(program) => Ok(program),
        None if offline => Err(anyhow::anyhow!("--offline, and Chromium is not here")),
        None => install(),
    };
    found.map_err(|error| tally.skip("reports in a browser", &format!("{error:#}"))).ok()
}

/// The program that the variable names, else the first on the path that starts.
fn present() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let known = NAMES.map(PathBuf::from);
    named.into_iter().chain(known).find(|program| works(program))
}

/// Whether it starts.
fn works(program: &Path) -> bool {
    let version = Command::new(program).args(["--no-sandbox", "--version"]).output();
    version.is_ok_and(|out| out.status.success())
}

/// Installs Debian's, which takes root.
fn install() -> Result<PathBuf> {
    ensure!(
        works_quietly("apt-get", &["--version"]),
        "Chromium is not here, and neither is apt-get"
    );
    let user = Command::new("id").arg("-u").output().context("running id")?;
    ensure!(user.stdout.trim_ascii() == b"0", "Chromium is not here, and only root can install it");
    say!("Chromium is not here, installing Debian's package");
    // Lists that are there may be enough.
    if !apt(&["install", "--yes", "--no-install-recommends", PACKAGE]) {
        ensure!(apt(&["update"]), "apt-get update failed");
        ensure!(
            apt(&["install", "--yes", "--no-install-recommends", PACKAGE]),
            "apt-get install {PACKAGE} failed"
        );
    }
    match present() {
        Some(program) => Ok(program),
        None => bail!("the package brought no Chromium that starts"),
    }
}

fn apt(arguments: &[&str]) -> bool {
    works_quietly("apt-get", &[&["-qq"], arguments].concat())
}

fn works_quietly(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
