#!/usr/bin/env bash
# A sliding window of 4 is 5 tokens in a prompt for candle-transformers 0.11.1's mistral and qwen2, and all tokens when
# a prompt comes in parts or text is generated. transformers 5.24.0 has 4 each time, the token itself among them.
#
# candle's mask hides what is more than the window behind, which is one token later, and has zeros for all that is in
# the cache. So the same text gives other logits by how it was cut, without an error, and a comparison of short prompts
# with transformers shows nothing before the window is exceeded.
# Seen, as the number of tokens that the last token's logits depend on in a model of one layer and 12 tokens: 4 for
# transformers; 5, 12 and 12 for candle. The packages take 6 GB, because torch brings CUDA.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q transformers==5.24.0 torch==2.14.0

cat > reach.py <<PY
import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(1)
TOKENS = 12
sizes = dict(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=64, sliding_window=4,
)
models = dict(
    mistral=MistralForCausalLM(MistralConfig(**sizes)),
    qwen2=Qwen2ForCausalLM(Qwen2Config(**sizes, use_sliding_window=True, max_window_layers=0)),
)


def logits(model, tokens, parts):
    cache, at = DynamicCache(config=model.config), 0
    for part in parts:
        result = model(torch.tensor([tokens[at:at + part]]), past_key_values=cache, use_cache=True)
        at += part
    return result.logits[0, -1]


for name, model in models.items():
    for form, parts in (("one prompt", [TOKENS]), ("two halves", [TOKENS // 2] * 2), ("tokens", [1] * TOKENS)):
        with torch.no_grad():
            plain = list(range(TOKENS))
            expected, reach = logits(model.eval(), plain, parts), 1
            for distance in range(1, TOKENS):
                changed = list(plain)
                changed[TOKENS - 1 - distance] = 30
                if not torch.equal(logits(model, changed, parts), expected):
                    reach = distance + 1
        print(f"{name}, {form}: {reach}")
PY
theirs=$(venv/bin/python reach.py 2> log || { cat log >&2; exit 1; })

mkdir src
cat > Cargo.toml <<TOML
[package]
name = "reach"
version = "0.0.0"
edition = "2021"
[dependencies]
candle-core = "=0.11.1"
candle-nn = "=0.11.1"
candle-transformers = "=0.11.1"
serde_json = "1"
TOML
cat > src/main.rs <<'RUST'
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::{mistral, qwen2};

const TOKENS: usize = 12;

/// Prints how many tokens the last token's logits depend on.
fn run(name: &str, mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>) -> Result<()> {
    let forms = [("one prompt", vec![TOKENS]), ("two halves", vec![TOKENS / 2; 2]), ("tokens", vec![1; TOKENS])];
    for (form, parts) in forms {
        let mut logits = |tokens: &[u32]| -> Result<Vec<f32>> {
            let (mut at, mut last) = (0, vec![]);
            for &part in &parts {
                let ids = Tensor::new(&tokens[at..at + part], &Device::Cpu)?.unsqueeze(0)?;
                last = forward(&ids, at)?.flatten_all()?.to_vec1()?;
                at += part;
            }
            Ok(last)
        };
        let plain: Vec<u32> = (0..TOKENS as u32).collect();
        let expected = logits(&plain)?;
        let mut reach = 1;
        for distance in 1..TOKENS {
            let mut changed = plain.clone();
            changed[TOKENS - 1 - distance] = 30;
            if logits(&changed)? != expected {
                reach = distance + 1;
            }
        }
        println!("{name}, {form}: {reach}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let config = serde_json::json!({
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": 4, "use_sliding_window": true, "max_window_layers": 0,
        "tie_word_embeddings": false,
    });
    let weights = VarMap::new();
    let builder = |name| VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu).pp(name);
    let read = serde_json::from_value(config.clone()).unwrap();
    let mut model = mistral::Model::new(&read, builder("mistral"))?;
    run("mistral", |ids, at| {
        if at == 0 {
            model.clear_kv_cache();
        }
        model.forward(ids, at)
    })?;
    let read = serde_json::from_value(config).unwrap();
    let mut model = qwen2::ModelForCausalLM::new(&read, builder("qwen2"))?;
    run("qwen2", |ids, at| {
        if at == 0 {
            model.clear_kv_cache();
        }
        model.forward(ids, at)
    })
}
RUST
candle=$(CARGO_TARGET_DIR=target cargo run -q)
printf 'transformers:\n%s\ncandle:\n%s\n' "$theirs" "$candle"
[ "$theirs" = "mistral, one prompt: 4
mistral, two halves: 4
mistral, tokens: 4
qwen2, one prompt: 4
qwen2, two halves: 4
qwen2, tokens: 4" ]
[ "$candle" = "mistral, one prompt: 5
mistral, two halves: 12
mistral, tokens: 12
qwen2, one prompt: 5
qwen2, two halves: 12
qwen2, tokens: 12" ]
