#!/usr/bin/env bash
# transformers 5.24.0 leaves the second level of scales out when it loads a mixture's experts in NVFP4 as
# llm-compressor 0.14.0.1 stores them: an expert's weights are `weight_global_scale` times too large: by thousands.
#
# It joins the experts of a layer in one tensor, and gives compressed-tensors their codes and block scales alone. There
# is no error, nor a warning that names a tensor. Attention and other linear layers of the same file are right, as
# are experts in MXFP4 and in integers of 4 bits, which have one level of scales: a dense model in NVFP4 that works, or
# a mixture with INT4 experts, says nothing about this. Sums are normalised later, so logits have a plausible size.
# Seen, as the weights' size relative to the model's before, for deepseek_v3 and qwen3_moe: 1.0 for all but experts in
# NVFP4; for those 1.0 times that scale, which is about 2688 over the largest weight. The packages take 6 GB, because
# torch brings CUDA.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q llmcompressor==0.14.0.1 compressed-tensors==0.19.0 torch==2.14.0
# llm-compressor asks for an older transformers, so that the one that is tested has a folder of its own.
venv/bin/pip install -q --no-deps --target newer transformers==5.24.0

cat > save.py <<PY
import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM, DeepseekV3Config, Qwen3MoeConfig

torch.manual_seed(1)
sizes = dict(
    vocab_size=64, hidden_size=128, intermediate_size=128, moe_intermediate_size=128, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=4, num_experts_per_tok=2, max_position_embeddings=64,
)
latents = dict(
    q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=4,
    n_group=2, topk_group=1, first_k_dense_replace=0, num_mtp_layers=0,
)
configs = dict(
    deepseek_v3=DeepseekV3Config(**sizes, **latents), qwen3_moe=Qwen3MoeConfig(**sizes, head_dim=32, num_experts=4),
)
for name, config in configs.items():
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(name)
    for scheme in ("NVFP4A16", "MXFP4A16", "W4A16"):
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
        oneshot(model=model, recipe=QuantizationModifier(scheme=scheme, ignore=["lm_head", "re:.*mlp.gate$"]))
        model.save_pretrained(f"{name}-{scheme}", save_compressed=True)
PY
venv/bin/python save.py > log 2>&1 || { cat log >&2; exit 1; }

cat > load.py <<PY
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, __version__

print("transformers", __version__)
for name in ("deepseek_v3", "qwen3_moe"):
    exact = AutoModelForCausalLM.from_pretrained(name).state_dict()
    for scheme in ("NVFP4A16", "MXFP4A16", "W4A16"):
        folder = f"{name}-{scheme}"
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        with torch.no_grad():
            model(torch.tensor([[1, 2, 3]]))  # Linear layers are decoded in the first call.
        loaded = model.state_dict()

        def size(key, expert=...):
            before, after = exact[key][expert].double(), loaded[key][expert].double()
            return ((before * after).sum() / (before * before).sum()).item()

        layer = "model.layers.0."
        line = f"{folder}: attention {size(layer + 'self_attn.o_proj.weight'):.1f}"
        key = layer + "mlp.experts.down_proj"
        scale = load_file(f"{folder}/model.safetensors").get(layer + "mlp.experts.0.down_proj.weight_global_scale")
        if scale is None:
            print(f"{line}, expert {size(key, 0):.1f}")
        else:
            print(f"{line}, expert {size(key, 0) / scale.item():.1f} times its global scale,", end=" ")
            print(f"which is {scale.item() * exact[key][0].abs().max().item() / 2688:.1f} times 2688 over its largest")
PY
found=$(PYTHONPATH=newer venv/bin/python load.py 2> log || { cat log >&2; exit 1; })
echo "$found"
if grep -iE "global_scale|mismatch|unexpected" log; then exit 1; fi
[ "$found" = "transformers 5.24.0
deepseek_v3-NVFP4A16: attention 1.0, expert 1.0 times its global scale, which is 1.0 times 2688 over its largest
deepseek_v3-MXFP4A16: attention 1.0, expert 1.0
deepseek_v3-W4A16: attention 1.0, expert 1.0
qwen3_moe-NVFP4A16: attention 1.0, expert 1.0 times its global scale, which is 1.0 times 2688 over its largest
qwen3_moe-MXFP4A16: attention 1.0, expert 1.0
qwen3_moe-W4A16: attention 1.0, expert 1.0" ]
