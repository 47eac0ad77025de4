//! Checks the CUDA backend on the GPUs of this machine, without cargo.
//!
//! `cuda_selftest [--fault]` prints one `PASS`, `SKIP` or `FAIL` line per check.
//! `--fault` adds a kernel that stores to an invalid address, which a memory
//! checker would rightly report. Exit code: 0 all passed, 1 something failed, 2
//! nothing to run on.

#[path = "../tests/cuda/checks.rs"]
mod checks;

use std::process::ExitCode;

use checks::Outcome;
use nvfp4::cuda::{CudaDevice, probe};

fn main() -> ExitCode {
    let with_fault = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--fault" => true,
        _ => {
            eprintln!("usage: cuda_selftest [--fault]");
            return ExitCode::from(2);
        }
    };
    let info = match probe() {
        Ok(info) => info,
        Err(error) => {
            eprintln!("nothing to run on: {error}");
            return ExitCode::from(2);
        }
    };
    println!("driver for CUDA {} from {}", info.version, info.library);

    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    for device in info.devices.iter().filter(|device| device.arch().is_some()) {
        println!("{device}");
        let open = match CudaDevice::open(device.ordinal) {
            Ok(open) => open,
            Err(error) => {
                println!("FAIL open: {error}");
                failed += 1;
                continue;
            }
        };
        for (name, outcome) in checks::run(&open, with_fault) {
            let (word, text, count) = match outcome {
                Outcome::Pass(text) => ("PASS", text, &mut passed),
                Outcome::Skip(text) => ("SKIP", text, &mut skipped),
                Outcome::Fail(text) => ("FAIL", text, &mut failed),
            };
            println!("{word} {name}: {text}");
            *count += 1;
        }
    }
    println!("{passed} passed, {skipped} skipped, {failed} failed");
    match (passed, failed) {
        (0, 0) => ExitCode::from(2),
        (_, 0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
