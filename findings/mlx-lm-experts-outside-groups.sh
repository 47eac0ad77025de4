#!/usr/bin/env bash
# mlx-lm 0.32.2 takes a DeepSeek V3's experts from groups that it has ruled out, once most of the corrected scores are
# negative: it marks those groups by 0, which is then the largest score. transformers 5.24.0 marks them by -infinity.
#
# Only differences of `e_score_correction_bias` have a meaning, and training moves each of them up or down by how often
# its expert is used, so that nothing holds them above 0. Added to every bias, a constant changes no expert in
# transformers; in mlx-lm it is without effect down to about -0.7, so that a comparison with small random biases of
# either sign finds nothing, and decides everything at -1. The weights of experts are those of scores without the bias
# and look as they should. The same line is in its deepseek_v32, glm4_moe, glm4_moe_lite and dots1.
# Seen, of 1000 tokens with 8 of 256 experts in 4 of 8 groups, those with other experts than transformers has: none for
# constants of 2, 0 and -0.5; 221 for -0.8; all for -1, and 907 of these without one group in common. The packages take
# 6 GB, because torch brings CUDA.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q transformers==5.24.0 torch==2.14.0 "mlx[cpu]==0.32.4" mlx-lm==0.32.2 numpy==2.4.6

cat > choose.py <<PY
import mlx.core as mx
import numpy as np
import torch
from mlx_lm.models.deepseek_v3 import ModelArgs, MoEGate
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

torch.manual_seed(1)
config = DeepseekV3Config(hidden_size=64)
fields = ("hidden_size", "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "routed_scaling_factor")
gate = MoEGate(ModelArgs(**{field: getattr(config, field) for field in fields}))
router = DeepseekV3TopkRouter(config)
router.weight.data.normal_(std=0.1)
gate.weight = mx.array(router.weight.detach().numpy())
tokens, biases = torch.randn(1000, config.hidden_size), torch.randn(config.n_routed_experts) * 0.05


def ordered(experts):
    return np.sort(np.asarray(experts), axis=-1)


group = config.n_routed_experts // config.n_group
for constant in (2, 0, -0.5, -0.8, -1):
    router.e_score_correction_bias.copy_(biases + constant)
    gate.e_score_correction_bias = mx.array((biases + constant).numpy())
    with torch.no_grad():
        theirs = ordered(router(tokens)[2].tolist())
    ours = ordered(gate(mx.array(tokens.numpy()))[0].tolist())
    if constant == 2:
        first = theirs
    same = "same" if (theirs == first).all() else "other"
    apart = [not set(one // group) & set(other // group) for one, other in zip(ours, theirs)]
    differ = (ours != theirs).any(axis=-1)
    print(f"{constant}: transformers {same}, mlx-lm differs in {differ.sum()}, no group in common in {sum(apart)}")
PY
found=$(venv/bin/python choose.py 2> log || { cat log >&2; exit 1; })
echo "$found"
[ "$found" = "2: transformers same, mlx-lm differs in 0, no group in common in 0
0: transformers same, mlx-lm differs in 0, no group in common in 0
-0.5: transformers same, mlx-lm differs in 0, no group in common in 0
-0.8: transformers same, mlx-lm differs in 221, no group in common in 0
-1: transformers same, mlx-lm differs in 1000, no group in common in 907" ]
