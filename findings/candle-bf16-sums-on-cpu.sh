#!/usr/bin/env bash
# candle 0.11.1 adds bf16 in bf16 on a CPU, one number after the other, so that no sum of ones exceeds 256: a softmax
# over 2048 equal scores sums to 8, and the mean of 2048 ones is 0.125. In f16 sums of ones end at 2048.
#
# Equal scores are the worst case; shares of 4096 normally distributed ones sum to about 2.5. candle-transformers'
# mistral takes its softmax in the model's type, and its llama in f32. Below, both have the same weights and attend to
# 2048 copies of one token, whose mean is that token: llama's logits are those of one token alone, and mistral's differ
# by more than half of the largest. A CUDA kernel of candle-kernels adds in f32, so the CPU is no reference for it. Sums
# in bf16 or f16 on a CPU need a conversion to f32 before them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

mkdir src
cat > Cargo.toml <<TOML
[package]
name = "sums"
version = "0.0.0"
edition = "2021"
[dependencies]
candle-core = "=0.11.1"
candle-nn = "=0.11.1"
candle-transformers = "=0.11.1"
serde_json = "1"
TOML
cat > src/main.rs <<'RUST'
use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, D};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, mistral};

const TOKENS: usize = 2048;

/// Reproducible weights in -1/4..1/4, and ones for norms.
fn weights(dtype: DType) -> Result<HashMap<String, Tensor>> {
    let layer = "model.layers.0";
    let mut all = HashMap::new();
    let mut state = 1u32;
    for (name, shape) in [
        ("model.embed_tokens.weight".to_owned(), vec![32, 16]),
        ("lm_head.weight".to_owned(), vec![32, 16]),
        ("model.norm.weight".to_owned(), vec![16]),
        (format!("{layer}.input_layernorm.weight"), vec![16]),
        (format!("{layer}.post_attention_layernorm.weight"), vec![16]),
        (format!("{layer}.self_attn.q_proj.weight"), vec![16, 16]),
        (format!("{layer}.self_attn.k_proj.weight"), vec![16, 16]),
        (format!("{layer}.self_attn.v_proj.weight"), vec![16, 16]),
        (format!("{layer}.self_attn.o_proj.weight"), vec![16, 16]),
        (format!("{layer}.mlp.gate_proj.weight"), vec![16, 16]),
        (format!("{layer}.mlp.up_proj.weight"), vec![16, 16]),
        (format!("{layer}.mlp.down_proj.weight"), vec![16, 16]),
    ] {
        let one = shape.len() == 1;
        let mut next = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            if one { 1.0 } else { (state >> 8) as f32 / (1 << 25) as f32 - 0.25 }
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
        all.insert(name, Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?);
    }
    Ok(all)
}

/// How far the logits after many equal tokens are from those after one, as a part of the largest.
fn difference(mut logits: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<f32> {
    let mut after = |count: usize| -> Result<Vec<f32>> {
        let tokens = Tensor::full(7u32, (1, count), &Device::Cpu)?;
        logits(&tokens)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    };
    let (one, many) = (after(1)?, after(TOKENS)?);
    let largest = one.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    Ok(one.iter().zip(&many).map(|(x, y)| (x - y).abs()).fold(0f32, f32::max) / largest)
}

fn main() -> Result<()> {
    let device = Device::Cpu;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let zeros = Tensor::zeros((1, 2 * TOKENS), dtype, &device)?;
        let scalar = |x: Tensor| x.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>();
        for count in [TOKENS, 2 * TOKENS] {
            let zeros = zeros.narrow(1, 0, count)?.contiguous()?;
            let softmax = scalar(candle_nn::ops::softmax_last_dim(&zeros)?)?;
            let ones = zeros.ones_like()?;
            let (sum, mean) = (scalar(ones.sum(D::Minus1)?)?, scalar(ones.mean(D::Minus1)?)?);
            println!("{dtype:?} {count}: softmax {softmax}, sum {sum}, mean {mean}");
        }
        let scores = Tensor::randn(0f32, 1f32, (64, 2 * TOKENS), &device)?.to_dtype(dtype)?;
        let shares = scalar(candle_nn::ops::softmax_last_dim(&scores)?)? / 64.0;
        println!("{dtype:?} normal: softmax {shares:.1}");
    }
    let config = serde_json::json!({
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096, "rope_theta": 10000.0,
    });
    for dtype in [DType::F32, DType::BF16] {
        let builder = VarBuilder::from_tensors(weights(dtype)?, dtype, &device);
        let read: llama::LlamaConfig = serde_json::from_value(config.clone()).unwrap();
        let read = read.into_config(false);
        let model = llama::Llama::load(builder.clone(), &read)?;
        let llama = difference(|tokens| {
            model.forward(tokens, 0, &mut llama::Cache::new(false, dtype, &read, &device)?)
        })?;
        let mut model = mistral::Model::new(&serde_json::from_value(config.clone()).unwrap(), builder)?;
        let mistral = difference(|tokens| {
            model.clear_kv_cache();
            model.forward(tokens, 0)
        })?;
        println!("{dtype:?}: llama {llama:.3}, mistral {mistral:.3}");
    }
    Ok(())
}
RUST
found=$(CARGO_TARGET_DIR=target cargo run -q)
echo "$found"
[ "$(grep -v normal <<< "$found" | head -6)" = "F32 2048: softmax 1, sum 2048, mean 1
F32 4096: softmax 1, sum 4096, mean 1
F16 2048: softmax 1, sum 2048, mean 1
F16 4096: softmax 2, sum 2048, mean 0.5
BF16 2048: softmax 8, sum 256, mean 0.125
BF16 4096: softmax 16, sum 256, mean 0.0625" ]
grep -q "^F32 normal: softmax 1.0" <<< "$found"
grep -q "^BF16 normal: softmax 2" <<< "$found"
grep -q "^F32: llama 0.000, mistral 0.000" <<< "$found"
grep -qE "^BF16: llama 0.0.., mistral 0.[5-9]" <<< "$found"
