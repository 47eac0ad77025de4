//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use fp4_formats::gemm::Split;
use fp4_formats::{FloatType, ScaleLayout};
use nvfp4::device::DeviceRequest;
use nvfp4::gemm::{Activation, Adding};
use nvfp4::quantize::Format;
use nvfp4_checkpoint::Layout;
use nvfp4_lab::bench::{ActivationInput, Direction};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::operands;

use crate::common::Target;

/// Block-scaled 4-bit floating point on NVIDIA GPUs since Ampere, or on an emulator of them.
///
/// Exit codes: 0 done and verified, 1 ran and came out wrong, 2 bad input or nothing to run on, 130
/// ended by Ctrl-C, 143 by SIGTERM, 141 the reader of the output closed the pipe.
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
    Quantize(Quantize),
    Dequantize(Dequantize),
    Convert(Convert),
    Verify(Verify),
    /// List what is in a checkpoint.
    Inspect(Inspect),
    /// Say what this machine has and what will be used.
    Doctor(Doctor),
    Selftest(crate::selftest::Options),
    Report(crate::report::Options),
}

#[derive(Debug, Subcommand)]
pub enum Run {
    Gemv(Gemv),
    Gemm(Gemm),
    /// act(activations times a gate) * (activations times up), weights in NVFP4 or MXFP4.
    ///
    /// Operands come from a file as those of `run gemm`, with the weights of both halves: b (the
    /// gate, U8 [L, N, K/2]) and b_up, b_up_scale, b_up_global_scale; or b alone with both
    /// (U8 [L, 2N, K/2]), where the metadata key b_halves says stacked (the gate's rows first) or
    /// interleaved (even rows are the gate's). alpha, column_factors and bias are the gate's;
    /// up_alpha, up_column_factors ([N]) and up_bias ([N]) those of the other half.
    ///
    /// --out writes the result as `run gemm` does.
    Dual(Gemm),
    Grouped(Grouped),
    Moe(Moe),
    Rows(Rows),
}

/// One vector of activations times weights, both in NVFP4.
///
/// With --checkpoint, the weight --tensor is that of a quantised checkpoint in any layout (NVFP4), or
/// a float matrix (F32, F16 or BF16), which is quantised with TorchAO's recipe (two-level scales), as
/// is the vector of activations; then they are multiplied. The activations are those
/// of --vector, or standard normal values with --seed, or else the input of the model's first layer:
/// row --token of the file's largest matrix that has `embed` in its name and the weight's width. If
/// there is no such matrix, they are standard normal values with seed 1. The report has the largest
/// errors against the f64 oracle on the quantised data, and the signal-to-noise ratio against the
/// f64 product of the activations before they were quantised with the weight as the checkpoint has
/// it.
///
/// With --inputs, the operands come from a file with the tensors a (activations: U8 [L, K/2] or
/// [L, 1, K/2]), a_scale (F8_E4M3 or U8 [L, K/16]), a_global_scale, b (weights: U8 [L, M, K/2]),
/// b_scale ([L, M, K/16]), b_global_scale and alpha. If L is 1, its dimension may be omitted;
/// scalars are 1 if absent. The metadata keys a_scale_layout and b_scale_layout are linear (the
/// default) or 128x4. A file with the weights in a and the activations in b is refused, except for
/// M = L = 1, where both orders give the same result.
///
/// --out writes the result as the tensor c ([L, M]), but only after it has been verified.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("input").required(true))]
pub struct Gemv {
    /// Checkpoint that contains the weight: a file, an index or a folder.
    #[arg(long, group = "input", requires = "tensor", value_name = "PATH")]
    pub checkpoint: Option<PathBuf>,
    /// Operands.
    #[arg(long, group = "input", conflicts_with_all = ["tensor", "expert", "vector", "seed", "token", "layout"], value_name = "FILE")]
    pub inputs: Option<PathBuf>,
    #[command(flatten)]
    pub weight: WeightName,
    /// Activations: the tensor x, or the only tensor, of this safetensors file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "token"])]
    pub vector: Option<PathBuf>,
    /// Standard normal activations from this seed.
    #[arg(long, conflicts_with = "token")]
    pub seed: Option<u64>,
    /// Row of the embedding [default: 1000, or the last row].
    #[arg(long)]
    pub token: Option<usize>,
    /// Layout of the scales: linear or 128x4.
    #[arg(long, default_value = "linear", value_parser = parse_layout)]
    pub layout: ScaleLayout,
    /// Element type of the result: f16, bf16 or f32.
    #[arg(long, default_value = "f16", value_parser = parse_output)]
    pub dtype: FloatType,
    #[command(flatten)]
    pub results: Results,
    #[command(flatten)]
    pub target: Target,
}

/// A weight of a checkpoint.
#[derive(Debug, ClapArgs)]
pub struct WeightName {
    /// Name of the weight, a matrix [M, K] (of gemm [N, K]) or several; its ending .weight may be
    /// left out.
    #[arg(long, requires = "checkpoint", value_name = "NAME")]
    pub tensor: Option<String>,
    /// The number of the matrix, if one tensor has several experts.
    #[arg(long, requires = "tensor", value_name = "N")]
    pub expert: Option<usize>,
}

/// The output of `run`.
#[derive(Debug, ClapArgs)]
pub struct Results {
    /// The file for the result.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write each launch as a bundle in this folder, for `ptx-emu replay`.
    #[arg(long, value_name = "DIR")]
    pub capture: Option<PathBuf>,
}

/// Activations times weights in NVFP4 or MXFP4.
///
/// Operands come from a file with the tensors a (U8 [L, M, K/2] in the weights' format, or F16 or
/// BF16 [L, M, K]), a_scale ([L, M, K/block]), a_global_scale, b (U8 [L, N, K/2]; [N, K/2] for all
/// batch entries), b_scale ([L, N, K/block]), b_global_scale, alpha, row_factors ([M]),
/// column_factors ([N]), bias ([N]) and residual (F32, F16 or BF16 [L, M, N], added to the result). If
/// L is 1 its dimension may be left out; scalars are 1 and vectors do nothing if absent. The metadata key format says nvfp4 (the default, blocks of 16) or
/// mxfp4 (blocks of 32); a_scale_layout and b_scale_layout say linear (the default) or 128x4.
///
/// With --checkpoint, the weights are the matrix --tensor of a quantised checkpoint in any layout, or
/// a float matrix, which is quantised to NVFP4 with TorchAO's recipe. The activations are --rows rows
/// of standard normal values from --seed, or the tensor x, or the only tensor, of --vector; they are
/// quantised to the weights' format (with TorchAO's recipe), or with --activations rounded to f16 or
/// bf16. The report has the signal-to-noise ratio against the f64 product of the activations before
/// that with the weight as the checkpoint has it.
///
/// --out writes the result as the tensor c ([L, M, N]), only once it is verified against the f64
/// oracle. A result in nvfp4 or mxfp4 is written in the form of an operand: c (U8 [L, M, N/2]), c_scale
/// ([L, M, N/16], of mxfp4 [L, M, N/32], or L padded matrices for 128x4), c_global_scale of nvfp4, and
/// the metadata key c_scale_layout.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("input").required(true))]
pub struct Gemm {
    /// Operands.
    #[arg(long, group = "input", conflicts_with_all = ["tensor", "expert", "vector", "seed", "rows", "activations"], value_name = "FILE")]
    pub inputs: Option<PathBuf>,
    /// Checkpoint that contains the weight: a file, an index or a folder; not for `run dual`.
    #[arg(long, group = "input", requires = "tensor", value_name = "PATH")]
    pub checkpoint: Option<PathBuf>,
    #[command(flatten)]
    pub weight: WeightName,
    /// Activations [M, K]: the tensor x, or the only tensor, of this safetensors file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "rows"])]
    pub vector: Option<PathBuf>,
    /// Seed of standard normal activations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Rows of standard normal activations.
    #[arg(long, default_value_t = 16, value_name = "M")]
    pub rows: usize,
    /// Activations in the weights' format (fp4), NVFP4 with a scale for each row (fp4-rows), f16, bf16, or e4m3 (fp8,
    /// fp8-from-f16, fp8-from-bf16).
    #[arg(long, default_value = "fp4")]
    pub activations: ActivationInput,
    #[command(flatten)]
    pub product: Product,
}

/// Options of gemm, dual and grouped.
#[derive(Debug, ClapArgs)]
pub struct Product {
    /// Type of the result: f16, bf16, f32, or nvfp4 or mxfp4 with scales, N a multiple of 16 or 32.
    #[arg(long, default_value = "f16", value_parser = parse_result)]
    pub dtype: ResultType,
    /// Layout of the scales of a result in nvfp4 or mxfp4: linear or 128x4.
    #[arg(long, default_value = "linear", value_parser = parse_layout)]
    pub out_layout: ScaleLayout,
    /// Scale of the whole result in nvfp4 [default: that of the oracle's largest magnitude].
    #[arg(long, value_name = "SCALE")]
    pub out_scale: Option<f32>,
    /// Kernel by name, instead of the plan's.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Split of K, instead of the plan's choice: none, cluster:N or stream-k.
    #[arg(long, value_name = "SPLIT")]
    pub split: Option<Split>,
    /// The way in which products of e4m3 are added on sm_90a: promoted (sums of at most 512 columns in f32), or fast (all
    /// columns by the tensor core, which keeps fewer bits).
    #[arg(long, value_name = "HOW", default_value = "promoted", value_parser = parse_adding)]
    pub adding: Adding,
    /// Give a row's result the same bits in any batch, whatever its position and the other rows.
    #[arg(long)]
    pub batch_invariant: bool,
    /// Activation function of the values, or of the gate's: identity, silu, gelu-tanh, gelu, relu2
    /// or clamped-swiglu (gpt-oss's) [default: identity, of gated products silu].
    #[arg(long, value_name = "NAME", value_parser = parse_activation)]
    pub activation: Option<Activation>,
    #[command(flatten)]
    pub results: Results,
    #[command(flatten)]
    pub target: Target,
}

/// The tokens of several groups, each times the group's own weights in NVFP4 or MXFP4, in one launch.
///
/// Operands come from a file with the tensors a (activations, the tokens of one group after those of
/// another: U8 [T, K/2] in the weights' format with a_scale and a_global_scale, or F16 or BF16 [T, K]),
/// counts (I32 [G]: the tokens of each group, 0 too, whose sum is T), b (U8 [G, N, K/2]), b_scale
/// ([G, N, K/block]), b_global_scale (one value or [G]), alpha, row_factors ([T]), column_factors and
/// bias ([N] for all groups, or [G, N]), and residual ([T, N], added to the result). Scalars are 1 and vectors do nothing if absent.
///
/// With b_up, b_up_scale and b_up_global_scale, or with both halves in b (U8 [G, 2N, K/2], the
/// metadata key b_halves says stacked or interleaved), products are gated as those of `run dual`, with
/// up_alpha, up_column_factors and up_bias. The metadata keys format, a_scale_layout and
/// b_scale_layout are as for `run gemm`.
///
/// --out writes the result as `run gemm` does, c ([1, T, N]), only once it is verified.
#[derive(Debug, ClapArgs)]
pub struct Grouped {
    /// Operands.
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    #[command(flatten)]
    pub product: Product,
}

/// A norm, or a gated activation, a rotation, and the quantisation of rows.
///
/// Operands come from a file with the tensors input (F16 or BF16 [M, K]; with up the gate), and, of the same type, up ([M,
/// K]: the operation is act(input) * up), weight ([K]: a norm), bias ([K], of --norm layer) and residual ([M, K], added
/// before the norm); index (I32 [M]: rows of the input, -1 for zeros); tensor_scale (one value, the recipe's parameter of
/// nvfp4; without it each row has its own, from its largest magnitude).
///
/// --out writes codes and scales (and parameters) of a block format, codes and scales of e4m3, or c of 16 bits, and residual,
/// the sums, but only once they are verified.
#[derive(Debug, ClapArgs)]
pub struct Rows {
    /// Operands.
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    /// The norm, where there are weights: rms or layer.
    #[arg(long, default_value = "rms", value_parser = ["rms", "layer"])]
    pub norm: String,
    /// The addend of the mean of squares.
    #[arg(long, default_value_t = 1e-6)]
    pub epsilon: f32,
    /// Activation of the gate: identity, silu, gelu-tanh, gelu, relu2 or clamped-swiglu (gpt-oss's) [default: silu].
    #[arg(long, value_name = "NAME", value_parser = parse_activation)]
    pub activation: Option<Activation>,
    /// Each 16 elements are rotated by a Hadamard matrix, behind these signs: bit i negates element i.
    #[arg(long, value_name = "SIGNS")]
    pub rotate: Option<u16>,
    /// Format of the results: nvfp4 or mxfp4.
    #[arg(long, default_value = "nvfp4", value_parser = parse_format)]
    pub format: Format,
    /// Recipe; see `nvfp4 quantize --help`.
    #[arg(long, default_value = "torchao")]
    pub recipe: String,
    /// Layout of the block scales: linear or 128x4.
    #[arg(long, default_value = "linear", value_parser = parse_layout)]
    pub layout: ScaleLayout,
    /// Other results: e4m3 with a scale for each row, or the input's type (half).
    #[arg(long, value_parser = ["e4m3", "half"], conflicts_with_all = ["format", "recipe", "layout"])]
    pub to: Option<String>,
    #[command(flatten)]
    pub results: Results,
    #[command(flatten)]
    pub target: Target,
}

/// A format that a layer's activations are quantised to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TokensTo {
    /// The format of the weights.
    Fp4,
    /// NVFP4 with a scale for each row.
    Fp4Rows,
    /// E4m3.
    Fp8,
}

/// A mixture of experts, from tokens and the experts that they chose to the layer's result.
///
/// Operands come from a file with the tensors x (activations, F16 or BF16 [T, H]), ids (I32 [T, k]:
/// each token's experts), weights ([T, k]: their weights), gate and gate_up (U8 [count, I, H/2]; or
/// gate alone with both, U8 [count, 2I, H/2], where the metadata key gate_halves says stacked or
/// interleaved), down (U8 [count, H, I/2]), each with _scale ([.., K/block]) and _global_scale (one
/// value or [count]), gate_bias and gate_up_bias ([count, I]), down_bias ([count, H]) and shared
/// ([T, H], added to the result). Scales are 1 and the others are nothing if absent.
///
/// The metadata keys experts and first say how many experts there are on all devices (count if
/// absent) and which is the first in the file (0): those that are not in the file add nothing. format
/// and the layouts of scales are as for `run gemm`.
///
/// Activations are quantised to the weights' format before each product where the file has
/// x_global_scale and between_global_scale, or with --quantize; to e4m3 with --quantize fp8.
///
/// Each step is compared with the oracle on what the steps before it left. --out writes the result as
/// the tensor c ([T, H]), only once all of them are verified.
#[derive(Debug, ClapArgs)]
pub struct Moe {
    /// Operands.
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    /// Quantise activations: to the weights' format (fp4), where scales that the file lacks are those of the largest
    /// magnitudes, or, with a scale for each row, to NVFP4 (fp4-rows) or e4m3 (fp8).
    #[arg(long, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "fp4")]
    pub quantize: Option<TokensTo>,
    /// The way in which products of e4m3 are added on sm_90a: promoted (sums of at most 512 columns in f32), or fast (all
    /// columns by the tensor core, which keeps fewer bits).
    #[arg(long, value_name = "HOW", default_value = "promoted", value_parser = parse_adding)]
    pub adding: Adding,
    /// Give a token's result the same bits whatever the other tokens are.
    #[arg(long)]
    pub batch_invariant: bool,
    /// Type of the result: f16, bf16 or f32.
    #[arg(long, default_value = "f32", value_parser = parse_output)]
    pub dtype: FloatType,
    /// Activation function of the gate's values: identity, silu, gelu-tanh, gelu, relu2 or
    /// clamped-swiglu (gpt-oss's).
    #[arg(long, value_name = "NAME", default_value = "silu", value_parser = parse_activation)]
    pub activation: Activation,
    #[command(flatten)]
    pub results: Results,
    #[command(flatten)]
    pub target: Target,
}

#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("what").required(true))]
pub struct Bench {
    /// Shape, such as gemv:7168x16384x1 (MxKxL), gemm:128x7168x16384 (MxNxK),
    /// dual:256x4096x7168 (MxNxK or MxNxKxL, N of the result), grouped:80,64*2x4096x7168
    /// (M1,G*M,..xNxK: a group of 80 tokens, 64 groups of 2), grouped-dual, moe:16x256x8x7168x2048
    /// (tokens x experts x experts of a token x hidden x intermediate) quantize:4096x8192,
    /// norm:4096x7168 (a norm), act:4096x18432 (a gated activation) (MxK) or mlp:16x7168x18432 (tokens x
    /// hidden x intermediate: norm, gated product, product and what is quantised between them); can be repeated.
    #[arg(long, group = "what")]
    pub shape: Vec<String>,
    /// Named set of shapes: gemv, gemm, dual, grouped, decode, quantize, grouped-decode, moe, or `all`,
    /// which has all of these; grouped-decode and moe take gigabytes; can be repeated. An emulated device
    /// leaves out a set's shapes of more than 64 GFLOP, and says so; `--shape` runs them there, too.
    #[arg(long, group = "what")]
    pub set: Vec<String>,
    /// Inputs: contest (GEMV's), contest-gemm, contest-dual, full-range or exact.
    #[arg(long, default_value = "full-range")]
    pub generator: Generator,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Layout of the scales, linear or 128x4: of gemv's weights, of gemm's activations, of what is
    /// quantised or dequantised.
    #[arg(long, default_value = "linear", value_parser = parse_layout)]
    pub layout: ScaleLayout,
    /// gemv: kernels read the weights' scales as they are stored. By default the scales are put in the faster
    /// order at load, which is not timed: linear, or on sm_100a, of large weights, 128x4.
    #[arg(long)]
    pub as_stored: bool,
    /// f16, bf16 or f32: type of gemv's and gemm's result [default: f16], of the floats that are quantised or
    /// dequantised [default: bf16]. gemm: also nvfp4 and mxfp4, with scales, N a multiple of 16 or 32.
    #[arg(long, value_parser = parse_result)]
    pub dtype: Option<ResultType>,
    #[command(flatten)]
    pub quantize: BenchQuantize,
    #[command(flatten)]
    pub rows: BenchRows,
    #[command(flatten)]
    pub gemm: BenchGemm,
    #[command(flatten)]
    pub tune: BenchTune,
    /// Kernel by name, instead of the plan's.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// CTAs that share a batch entry, instead of the plan's.
    #[arg(long, value_name = "N")]
    pub ctas: Option<u32>,
    /// Timed replays; 0 only verifies.
    #[arg(long, default_value_t = 30)]
    pub replays: usize,
    /// Launches do not overlap: each starts when the one before it has ended. By default they
    /// overlap, as the layers of a model do.
    #[arg(long)]
    pub serial: bool,
    /// Write each launch as a bundle in this folder, for `ptx-emu replay` and `ptx-emu bound`.
    #[arg(long, value_name = "DIR", conflicts_with = "tune")]
    pub capture: Option<PathBuf>,
    /// Time launches on the host, too: from the call of an operation's launch to its return, beside the
    /// driver's calls alone for the same kernels (200 batches of 20 launches). Needs a GPU; without one the
    /// report says that nothing was measured.
    #[arg(long, conflicts_with = "tune")]
    pub host: bool,
    /// Compare with a peer on the same GPU: with cuBLAS' product of f16 operands, and of fp8 activations
    /// (gemm, dual, grouped) with its products of e4m3 operands, too.
    #[arg(long, value_parser = ["cublas"])]
    pub vs: Option<String>,
    #[command(flatten)]
    pub report: crate::report::BenchOptions,
    #[command(flatten)]
    pub target: Target,
}

/// Options of gemm, dual, grouped, grouped-dual and moe shapes.
#[derive(Debug, ClapArgs)]
pub struct BenchGemm {
    /// gemm, grouped and the gated ones: what becomes of each value, or of the gate's: identity, silu,
    /// gelu-tanh, gelu, relu2 or clamped-swiglu (gpt-oss's) [default: identity, of gated ones silu].
    #[arg(long, value_name = "NAME", value_parser = parse_activation)]
    pub activation: Option<Activation>,
    /// gemm, dual, grouped, moe: activations in the weights' format (fp4), NVFP4 with a scale for each row (fp4-rows), f16,
    /// bf16, or e4m3 with a scale for each token: fp8 (but for moe), or made of floats by a launch before, fp8-from-f16 and
    /// fp8-from-bf16. moe with fp4 and fp4-rows takes bf16 and quantises before each product [default: fp4, of the set all f16].
    #[arg(long)]
    pub activations: Option<ActivationInput>,
    /// gemm, dual, grouped: f16 and bf16 activations have the values that fp4 ones with the same seed decode
    /// to, and so the same exact products, instead of the generator's own, which may have fewer digits and then
    /// take less power to multiply.
    #[arg(long)]
    pub decoded: bool,
    /// gemm, dual, grouped: layout of the scales of a result in nvfp4 or mxfp4: linear or 128x4.
    #[arg(long, default_value = "linear", value_parser = parse_layout)]
    pub out_layout: ScaleLayout,
    /// gemm, dual, grouped, moe: how products of e4m3 are added on sm_90a: promoted (sums of at most 512 columns in
    /// f32), or fast (all columns by the tensor core, which keeps fewer bits).
    #[arg(long, value_name = "HOW", default_value = "promoted", value_parser = parse_adding)]
    pub adding: Adding,
    /// gemm, dual: how K is split, instead of the plan's choice: none, cluster:N or stream-k.
    #[arg(long, value_name = "SPLIT")]
    pub split: Option<Split>,
    /// gemm, dual, grouped, moe: plans that give a row's result the same bits in any batch.
    #[arg(long, conflicts_with = "tune")]
    pub batch_invariant: bool,
    /// gemm, dual, grouped: time this many of the plan's candidates too, the cheapest by its model first.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub sweep: usize,
    /// gemm, dual: print the candidates that the plan chose from.
    #[arg(long)]
    pub explain: bool,
}

/// Tuning of products: gemm, dual, grouped, grouped-dual and moe shapes.
#[derive(Debug, ClapArgs)]
pub struct BenchTune {
    /// gemm, dual, grouped, moe: time the plan's candidates (all, or --sweep N of them), each verified,
    /// and write the fastest of each shape, of moe those of both products, into the device's tuning
    /// table, which plans are made with from then on. Needs a GPU.
    #[arg(long, conflicts_with_all = ["kernel", "split", "vs", "serial"])]
    pub tune: bool,
    /// The table to add to [default: what NVFP4_TUNE names, or nvfp4/tune-<device>.json in
    /// XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub tune_out: Option<PathBuf>,
    /// Replace the table, even one of another driver or of other kernels.
    #[arg(long, requires = "tune")]
    pub tune_replace: bool,
}

/// Options of quantize shapes.
#[derive(Debug, ClapArgs)]
pub struct BenchQuantize {
    /// quantize, norm, act, gemm: nvfp4 or mxfp4.
    #[arg(long, default_value = "nvfp4", value_parser = parse_format)]
    pub format: Format,
    /// quantize, norm, act: recipe; see `nvfp4 quantize --help`.
    #[arg(long, default_value = "torchao")]
    pub recipe: String,
    /// quantize: direction, quantize or dequantize.
    #[arg(long, default_value = "quantize", value_parser = parse_direction)]
    pub direction: Direction,
    /// quantize, norm, act: the tensor-level scale of nvfp4. given: known before, one pass over the input;
    /// amax: from the largest magnitude, two passes (quantize); row: one per row; one: none.
    #[arg(long, default_value = "given", value_parser = ["given", "amax", "row", "one"])]
    pub scale: String,
}

/// Options of norm and act shapes.
#[derive(Debug, ClapArgs)]
pub struct BenchRows {
    /// norm: rms, layer, or none.
    #[arg(long, default_value = "rms", value_parser = ["rms", "layer", "none"])]
    pub norm: String,
    /// norm: a residual is added before, and updated.
    #[arg(long)]
    pub residual: bool,
    /// norm, act: results, instead of those that --format names: e4m3 with a scale for each row, or the input's type (half).
    #[arg(long, value_parser = ["e4m3", "half"])]
    pub to: Option<String>,
    /// norm, act: each 16 elements are rotated by a Hadamard matrix, behind signs.
    #[arg(long)]
    pub rotate: bool,
}

/// The format of inputs with scales from calibration.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Calibrated {
    /// NVFP4.
    Nvfp4,
    /// FP8.
    Fp8,
}

/// Quantise the weights of a checkpoint into a new one.
///
/// Weights are the float matrices (and batches of them) called weight whose K is a multiple of the
/// block. Everything else is copied, as are the folder's other files. Memory holds one tensor at a
/// time. The output appears complete or not at all.
#[derive(Debug, ClapArgs)]
#[command(mut_arg("out", |out| {
    out.required(false).required_unless_present("list").default_value_if("list", "true", ".")
}))]
pub struct Quantize {
    /// A .safetensors or .gguf file, an index, or a folder that has one of these.
    pub model: PathBuf,
    /// nvfp4 or mxfp4.
    #[arg(long, default_value = "nvfp4", value_parser = parse_format)]
    pub format: Format,
    /// Recipe: the project whose bytes are reproduced. nvfp4: torchao, te, modelopt,
    /// compressed-tensors; with adaptive block scaling te-4over6 (block scales up to 256, by mean
    /// absolute error), te-4over6-mse (by mean squared error), te-4over6-448 and te-4over6-448-mse
    /// (up to 448), modelopt-4over6 (256, squared). mxfp4: torchao (floor), floor, ceil, even,
    /// rceil, the same with -0.18 for that version of TorchAO, modelopt, compressed-tensors.
    #[arg(long, default_value = "torchao")]
    pub recipe: String,
    /// Block scales alone, without a scale for the tensor.
    #[arg(long)]
    pub one_level: bool,
    /// nvfp4: for each block the scale with the least squared error, from the recipe's up to 1.5 times that, for
    /// recipes without adaptive block scaling [default: true for --layout gguf, otherwise false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub search: Option<bool>,
    /// Quantise inputs too, with scales from --calibration: nvfp4 (W4A4), or fp8 (W4A8) in ModelOpt's layout,
    /// with one scale for 32 elements of a weight. Without it they stay floats (W4A16).
    #[arg(long, value_name = "FORMAT", requires = "calibration")]
    pub activations: Option<Calibrated>,
    /// Safetensors file with the largest magnitude of each layer's inputs, a scalar under the name of its
    /// module, as checkpoint/examples/record_inputs.py records it.
    #[arg(long, value_name = "FILE", requires = "activations")]
    pub calibration: Option<PathBuf>,
    /// Tensors to leave as they are; * and ? stand for any characters and for one. Can be
    /// repeated; adds to the built-in lists of embeddings, output heads, routers, encoders of images and
    /// other tensors, by architecture; --list shows them.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Ignore the built-in lists: the general one and that of the model's architecture.
    #[arg(long)]
    pub no_default_excludes: bool,
    /// Write nothing: print for every tensor what would become of it and why.
    #[arg(long)]
    pub list: bool,
    /// gpt-oss: quantise other weights than experts too, which its readers do not expect.
    #[arg(long)]
    pub all_layers: bool,
    /// Quantise on this device instead of the CPU: auto, cuda:N or emu:NAME, such as emu:h200. The bytes
    /// are the same.
    #[arg(long)]
    pub device: Option<DeviceRequest>,
    /// Folder with <arch>/manifest.json [default: NVFP4_KERNELS_DIR, or near this program].
    #[arg(long, value_name = "DIR", requires = "device")]
    pub kernels: Option<PathBuf>,
    #[command(flatten)]
    pub output: CheckpointOutput,
}

/// Write a quantised checkpoint in another layout, without changing a value.
///
/// Codes and block scales stay as they are. A tensor-level scale that is a divisor in one layout
/// and a multiplier in the other becomes its reciprocal, rounded once, which changes all values of
/// its weight by one factor, 1 to within 6e-8. MXFP4 becomes NVFP4 where
/// the layout or --format asks for it and every block can be written exactly.
#[derive(Debug, ClapArgs)]
pub struct Convert {
    /// A .safetensors or .gguf file, an index, or a folder that has one of these.
    pub checkpoint: PathBuf,
    /// Format of the output [default: the input's, where the layout has it].
    #[arg(long, value_parser = parse_format)]
    pub format: Option<Format>,
    /// Give weights that readers of the layout join (q, k and v; gate and up) one tensor-level
    /// scale. No value changes where their scales differ by powers of two that the block scales
    /// have room for; otherwise block scales are rounded, and the error is printed.
    #[arg(long)]
    pub share_scales: bool,
    /// Give experts whose scale of inputs is zero or not finite, because calibration never reached them,
    /// the largest of the same layer's experts.
    #[arg(long)]
    pub repair_input_scales: bool,
    /// Write zeros for weights in NVFP4 whose scales are no numbers and can mean nothing but zeros, as ModelOpt,
    /// TorchAO and AutoRound leave layers of zeros.
    #[arg(long)]
    pub repair_zero_layers: bool,
    #[command(flatten)]
    pub output: CheckpointOutput,
}

/// Write the float weights that a quantised checkpoint stands for.
///
/// Its other tensors and files are copied, and its configuration without the quantisation. gpt-oss's
/// experts become [experts, K, N], the order in which transformers has them unquantised. The output
/// appears complete or not at all.
#[derive(Debug, ClapArgs)]
pub struct Dequantize {
    /// A .safetensors or .gguf file, an index, or a folder that has one of these.
    pub checkpoint: PathBuf,
    /// f32, f16 or bf16 [default: that of the model before, or bf16 if it is not known].
    #[arg(long, value_parser = parse_output)]
    pub dtype: Option<FloatType>,
    #[command(flatten)]
    pub output: OutputFolder,
}

/// The folder and the layout of a checkpoint's output.
#[derive(Debug, ClapArgs)]
pub struct CheckpointOutput {
    /// modelopt, compressed-tensors, torchao, gguf, mlx, gpt-oss or deepseek (mxfp4); convert also copies quark and
    /// auto-round.
    #[arg(long)]
    pub layout: Layout,
    /// Store block scales in 128x4 tiles; torchao, and modelopt's matrices in nvfp4.
    #[arg(long)]
    pub swizzled: bool,
    #[command(flatten)]
    pub folder: OutputFolder,
}

/// The folder of a checkpoint's output.
#[derive(Debug, ClapArgs)]
pub struct OutputFolder {
    /// The folder to make.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace the checkpoint that is there. Files that are no part of one are kept.
    #[arg(long)]
    pub force: bool,
    /// Size at which another shard is begun, such as 5GB, 512MiB or a number of bytes.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = parse_bytes)]
    pub shard_bytes: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Check a quantised checkpoint, also against the model that it was made from.
///
/// Looks at names, types, shapes, every scale, and whether tensor-level scales have the layout's
/// convention. With --against also at the values: the signal-to-noise ratio of each weight, and if
/// that is low whether the order of nibbles or scales explains it; every block, whose codes must be
/// those to which the original rounds; and the ratio of products with 8 vectors of standard normal
/// activations from --seed (up to 256 rows of each weight, against the original's in f64), with the
/// activations as they are (w4a16), in FP8 with a scale per vector (w4a8), and in the weight's
/// format (w4a4). Exit code 1 if it is wrong.
#[derive(Debug, ClapArgs)]
pub struct Verify {
    /// A .safetensors or .gguf file, an index, or a folder that has one of these.
    pub checkpoint: PathBuf,
    /// The unquantised model.
    #[arg(long, value_name = "ORIGINAL")]
    pub against: Option<PathBuf>,
    /// Largest error of a code, in multiples of what rounding to the nearest explains. Calibrated
    /// rounding, such as GPTQ's, exceeds 1. Allowed for without it: maxima up to 8 times the scale
    /// in MXFP4, and in NVFP4 whose scales are all powers of two (converted MXFP4). Up to 2.5 is a
    /// warning where joined weights share a tensor-level scale, as `convert --share-scales` rounds
    /// them twice.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "against", value_parser = parse_factor)]
    pub block_bound: f64,
    /// Seed of the activations.
    #[arg(long, default_value_t = 1, requires = "against")]
    pub seed: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Inspect {
    /// A .safetensors or .gguf file, an index, or a folder that has one of these.
    pub checkpoint: PathBuf,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Doctor {
    /// Folder with <arch>/manifest.json [default: NVFP4_KERNELS_DIR, or near this program].
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

fn parse_layout(text: &str) -> Result<ScaleLayout, String> {
    operands::layout_by_name("layout", text).map_err(|error| error.to_string())
}

/// A size in bytes, with a decimal or binary unit.
fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("", 1),
        ("B", 1),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ];
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = text[digits.len()..].trim_start();
    let factor = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let size = factor.and_then(|(_, factor)| {
        let whole = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(*factor));
        let product = || digits.parse::<f64>().ok().map(|count| count * *factor as f64);
        // Fractions, as in 1.5GB; sizes of which not every byte can be told apart are none.
        whole
            .or_else(|| product().filter(|size| (0.0..9e15).contains(size)).map(|size| size as u64))
    });
    size.filter(|size| *size > 0)
        .ok_or_else(|| format!("`{text}` is no size such as 5GB, 512MiB or 1000000"))
}

fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| *factor >= 1.0 && factor.is_finite());
    factor.ok_or_else(|| format!("`{text}` is no number of at least 1"))
}

fn parse_activation(text: &str) -> Result<Activation, String> {
    Activation::parse(text).ok_or_else(|| {
        let known = Activation::ALL.map(Activation::name).join(", ");
        format!("`{text}` is none of {known}")
    })
}

fn parse_adding(text: &str) -> Result<Adding, String> {
    let known = Adding::ALL.into_iter().find(|adding| adding.name() == text);
    known.ok_or_else(|| format!("`{text}` is none of {}", Adding::ALL.map(Adding::name).join(", ")))
}

fn parse_format(text: &str) -> Result<Format, String> {
    let known = [Format::Nvfp4, Format::Mxfp4].into_iter().find(|format| format.name() == text);
    known.ok_or_else(|| format!("`{text}` is neither nvfp4 nor mxfp4"))
}

fn parse_direction(text: &str) -> Result<Direction, String> {
    match text {
        "quantize" => Ok(Direction::Quantize),
        "dequantize" => Ok(Direction::Dequantize),
        _ => Err(format!("`{text}` is neither quantize nor dequantize")),
    }
}

fn parse_output(text: &str) -> Result<FloatType, String> {
    FloatType::by_name(text).ok_or_else(|| format!("`{text}` is none of f16, bf16, f32"))
}

/// The result types that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    Floats(FloatType),
    Blocks(Format),
}

impl ResultType {
    /// The name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Floats(floats) => floats.name(),
            Self::Blocks(format) => format.name(),
        }
    }

    /// The floats, `default` if none were asked for.
    pub fn floats(asked: Option<Self>, default: FloatType) -> FloatType {
        match asked {
            Some(Self::Floats(floats)) => floats,
            Some(Self::Blocks(_)) | None => default,
        }
    }
}

fn parse_result(text: &str) -> Result<ResultType, String> {
    if let Some(format) = Format::ALL.into_iter().find(|format| format.name() == text) {
        return Ok(ResultType::Blocks(format));
    }
    let floats = FloatType::by_name(text).map(ResultType::Floats);
    floats.ok_or_else(|| format!("`{text}` is none of f16, bf16, f32, nvfp4, mxfp4"))
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
    fn sizes_have_units() {
        for (text, bytes) in [
            ("5GB", 5_000_000_000),
            ("5gb", 5_000_000_000),
            ("1.5 GB", 1_500_000_000),
            ("512MiB", 512 << 20),
            ("2TiB", 2 << 40),
            ("7", 7),
            ("3 B", 3),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "GB", "5XB", "-5GB", "0", "0.5", "5GB5", "nan", "inf GB", "99999999TB"] {
            assert!(parse_bytes(text).is_err(), "{text}: {:?}", parse_bytes(text));
        }
    }

    #[test]
    fn one_input_is_required_and_they_exclude_each_other() {
        let parse = |line: &str| Args::try_parse_from(line.split_whitespace()).is_ok();
        assert!(parse("nvfp4 run gemv --checkpoint m --tensor t"));
        assert!(parse("nvfp4 run gemv --inputs i --out o"));
        assert!(!parse("nvfp4 run gemv"));
        assert!(parse(
            "nvfp4 run gemm --inputs i --out o --capture c --kernel k --split cluster:2"
        ));
        assert!(parse("nvfp4 run dual --inputs i --activation gelu-tanh --dtype nvfp4"));
        assert!(!parse("nvfp4 run dual --inputs i --activation swish"));
        assert!(parse("nvfp4 bench --set dual --activation clamped-swiglu --tune"));
        assert!(!parse("nvfp4 run gemm --out o"));
        assert!(!parse("nvfp4 run gemm --inputs i --dtype f64"));
        assert!(parse("nvfp4 run gemm --inputs i --dtype nvfp4 --out-layout 128x4 --out-scale 2"));
        assert!(!parse("nvfp4 run gemm --inputs i --dtype nvfp4 --out-layout 4x128"));
        assert!(!parse("nvfp4 run gemv --inputs i --dtype nvfp4"));
        assert!(!parse("nvfp4 run gemv --checkpoint m"));
        assert!(!parse("nvfp4 run gemv --checkpoint m --tensor t --inputs i"));
        assert!(!parse("nvfp4 run gemv --checkpoint m --tensor t --seed 1 --token 2"));
        assert!(!parse("nvfp4 run gemv --inputs i --device tpu:0"));
        assert!(!parse("nvfp4 bench"));
        assert!(parse("nvfp4 bench --set gemm --host --replays 0"));
        assert!(parse("nvfp4 bench --set gemm --batch-invariant --split none"));
        assert!(!parse("nvfp4 bench --set gemm --batch-invariant --tune"));
        assert!(parse("nvfp4 run grouped --inputs i --batch-invariant"));
        assert!(parse("nvfp4 run moe --inputs i --quantize fp4-rows --batch-invariant"));
        assert!(parse("nvfp4 bench --set gemm --set dual"));
        assert!(!parse("nvfp4 bench --set gemm --shape gemv:128x256x1"));
        assert!(!parse("nvfp4 bench --set gemm --host --tune"));
        assert!(parse("nvfp4 bench --set all --vs cublas --report d --record r"));
        assert!(!parse("nvfp4 bench --set all --record r"));
        assert!(!parse("nvfp4 bench --set gemm --tune --report d"));
        assert!(parse("nvfp4 report --from a b --report d --set gemm --activations f16"));
        assert!(!parse("nvfp4 report --report d"));
        assert!(parse("nvfp4 bench --set gemm --tune --tune-out t.json --tune-replace --sweep 9"));
        assert!(!parse("nvfp4 bench --set gemm --tune-out t.json"));
        assert!(!parse("nvfp4 bench --set gemm --tune --split cluster:2"));
        assert!(!parse("nvfp4 bench --set gemm --tune --kernel k"));
        assert!(parse("nvfp4 quantize m --layout modelopt --out o --exclude a --exclude b"));
        assert!(!parse("nvfp4 quantize m --layout modelopt"));
        assert!(parse("nvfp4 quantize m --layout gguf --out o"));
        assert!(!parse("nvfp4 quantize m --layout ggml --out o"));
        assert!(parse("nvfp4 convert m --layout gpt-oss --out o --force"));
        assert!(parse("nvfp4 verify m --against o --json --block-bound 3 --seed 2"));
        assert!(!parse("nvfp4 verify m --block-bound 3"));
        assert!(!parse("nvfp4 verify m --against o --block-bound 0.5"));
        assert!(parse("nvfp4 dequantize m --dtype bf16 --out o --shard-bytes 2GiB"));
        assert!(!parse("nvfp4 dequantize m --dtype nvfp4 --out o"));
        assert!(parse("nvfp4 run gemm --checkpoint m --tensor t --expert 3 --activations bf16"));
        assert!(parse("nvfp4 run gemm --checkpoint m --tensor t --rows 4 --seed 9"));
        assert!(parse("nvfp4 run grouped --inputs i --dtype nvfp4 --out-layout 128x4 --out o"));
        assert!(!parse("nvfp4 run grouped --dtype f16"));
        assert!(!parse("nvfp4 run grouped --checkpoint m --tensor t"));
        assert!(parse("nvfp4 run moe --inputs i --quantize --activation clamped-swiglu"));
        assert!(!parse("nvfp4 run moe --inputs i --dtype nvfp4"));
        assert!(!parse("nvfp4 run gemm --checkpoint m"));
        assert!(!parse("nvfp4 run gemm --inputs i --rows 4"));
        assert!(!parse("nvfp4 run gemm --inputs i --checkpoint m --tensor t"));
        assert!(parse("nvfp4 bench --shape quantize:1x32 --format mxfp4 --direction dequantize"));
        assert!(parse("nvfp4 bench --shape gemm:1x16x16 --dtype nvfp4 --out-layout 128x4"));
        assert!(parse("nvfp4 bench --shape gemm:1x16x16 --dtype mxfp4"));
        assert!(!parse("nvfp4 bench --shape gemm:1x16x16 --dtype mxfp8"));
        assert!(parse("nvfp4 bench --set gemv --device emu:b200 --schedule random:7"));
    }
}
