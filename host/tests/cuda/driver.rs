//! Drivers that this machine does not have: a library with a driver's functions is
//! compiled, and this test program runs again as a child that finds it as
//! `libcuda.so.1`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The driver.
const SOURCE: &str = include_str!("fake_libcuda.rs");

/// The compiled driver, in a folder that goes with it.
pub struct Driver {
    folder: PathBuf,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Driver {
    /// Compiles it, or says why it cannot be.
    pub fn compile(test: &str) -> Option<Self> {
        let name = format!("nvfp4-fake-driver-{test}-{}", std::process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a temporary folder");
        let driver = Self { folder };
        match compile(&driver.folder) {
            Ok(()) => Some(driver),
            Err(why) => {
                skipped::test(format!("the fake driver does not compile: {why}"));
                None
            }
        }
    }

    /// Runs the ignored test `child` of this program with the driver, which gives these answers.
    pub fn run(&self, child: &str, answers: &str) -> Output {
        Command::new(env::current_exe().expect("this program's path"))
            .args(["--exact", child, "--ignored", "--nocapture"])
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("FAKE_CUDA", answers)
            .output()
            .expect("this program runs again")
    }
}

/// Compiles [`SOURCE`] with the rustc beside the cargo that runs the tests.
fn compile(folder: &Path) -> Result<(), String> {
    let source = folder.join("fake.rs");
    fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
    let rustc = env::var_os("CARGO")
        .map(|cargo| PathBuf::from(cargo).with_file_name("rustc"))
        .filter(|rustc| rustc.exists())
        .unwrap_or_else(|| PathBuf::from("rustc"));
    let output = Command::new(&rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-O", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(&source)
        .output()
        .map_err(|error| format!("{}: {error}", rustc.display()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
