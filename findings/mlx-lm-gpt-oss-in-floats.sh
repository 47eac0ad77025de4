#!/usr/bin/env bash
# mlx-lm 0.32.2 reads gpt-oss's experts in MXFP4, and refuses the same model in floats as transformers stores it.
#
# transformers has a tensor `experts.gate_up_proj` [experts, K, 2 N] in floats, without `.weight`, and
# `experts.gate_up_proj_blocks` [experts, 2 N, K/32, 16] in MXFP4. mlx-lm takes the gate's and the up's rows apart in
# both, gives `.weight` only to the names that end in `_blocks`, and takes the wrong dimension of floats apart. A tuned
# model that was saved in bf16 is therefore converted only after its experts are quantised by another program.
# Seen: in floats the error names `experts.gate_proj`, `experts.up_proj` and `experts.down_proj` of both layers; in
# MXFP4 the model is loaded.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q "mlx[cpu]==0.32.4" mlx-lm==0.32.2 numpy==2.4.6 safetensors==0.8.0

cat > floats.py <<PY
import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import gpt_oss
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)
config = dict(
    model_type="gpt_oss", num_hidden_layers=2, num_local_experts=2, num_experts_per_tok=2, vocab_size=32, hidden_size=32,
    intermediate_size=32, head_dim=8, num_attention_heads=4, num_key_value_heads=2, sliding_window=16, rms_norm_eps=1e-5,
    rope_theta=10000.0, layer_types=["sliding_attention", "full_attention"],
)
model = gpt_oss.Model(gpt_oss.ModelArgs.from_dict(config))
others = {name: value for name, value in tree_flatten(model.parameters()) if ".experts." not in name}
for form in ("floats", "mxfp4"):
    folder, tensors = Path(form), dict(others)
    folder.mkdir()
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        for name, rows in (("gate_up_proj", 64), ("down_proj", 32)):
            if form == "floats":
                tensors[f"{experts}.{name}"] = mx.zeros((2, 32, rows))
            else:
                tensors[f"{experts}.{name}_blocks"] = mx.zeros((2, rows, 1, 16), dtype=mx.uint8)
                tensors[f"{experts}.{name}_scales"] = mx.full((2, rows, 1), 127, dtype=mx.uint8)
            tensors[f"{experts}.{name}_bias"] = mx.zeros((2, rows))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    quantised = {"quantization_config": {"quant_method": "mxfp4"}} if form == "mxfp4" else {}
    (folder / "config.json").write_text(json.dumps(config | quantised))
    try:
        load_model(folder)
        print(form, "is loaded")
    except ValueError as error:
        print(form, str(error).splitlines()[0])
PY
found=$(venv/bin/python floats.py)
echo "$found"
[ "$found" = "floats Received 6 parameters not in model: 
mxfp4 is loaded" ]
