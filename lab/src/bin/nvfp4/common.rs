//! The device that commands run on, their output and exit codes, and the gate's usual activation.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use fp4_formats::Arch;
use nvfp4::device::{Device, DeviceRequest, Kernels};
use nvfp4::error::Result as LibraryResult;
use nvfp4::gemm::{Activation, UpOptions};
use nvfp4_lab::bench::GemmBench;
use ptx_emu_core::Schedule;
use serde::Serialize;

use crate::progress::Progress;

/// The activation of a gated product, where none is asked for.
pub const GATE: Activation = Activation::Silu;
/// The result is wrong.
const WRONG: u8 = 1;

/// The device, and how to run on it.
#[derive(Clone, Debug, ClapArgs)]
pub struct Target {
    /// auto (a supported GPU, else the emulated H200), cuda:N, or emu: and a100, rtx3090, rtx4090, l40s, h200,
    /// b200, b300, rtx5090, rtx-pro-6000 or dgx-spark.
    #[arg(long, default_value = "auto")]
    pub device: DeviceRequest,
    /// Target of the kernels, of those that the device runs: sm_90a, sm_100a, sm_100f, sm_120f, or sm_80, which
    /// every one runs [default: the closest].
    #[arg(long)]
    pub arch: Option<Arch>,
    /// Order in which the emulator interleaves: eager, lazy or random:SEED.
    #[arg(long, default_value = "eager")]
    pub schedule: Schedule,
    /// Folder with <arch>/manifest.json [default: NVFP4_KERNELS_DIR, or near this program].
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Opens the device and loads its kernels; launches are written to `capture`.
pub fn open(
    target: &Target,
    capture: Option<&Path>,
    progress: &Progress,
) -> LibraryResult<Kernels> {
    progress.step("opening the device and loading kernels");
    let mut device = Device::open(&target.device)?.with_schedule(target.schedule);
    if let Some(arch) = target.arch {
        device = device.with_arch(arch)?;
    }
    if let Some(folder) = capture {
        device = device.with_capture(folder);
    }
    device.kernels(target.kernels.as_deref())
}

/// Writes a report to standard output, as text or as JSON.
pub fn print(report: &(impl Serialize + Display), json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
    } else {
        write!(out, "{}", printable(&report.to_string()))?;
    }
    Ok(out.flush()?)
}

/// Writes text to standard output.
pub fn write_out(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Text for a terminal: names from files may have characters that would control it.
pub fn printable(text: &str) -> String {
    // Long lists of names are almost always plain.
    if text.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')) {
        return text.into();
    }
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && character != '\n' {
            true => printable.extend(character.escape_default()),
            false => printable.push(character),
        }
    }
    printable
}

/// The exit code of a result.
pub fn exit(verified: bool) -> ExitCode {
    if verified { ExitCode::SUCCESS } else { ExitCode::from(WRONG) }
}

/// The bench of a gated product, by default with SiLU.
pub fn gated(bench: &GemmBench, asked: Option<Activation>) -> GemmBench {
    let up = Some(UpOptions::default());
    let activation = asked.unwrap_or(GATE);
    let options = bench.options.clone().up(up).activation(activation);
    GemmBench { options, ..bench.clone() }
}
