#!/usr/bin/env bash
# transformers 5.24.0 reads `rope_theta` and `rope_scaling`, and saves both as `rope_parameters`. mlx-lm 0.32.2 (llama,
# gpt_oss) and candle-transformers 0.11.1 (llama) do not know that name, and take defaults without an error.
#
# A Llama 3 that was loaded and saved has a base of 10000 instead of 500000 there and no scaling, and gpt-oss has no
# YaRN: the weights are right, and nearly all rotations wrong. Exports to FP4 by ModelOpt, llm-compressor, TorchAO,
# Quark and AutoRound with transformers 5 have the new name alone. mlx-lm's qwen3 reads both, so one model that works
# says nothing about the next. A writer does well to keep the old fields beside the new one.
# Seen: transformers reads 500000 llama3 and 150000 yarn from either file; the others read the same from the old one,
# and 10000 and 150000 without scaling from the saved one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q transformers==5.24.0 "mlx[cpu]==0.32.4" mlx-lm==0.32.2 numpy==2.4.6

cat > save.py <<PY
import json
from pathlib import Path

from mlx_lm.models import gpt_oss, llama, qwen3
from mlx_lm.utils import load_config
from transformers import AutoConfig

sizes = dict(
    hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, vocab_size=32, rms_norm_eps=1e-5, max_position_embeddings=131072, tie_word_embeddings=False,
)
llama3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192,
)
yarn = dict(
    rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
    original_max_position_embeddings=4096,
)
models = [(llama, 500000.0, llama3), (gpt_oss, 150000.0, yarn), (qwen3, 5000000.0, yarn)]


def found(base, scaling):
    return f"{base:.0f} {(scaling or {}).get('rope_type')}"


for module, base, scaling in models:
    name = module.__name__.split(".")[-1]
    folder = Path(name)
    folder.mkdir()
    old = sizes | dict(model_type=name, rope_theta=base, rope_scaling=scaling)
    (folder / "config.json").write_text(json.dumps(old))
    AutoConfig.from_pretrained(folder).save_pretrained(f"{name}-saved")
    for folder in (folder, Path(f"{name}-saved")):
        theirs = AutoConfig.from_pretrained(folder).rope_parameters
        args = module.ModelArgs.from_dict(load_config(folder))
        print(f"{folder}: transformers {found(theirs['rope_theta'], theirs)}, "
              f"mlx-lm {found(args.rope_theta, args.rope_scaling)}")
PY
found=$(venv/bin/python save.py 2> log || { cat log >&2; exit 1; })
echo "$found"

mkdir src
cat > Cargo.toml <<TOML
[package]
name = "read"
version = "0.0.0"
edition = "2021"
[dependencies]
candle-transformers = "=0.11.1"
serde_json = "1"
TOML
cat > src/main.rs <<'RUST'
use candle_transformers::models::llama::LlamaConfig;

fn main() {
    for folder in ["llama", "llama-saved"] {
        let text = std::fs::read_to_string(format!("{folder}/config.json")).unwrap();
        let config: LlamaConfig = serde_json::from_str(&text).unwrap();
        let scaling = config.rope_scaling.map(|scaling| scaling.rope_type);
        println!("{folder}: candle {} {scaling:?}", config.rope_theta);
    }
}
RUST
candle=$(CARGO_TARGET_DIR=target cargo run -q)
echo "$candle"
[ "$found" = "llama: transformers 500000 llama3, mlx-lm 500000 llama3
llama-saved: transformers 500000 llama3, mlx-lm 10000 None
gpt_oss: transformers 150000 yarn, mlx-lm 150000 yarn
gpt_oss-saved: transformers 150000 yarn, mlx-lm 150000 None
qwen3: transformers 5000000 yarn, mlx-lm 5000000 yarn
qwen3-saved: transformers 5000000 yarn, mlx-lm 5000000 yarn" ]
[ "$candle" = "llama: candle 500000 Some(Llama3)
llama-saved: candle 10000 None" ]
