#!/usr/bin/env bash
# transformers 5.24.0 with amd-quark 0.13 loads what Quark itself exports in NVFP4, and computes NaN.
#
# Quark stores two scales, of blocks and of the tensor. AutoModelForCausalLM.from_pretrained returns a model
# without an error, whose logits are NaN; Quark's own import_model_from_safetensors reads the same folder and
# gives logits near those of the model before. A file that transformers loads is so no proof that it is whole.
# Seen: "transformers: NaN", "Quark: numbers". The packages take 6 GB, because torch brings CUDA.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q amd-quark==0.13 transformers==5.24.0 torch==2.14.0 accelerate==1.15.0 ninja==1.13.2

cat > load.py <<PY
import torch
import transformers
from quark.torch import ModelQuantizer, export_safetensors, import_model_from_safetensors
from quark.torch.quantization.config.config import (
    FP4PerGroupSpec, FP8E4M3PerTensorSpec, QConfig, QLayerConfig, ScaleQuantSpec,
)
from torch.utils.data import DataLoader

torch.manual_seed(1)
config = transformers.LlamaConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=64, max_position_embeddings=64,
)
model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
tokens = torch.arange(2, 18).reshape(1, 16)
scales = FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False)
codes = FP4PerGroupSpec(ch_axis=-1, group_size=16, is_dynamic=False)
weight = ScaleQuantSpec(first_stage=codes, second_stage=scales).to_quantization_spec()
layers = QLayerConfig(weight=weight)
quantiser = ModelQuantizer(QConfig(global_quant_config=layers, exclude=["lm_head"]))


def kind(logits):
    return "NaN" if logits.isnan().any() else "numbers"


with torch.no_grad():
    exact = model(tokens).logits.float()
    model = quantiser.quantize_model(model, DataLoader([tokens[0]], batch_size=1))
    export_safetensors(quantiser.freeze(model), "export")
    loaded = transformers.AutoModelForCausalLM.from_pretrained("export", dtype=torch.bfloat16)
    print("transformers:", kind(loaded(tokens).logits))
    again = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    again = import_model_from_safetensors(again, model_dir="export")
    logits = again(tokens).logits.float()
    print("Quark:", kind(logits))
    print("largest difference by Quark below 0.5:", bool((logits - exact).abs().max() < 0.5))
PY
found=$(PATH=$PWD/venv/bin:$PATH venv/bin/python load.py 2> log | grep -E "^(transformers|Quark|largest)" || true)
echo "$found"
[ "$found" = "transformers: NaN
Quark: numbers
largest difference by Quark below 0.5: True" ] || { tail -20 log; exit 1; }
