#!/usr/bin/env bash
# mlx-lm 0.32.2 loads a DeepSeek V3 in FP8 as amd-quark 0.13 exports it, and multiplies by the codes as integers from 0
# to 255: it has dropped the scales without a word. A Llama from the same exporter it refuses, naming the scales.
#
# Its deepseek_v3, which kimi_k25 shares, takes INT4 in compressed-tensors' names apart, and on the way leaves out every
# `weight_scale` that has no `weight_shape` beside it. MLX has no type for e4m3 and reads it as uint8; shapes fit, so
# that nothing is missing and nothing too much, and a `quant_method` that mlx-lm does not know passes. DeepSeek's own
# FP8 files have `weight_scale_inv` and are decoded; those of compressed-tensors are refused by their format.
# Seen: weights of type uint8, and logits whose correlation with those of the model before is 0.1; that of Quark's
# own is above 0.9. The packages take 6 GB, because torch brings CUDA.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q amd-quark==0.13 transformers==5.24.0 torch==2.14.0 accelerate==1.15.0 ninja==1.13.2 \
    "mlx[cpu]==0.32.4" mlx-lm==0.32.2

cat > load.py <<PY
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.quantization.config.config import FP8E4M3PerChannelSpec, QConfig, QLayerConfig
from quark.torch.utils.llm.model_preparation import preprocess_for_quantization
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

torch.manual_seed(1)
sizes = dict(
    vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=64, initializer_range=0.06,
)
latents = dict(
    q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=4,
    num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=128, first_k_dense_replace=1,
    num_mtp_layers=0,
)
tokens = torch.arange(2, 18).reshape(1, 16)
weight = FP8E4M3PerChannelSpec(is_dynamic=False, ch_axis=0).to_quantization_spec()
layers = QConfig(global_quant_config=QLayerConfig(weight=weight), exclude=["lm_head", "*mlp.gate"])


def alike(logits):
    return np.corrcoef(logits.ravel(), exact.ravel())[0, 1]


for config in (LlamaConfig(**sizes), DeepseekV3Config(**sizes, **latents)):
    name = config.model_type
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        exact = model(tokens).logits.float().numpy()
        preprocess_for_quantization(model)
        quantiser = ModelQuantizer(layers)
        model = quantiser.freeze(quantiser.quantize_model(model, DataLoader([tokens[0]], batch_size=1)))
        print(f"{name}, Quark: correlation above 0.9: {alike(model(tokens).logits.float().numpy()) > 0.9}")
        export_safetensors(model, f"{name}-fp8")
    try:
        model, _ = load_model(Path(f"{name}-fp8"))
    except ValueError as error:
        print(f"{name}, mlx-lm: {' '.join(str(error).split()[:7])}")
        continue
    model.set_dtype(mx.float32)
    codes = model.layers[0].self_attn.o_proj.weight
    correlation = alike(np.array(model(mx.array(tokens.numpy()))))
    print(f"{name}, mlx-lm: weights {codes.dtype}, correlation below 0.3: {correlation < 0.3}")
PY
found=$(PATH=$PWD/venv/bin:$PATH venv/bin/python load.py 2> log | grep -E "^(llama|deepseek_v3)" || true)
echo "$found"
[ "$found" = "llama, Quark: correlation above 0.9: True
llama, mlx-lm: Received 14 parameters not in model: model.layers.0.mlp.down_proj.weight_scale,
deepseek_v3, Quark: correlation above 0.9: True
deepseek_v3, mlx-lm: weights mlx.core.uint8, correlation below 0.3: True" ] || { tail -20 log; exit 1; }
