//! Reads a block's experts and router, runs it, and says how far the result is from the reference.

use std::fmt;

use anyhow::Context;
use fp4_formats::{BlockFormat, HalfType, Mxfp4, Nvfp4};
use nvfp4::device::Kernels;
use nvfp4::floats;
use nvfp4::gemm::{Activation, GatedWeights, HalfMatrix};
use nvfp4::moe::{MoeOptions, MoeShape, TokenFormat};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_checkpoint::{Blocks, Layout, Model, Weight, load, matrix};
use nvfp4_lab::moe::{HostBiases, MoeOperands, MoeRun};
use nvfp4_lab::oracle;
use nvfp4_lab::rng::SplitMix64;

use super::f32_reference;

/// A run of the block.
pub struct Ran {
    /// `W4A16` or `W4A4`.
    pub name: &'static str,
    /// The plans of both products.
    pub plans: [String; 2],
    /// Whether every step is what the f64 oracle makes of what the step before it left.
    pub verified: bool,
    /// Signal-to-noise ratio against the f32 reference with the same quantised weights, dB.
    pub sqnr_db: f64,
    /// The largest error over the largest magnitude of the reference.
    pub relative_error: f64,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, plans: [first, second], sqnr_db, .. } = self;
        let percent = 100.0 * self.relative_error;
        writeln!(f, "{name:<6} SQNR {sqnr_db:.2} dB, largest error {percent:.2} %")?;
        write!(f, "first  {first}\nsecond {second}")
    }
}

/// The part that chooses the experts.
pub struct Router {
    /// `[experts, H]`.
    pub weight: Vec<f32>,
    /// `[experts]`.
    pub bias: Vec<f32>,
    /// Experts of a token.
    pub top_k: usize,
}

/// An expert's weights in f32, as they are quantised, and its biases.
pub struct Values {
    /// `[I, H]`.
    pub gate: Vec<f32>,
    /// `[I, H]`.
    pub up: Vec<f32>,
    /// `[H, I]`.
    pub down: Vec<f32>,
    /// `[I]`, `[I]`, `[H]`.
    pub biases: [Vec<f32>; 3],
}

/// An expert's weights as the checkpoint has them.
enum Expert {
    /// gpt-oss: even rows are the gate's.
    Interleaved { gate_up: Blocks, down: Blocks },
    /// ModelOpt: a tensor each.
    Apart { gate: Blocks, up: Blocks, down: Blocks },
}

/// Runs `tokens` random tokens through the block called `name`.
pub fn run(
    kernels: &Kernels,
    model: &Model,
    name: &str,
    tokens: usize,
) -> anyhow::Result<Vec<Ran>> {
    let layout = Layout::detect(model).context("no quantised weight in a known layout")?;
    match layout {
        Layout::GptOss => {
            Block::gpt_oss(model, name)?.run::<Mxfp4>(kernels, tokens, |blocks| match blocks {
                Blocks::Mxfp4(blocks) => Ok(blocks),
                Blocks::Nvfp4(_) => anyhow::bail!("gpt-oss's layout holds MXFP4"),
            })
        }
        Layout::ModelOpt => {
            Block::modelopt(model, name)?.run::<Nvfp4>(kernels, tokens, |blocks| match blocks {
                Blocks::Nvfp4(blocks) => Ok(blocks),
                Blocks::Mxfp4(_) => anyhow::bail!("this example takes NVFP4 in ModelOpt's layout"),
            })
        }
        Layout::CompressedTensors
        | Layout::TorchAo
        | Layout::Gguf
        | Layout::Mlx
        | Layout::Quark
        | Layout::AutoRound
        | Layout::DeepSeek => {
            anyhow::bail!("this example takes the layouts gpt-oss and modelopt, not {layout}")
        }
    }
}

/// A block of either layout.
struct Block {
    router: Router,
    experts: Vec<Expert>,
    values: Vec<Values>,
    hidden: usize,
    activation: Activation,
}

/// Rows of a matrix at every other place, from `start` on.
fn every_other(matrix: &[f32], columns: usize, start: usize) -> Vec<f32> {
    matrix.chunks_exact(columns).skip(start).step_by(2).flatten().copied().collect()
}

impl Block {
    fn router(model: &Model, name: &str) -> anyhow::Result<(Router, usize)> {
        let weight = format!("{name}.weight");
        let (experts, hidden, weight) = model.file(&weight)?.matrix(&weight)?;
        let bias = format!("{name}.bias");
        let bias = match model.contains(&bias) {
            true => model.file(&bias)?.floats(&bias)?.values,
            false => vec![0.0; experts],
        };
        let top_k = model.config().and_then(|config| config["num_experts_per_tok"].as_u64());
        let top_k = top_k.context("config.json has no num_experts_per_tok")? as usize;
        Ok((Router { weight, bias, top_k }, hidden))
    }

    /// Experts in one tensor, `[E, 2I, H/32, 16]` and `[E, H, I/32, 16]`, with biases.
    fn gpt_oss(model: &Model, name: &str) -> anyhow::Result<Self> {
        let (router, hidden) = Self::router(model, &format!("{name}.router"))?;
        let stack = |projection: &str| -> anyhow::Result<(Weight, Vec<f32>)> {
            let tensor = format!("{name}.experts.{projection}");
            let parts = Layout::GptOss.find(model).into_iter().find(|parts| parts.name == tensor);
            let parts = parts.with_context(|| format!("no weight {tensor}"))?;
            let bias = format!("{tensor}_bias");
            let bias = model.file(&bias)?.floats(&bias)?.values;
            Ok((load(model, Layout::GptOss, &parts)?, bias))
        };
        let (gate_up, gate_up_bias) = stack("gate_up_proj")?;
        let (down, down_bias) = stack("down_proj")?;
        let count = gate_up.blocks.dims().batch();
        let between = gate_up.blocks.dims().rows() / 2;
        let (mut experts, mut values) = (Vec::new(), Vec::new());
        for expert in 0..count {
            let (gate_up, down) = (gate_up.entry(expert)?, down.entry(expert)?);
            let all = gate_up.dequantize()?;
            let bias = &gate_up_bias[expert * 2 * between..][..2 * between];
            values.push(Values {
                gate: every_other(&all, hidden, 0),
                up: every_other(&all, hidden, 1),
                down: down.dequantize()?,
                biases: [
                    every_other(bias, 1, 0),
                    every_other(bias, 1, 1),
                    down_bias[expert * hidden..][..hidden].to_vec(),
                ],
            });
            experts.push(Expert::Interleaved { gate_up, down });
        }
        Ok(Self { router, experts, values, hidden, activation: Activation::GPT_OSS })
    }

    /// A matrix for each expert's gate, up and down, without biases.
    fn modelopt(model: &Model, name: &str) -> anyhow::Result<Self> {
        let (router, hidden) = Self::router(model, &format!("{name}.gate"))?;
        let (mut experts, mut values) = (Vec::new(), Vec::new());
        for expert in 0..router.bias.len() {
            let read = |projection: &str| {
                matrix(model, &format!("{name}.experts.{expert}.{projection}"), None)
            };
            let (gate, up, down) = (read("gate_proj")?, read("up_proj")?, read("down_proj")?);
            let between = down.blocks.dims().cols();
            values.push(Values {
                gate: gate.values,
                up: up.values,
                down: down.values,
                biases: [vec![0.0; between], vec![0.0; between], vec![0.0; hidden]],
            });
            experts.push(Expert::Apart { gate: gate.blocks, up: up.blocks, down: down.blocks });
        }
        Ok(Self { router, experts, values, hidden, activation: Activation::Silu })
    }

    /// Runs the block with weights in format `F`, which `of` takes out of a checkpoint's.
    fn run<F: BlockFormat + Clone>(
        self,
        kernels: &Kernels,
        tokens: usize,
        of: impl Fn(Blocks) -> anyhow::Result<BlockScaled<F>>,
    ) -> anyhow::Result<Vec<Ran>> {
        let Self { router, experts, values, hidden, activation } = self;
        let mut rng = SplitMix64::new(5);
        let x: Vec<f32> = (0..tokens * hidden).map(|_| rng.normal() as f32).collect();
        let x = HalfMatrix::round("x", Dims::new(1, tokens, hidden)?, HalfType::Bf16, &x)?;
        let exact = floats::decode(HalfType::Bf16.float(), x.bytes());
        let (ids, weights) = f32_reference::route(&router, &exact, hidden);
        let clamped = activation == Activation::GPT_OSS;
        let choices = (ids.as_slice(), weights.as_slice());
        let reference = f32_reference::block(&values, clamped, &exact, hidden, choices);
        let reference: Vec<f64> = reference.into_iter().map(f64::from).collect();

        let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
        for expert in experts {
            let (first, down) = match expert {
                Expert::Interleaved { gate_up, down } => ((of(gate_up)?, None), down),
                Expert::Apart { gate, up, down } => ((of(gate)?, Some(of(up)?)), down),
            };
            firsts.push(first);
            seconds.push(of(down)?);
        }
        let first = firsts.iter().map(|(gate, up)| match up {
            Some(up) => GatedWeights::pair(gate, up).map(Into::into),
            None => GatedWeights::interleaved(gate).map(Into::into),
        });
        let count = values.len();
        let biases = [0, 1, 2].map(|at| {
            values.iter().flat_map(|values| values.biases[at].iter().copied()).collect::<Vec<f32>>()
        });
        let [gate, up, down] = biases.each_ref().map(|bias| Some(bias.as_slice()));
        let mut operands = MoeOperands {
            shape: MoeShape { tokens, top_k: router.top_k, experts: count, first: 0, count },
            tokens: &x,
            ids: &ids,
            weights: &weights,
            first: first.collect::<Result<_, _>>()?,
            second: seconds.iter().map(Into::into).collect(),
            factors: None,
            biases: HostBiases { gate, up, down },
            shared: None,
            options: MoeOptions::new().activation(activation),
        };
        let mut all = vec![ran(kernels, "W4A16", &operands, &reference)?];
        if F::NAME == Nvfp4::NAME {
            // A checkpoint's input scales are made like these, from tokens that calibrate it.
            operands.options.quantized = Some(TokenFormat::Blocks(operands.token_scales()?));
            all.push(ran(kernels, "W4A4", &operands, &reference)?);
        }
        Ok(all)
    }
}

fn ran<F: BlockFormat>(
    kernels: &Kernels,
    name: &'static str,
    operands: &MoeOperands<'_, F>,
    reference: &[f64],
) -> anyhow::Result<Ran> {
    let weights = operands.repack(kernels.device())?;
    let run = MoeRun::new(kernels, operands, weights.each_ref())?;
    run.launch()?;
    let steps = run.check(operands)?;
    let values = run.values()?;
    let errors = reference.iter().zip(&values).map(|(right, got)| (f64::from(*got) - right).abs());
    let largest = reference.iter().fold(0f64, |most, value| most.max(value.abs()));
    Ok(Ran {
        name,
        plans: run.layer().products().map(|product| product.plan().to_string()),
        verified: run.problem()?.is_none() && steps.iter().all(|step| step.verified),
        sqnr_db: oracle::sqnr_db(reference, &values),
        relative_error: errors.fold(0f64, f64::max) / largest,
    })
}
