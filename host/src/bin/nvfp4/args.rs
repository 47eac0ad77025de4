//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand};
use fp4_formats::ScaleLayout;
use fp4_formats::gemv::OutputType;
use nvfp4::device::DeviceRequest;
use nvfp4::generate::Generator;
use nvfp4::{operands, output};
use ptx_emu::Schedule;

/// Block-scaled 4-bit floating point on Hopper and Blackwell GPUs, or on an emulator of them.
///
/// Exit codes: 0 done and verified, 1 ran and came out wrong, 2 bad input or nothing to run on.
#[derive(Debug, Parser)]
#[command(name = "nvfp4", version, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run an operation on data from files.
    #[command(subcommand)]
    Run(Run),
    /// Run a shape on random inputs, verify it, and time it (GPU) or count (emulator).
    Bench(Bench),
    /// List the tensors of a safetensors file.
    Inspect(Inspect),
    /// Say what this machine has and what will be used.
    Doctor(Doctor),
}

#[derive(Debug, Subcommand)]
pub enum Run {
    Gemv(Gemv),
}

/// Where and how to run.
#[derive(Debug, ClapArgs)]
pub struct Target {
    /// auto (a supported GPU, else the emulated H200), cuda:N, emu:h200 or emu:b200.
    #[arg(long, default_value = "auto")]
    pub device: DeviceRequest,
    /// Order in which the emulator interleaves: eager, lazy or random:SEED.
    #[arg(long, default_value = "eager")]
    pub schedule: Schedule,
    /// Folder with <arch>/kernels.ptx [default: NVFP4_KERNELS_DIR, or near this program].
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Matrix times vector, both in NVFP4.
///
/// With --checkpoint: the weight matrix --tensor (F32, F16 or BF16) and an input vector are
/// quantised with TorchAO's recipe (two-level scales) and multiplied. The vector is that of
/// --vector, or standard normal with --seed, or else what the model would feed its first layer:
/// row --token of the file's largest matrix that has `embed` in its name and the weight's width;
/// where there is none, standard normal with seed 1. Reported are the largest errors against the
/// f64 oracle on the quantised data, and the signal-to-noise ratio against the unquantised f64
/// product.
///
/// With --inputs: operands from a file with the tensors a (U8 [L, M, K/2]), a_scale (F8_E4M3 or
/// U8 [L, M, K/16]), a_global_scale, b (U8 [L, K/2]), b_scale ([L, K/16]), b_global_scale and
/// alpha. Where L is 1 its dimension may be left out; scalars are 1 if absent. The metadata keys
/// a_scale_layout and b_scale_layout say linear (the default) or 128x4.
///
/// --out writes the result as the tensor c ([L, M]), only once it is verified.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("input").required(true))]
pub struct Gemv {
    /// Checkpoint that has the weight.
    #[arg(long, group = "input", requires = "tensor", value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// Operands.
    #[arg(long, group = "input", conflicts_with_all = ["tensor", "vector", "seed", "token", "layout"], value_name = "FILE")]
    pub inputs: Option<PathBuf>,
    /// Name of the weight, a matrix [M, K].
    #[arg(long, requires = "checkpoint", value_name = "NAME")]
    pub tensor: Option<String>,
    /// Input vector: the tensor x, or the only tensor, of this safetensors file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "token"])]
    pub vector: Option<PathBuf>,
    /// Standard normal input vector.
    #[arg(long, conflicts_with = "token")]
    pub seed: Option<u64>,
    /// Row of the embedding [default: 1000, or the last].
    #[arg(long)]
    pub token: Option<usize>,
    /// Layout of the scales: linear or 128x4.
    #[arg(long, default_value = "linear", value_parser = parse_layout)]
    pub layout: ScaleLayout,
    /// Element type of the result: f16, bf16 or f32.
    #[arg(long, default_value = "f16", value_parser = parse_output)]
    pub dtype: OutputType,
    /// Where to write the result.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("what").required(true))]
pub struct Bench {
    /// Shape, such as gemv:7168x16384x1 (MxKxL); can be repeated.
    #[arg(long, group = "what")]
    pub shape: Vec<String>,
    /// Named set of shapes: gemv or all.
    #[arg(long, group = "what")]
    pub set: Option<String>,
    /// Inputs: contest, full-range or exact.
    #[arg(long, default_value = "full-range")]
    pub generator: Generator,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Layout of the matrix's scales: linear or 128x4.
    #[arg(long, default_value = "linear", value_parser = parse_layout)]
    pub layout: ScaleLayout,
    /// Element type of the result: f16, bf16 or f32.
    #[arg(long, default_value = "f16", value_parser = parse_output)]
    pub dtype: OutputType,
    /// Kernel by name, instead of the plan's.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// CTAs that share a batch entry, instead of the plan's.
    #[arg(long, value_name = "N")]
    pub ctas: Option<u32>,
    /// Timed replays; 0 only verifies.
    #[arg(long, default_value_t = 30)]
    pub replays: usize,
    /// Compare with a peer on the same GPU.
    #[arg(long, value_parser = ["cublas"])]
    pub vs: Option<String>,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, ClapArgs)]
pub struct Inspect {
    /// The safetensors file.
    pub checkpoint: PathBuf,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Doctor {
    /// Folder with <arch>/kernels.ptx [default: NVFP4_KERNELS_DIR, or near this program].
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

fn parse_layout(text: &str) -> Result<ScaleLayout, String> {
    operands::layout_by_name("layout", text).map_err(|error| error.to_string())
}

fn parse_output(text: &str) -> Result<OutputType, String> {
    output::by_name(text).ok_or_else(|| format!("`{text}` is none of f16, bf16, f32"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn one_input_is_required_and_they_exclude_each_other() {
        let parse = |line: &str| Args::try_parse_from(line.split_whitespace()).is_ok();
        assert!(parse("nvfp4 run gemv --checkpoint m --tensor t"));
        assert!(parse("nvfp4 run gemv --inputs i --out o"));
        assert!(!parse("nvfp4 run gemv"));
        assert!(!parse("nvfp4 run gemv --checkpoint m"));
        assert!(!parse("nvfp4 run gemv --checkpoint m --tensor t --inputs i"));
        assert!(!parse("nvfp4 run gemv --checkpoint m --tensor t --seed 1 --token 2"));
        assert!(!parse("nvfp4 run gemv --inputs i --device tpu:0"));
        assert!(!parse("nvfp4 bench"));
        assert!(parse("nvfp4 bench --set gemv --device emu:b200 --schedule random:7"));
    }
}
