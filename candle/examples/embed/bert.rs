//! BERT's encoder, with linear layers in floats or packed.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{Embedding, LayerNorm, VarBuilder, ops};
use nvfp4_candle::PackedBuilder;

/// Sizes of a model.
#[derive(Clone, Copy)]
pub struct Config {
    pub vocabulary: usize,
    pub positions: usize,
    hidden: usize,
    layers: usize,
    heads: usize,
    between: usize,
}

impl Config {
    /// all-MiniLM-L6-v2.
    pub const MINI_LM: Self = Self {
        vocabulary: 30522,
        positions: 512,
        hidden: 384,
        layers: 6,
        heads: 12,
        between: 1536,
    };
    /// The same architecture.
    pub const SMALL: Self =
        Self { vocabulary: 400, positions: 64, hidden: 128, layers: 2, heads: 4, between: 512 };
    /// Epsilon that is added to variances (`layer_norm_eps`).
    const EPSILON: f64 = 1e-12;
}

/// Source of the linear layers.
pub enum Layers {
    /// The floats themselves.
    Floats,
    /// NVFP4.
    Packed(PackedBuilder),
}

/// All tensors of a file, in f32.
pub fn floats(path: &Path, device: &Device) -> Result<VarBuilder<'static>> {
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
    let floats = tensors.into_iter().filter(|(_, tensor)| tensor.dtype().is_float());
    let floats: HashMap<String, Tensor> = floats
        .map(|(name, tensor)| Ok((name, tensor.to_dtype(DType::F32)?.to_device(device)?)))
        .collect::<Result<_>>()?;
    Ok(VarBuilder::from_tensors(floats, DType::F32, device))
}

type Dense = Box<dyn Module>;

struct Block {
    query: Dense,
    key: Dense,
    value: Dense,
    attended: Dense,
    attended_norm: LayerNorm,
    between: Dense,
    output: Dense,
    output_norm: LayerNorm,
}

/// The encoder.
pub struct Bert {
    config: Config,
    dtype: DType,
    words: Embedding,
    positions: Tensor,
    segment: Tensor,
    norm: LayerNorm,
    blocks: Vec<Block>,
}

impl Bert {
    /// A model of the tensors in `floats`, whose linear layers come from `layers`, with activations of a
    /// type.
    pub fn new(config: Config, floats: &VarBuilder, layers: &Layers, dtype: DType) -> Result<Self> {
        let Config { vocabulary, positions, hidden, between, .. } = config;
        let norm = |path: &str| -> Result<LayerNorm> {
            let tensor = |name: &str| floats.pp(path).get(hidden, name)?.to_dtype(dtype);
            Ok(LayerNorm::new(tensor("weight")?, tensor("bias")?, Config::EPSILON))
        };
        let dense = |path: String, inputs: usize, outputs: usize| -> Result<Dense> {
            Ok(match layers {
                Layers::Floats => Box::new(candle_nn::linear(inputs, outputs, floats.pp(path))?),
                Layers::Packed(packed) => Box::new(packed.pp(path).linear(inputs, outputs)?),
            })
        };
        let table = |name: &str, rows: usize| -> Result<Tensor> {
            floats.pp("embeddings").pp(name).get((rows, hidden), "weight")?.to_dtype(dtype)
        };
        let block = |index: usize| -> Result<Block> {
            let path = |name: &str| format!("encoder.layer.{index}.{name}");
            let own = |name: &str| dense(path(name), hidden, hidden);
            Ok(Block {
                query: own("attention.self.query")?,
                key: own("attention.self.key")?,
                value: own("attention.self.value")?,
                attended: own("attention.output.dense")?,
                attended_norm: norm(&path("attention.output.LayerNorm"))?,
                between: dense(path("intermediate.dense"), hidden, between)?,
                output: dense(path("output.dense"), between, hidden)?,
                output_norm: norm(&path("output.LayerNorm"))?,
            })
        };
        Ok(Self {
            config,
            dtype,
            words: Embedding::new(table("word_embeddings", vocabulary)?, hidden),
            positions: table("position_embeddings", positions)?,
            segment: table("token_type_embeddings", 2)?.narrow(0, 0, 1)?,
            norm: norm("embeddings.LayerNorm")?,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
        })
    }

    /// Unit vectors `[sentences, hidden]`: the means over the tokens that `mask` has.
    pub fn embed(&self, ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (sentences, length) = ids.dims2()?;
        let x = self.words.forward(ids)?;
        let x =
            x.broadcast_add(&self.positions.narrow(0, 0, length)?)?.broadcast_add(&self.segment)?;
        let mut x = self.norm.forward(&x)?;
        // 0 where there is a token, and far below all scores elsewhere; f16 has it, too.
        let hidden =
            mask.affine(1e4, -1e4)?.reshape((sentences, 1, 1, length))?.to_dtype(self.dtype)?;
        for block in &self.blocks {
            let attended = block.attended.forward(&self.attention(block, &x, &hidden)?)?;
            x = block.attended_norm.forward(&(x + attended)?)?;
            let output = block.output.forward(&block.between.forward(&x)?.gelu_erf()?)?;
            x = block.output_norm.forward(&(x + output)?)?;
        }
        let x = x.to_dtype(DType::F32)?;
        let sums = x.broadcast_mul(&mask.unsqueeze(2)?)?.sum(1)?;
        sums.broadcast_div(&sums.sqr()?.sum_keepdim(1)?.sqrt()?)
    }

    fn attention(&self, block: &Block, x: &Tensor, hidden: &Tensor) -> Result<Tensor> {
        let (sentences, length, width) = x.dims3()?;
        let heads = self.config.heads;
        let by_head = |x: Tensor| {
            x.reshape((sentences, length, heads, width / heads))?.transpose(1, 2)?.contiguous()
        };
        let query = by_head(block.query.forward(x)?)?;
        let key = by_head(block.key.forward(x)?)?;
        let value = by_head(block.value.forward(x)?)?;
        let scale = ((width / heads) as f64).sqrt().recip();
        let scores = (query.matmul(&key.t()?)? * scale)?.broadcast_add(hidden)?;
        let mixed = ops::softmax(&scores, D::Minus1)?.matmul(&value)?;
        mixed.transpose(1, 2)?.reshape((sentences, length, width))
    }
}

/// Writes a random model.
pub fn write_random(path: &Path, config: Config) -> Result<()> {
    let Config { vocabulary, positions, hidden, layers, between, .. } = config;
    let mut tensors = HashMap::new();
    let mut seed = 1u64;
    let mut uniform = move || {
        // Knuth's MMIX.
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 40) as f32 / (1u64 << 23) as f32 - 1.
    };
    let mut put = |name: String, dims: &[usize], factor: f32, shift: f32| -> Result<()> {
        let count = dims.iter().product();
        let values: Vec<f32> = (0..count).map(|_| uniform() * factor + shift).collect();
        tensors.insert(name, Tensor::from_vec(values, dims, &Device::Cpu)?);
        Ok(())
    };
    let tables = [("word", vocabulary), ("position", positions), ("token_type", 2)];
    for (name, rows) in tables {
        put(format!("embeddings.{name}_embeddings.weight"), &[rows, hidden], 1., 0.)?;
    }
    let mut norms = vec!["embeddings.LayerNorm".to_owned()];
    for layer in 0..layers {
        let path = |name: &str| format!("encoder.layer.{layer}.{name}");
        norms.extend([path("attention.output.LayerNorm"), path("output.LayerNorm")]);
        for (name, rows, columns) in [
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", between, hidden),
            ("output.dense", hidden, between),
        ] {
            let factor = (3. / columns as f32).sqrt();
            put(path(&format!("{name}.weight")), &[rows, columns], factor, 0.)?;
            put(path(&format!("{name}.bias")), &[rows], 0.1, 0.)?;
        }
    }
    for norm in norms {
        put(format!("{norm}.weight"), &[hidden], 0.1, 1.)?;
        put(format!("{norm}.bias"), &[hidden], 0.1, 0.)?;
    }
    candle_core::safetensors::save(&tensors, path)
}
