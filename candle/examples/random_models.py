"""Writes models of real sizes with random weights, to measure `generate --random`.

    python random_models.py llama-8b|gpt-oss-20b|gpt-oss-20b-bf16|qwen3-30b|qwen3-30b-bf16 FOLDER

Needs torch with a GPU and safetensors. Llama is in bf16 (16 GB), gpt-oss has experts in MXFP4 (13 GB) or in bf16 (42 GB),
Qwen3-30B-A3B has all projections in NVFP4 as ModelOpt writes them (18 GB), or in bf16 (61 GB). There is no tokenizer.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
    "eos_token_id": 128001, "torch_dtype": "bfloat16", "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "swiglu_limit": 7.0, "attention_bias": True,
    "max_position_embeddings": 131072, "initial_context_length": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": False, "eos_token_id": 200002, "torch_dtype": "bfloat16", "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    },
}  # fmt: skip

QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "attention_bias": False, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": False, "eos_token_id": 151645, "torch_dtype": "bfloat16", "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.mlp.gate"]},
}  # fmt: skip


def in_floats(config: dict) -> dict:
    return {name: value for name, value in config.items() if name != "quantization_config"}


MODELS = {
    "llama-8b": LLAMA, "gpt-oss-20b": GPT_OSS, "gpt-oss-20b-bf16": in_floats(GPT_OSS),
    "qwen3-30b": QWEN3, "qwen3-30b-bf16": in_floats(QWEN3),
}  # fmt: skip

RANDOM = torch.Generator("cuda").manual_seed(1)


def normal(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02, generator=RANDOM)


def whole(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda", generator=RANDOM)


def packed(name: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
    """A matrix in NVFP4: codes, scales from 1 to 2, and scales of the whole, of which the first makes values about 0.02."""
    return {
        f"{name}.weight": whole(0, 256, rows, columns // 2),
        f"{name}.weight_scale": whole(0x38, 0x41, rows, columns // 16).view(torch.float8_e4m3fn),
        f"{name}.weight_scale_2": torch.tensor(0.004),
        f"{name}.input_scale": torch.tensor(0.01),
    }


def plain(name: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": normal(rows, columns)}


def layer(config: dict, at: int) -> dict[str, torch.Tensor]:
    hidden, between = config["hidden_size"], config["intermediate_size"]
    heads, kept = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim", hidden // heads)
    own = {name: torch.ones(hidden, dtype=torch.bfloat16) for name in ["input_layernorm.weight", "post_attention_layernorm.weight"]}
    outputs = {"q": heads * head, "k": kept * head, "v": kept * head}
    matrices = {f"self_attn.{name}_proj": (rows, hidden) for name, rows in outputs.items()}
    matrices["self_attn.o_proj"] = (hidden, heads * head)
    biased = config["model_type"] == "gpt_oss"
    if config["model_type"] == "qwen3_moe":
        between = config["moe_intermediate_size"]
        matrix = packed if "quantization_config" in config else plain
        own |= {f"self_attn.{name}_norm.weight": torch.ones(head, dtype=torch.bfloat16) for name in "qk"}
        for name, (rows, columns) in matrices.items():
            own |= matrix(name, rows, columns)
        for expert in range(config["num_experts"]):
            for name, rows, columns in [("gate", between, hidden), ("up", between, hidden), ("down", hidden, between)]:
                own |= matrix(f"mlp.experts.{expert}.{name}_proj", rows, columns)
        matrices = {"mlp.gate": (config["num_experts"], hidden)}
    elif biased:
        experts = config["num_local_experts"]
        own["self_attn.sinks"] = normal(heads)
        matrices["mlp.router"] = (experts, hidden)
        for name, rows, columns in [("gate_up_proj", 2 * between, hidden), ("down_proj", hidden, between)]:
            if "quantization_config" in config:
                own[f"mlp.experts.{name}_blocks"] = whole(0, 256, experts, rows, columns // 32, 16)
                own[f"mlp.experts.{name}_scales"] = whole(119, 122, experts, rows, columns // 32)
            else:
                own[f"mlp.experts.{name}"] = normal(experts, columns, rows)
            own[f"mlp.experts.{name}_bias"] = normal(experts, rows)
    else:
        matrices |= {f"mlp.{name}_proj": (between, hidden) for name in ["gate", "up"]}
        matrices["mlp.down_proj"] = (hidden, between)
    for name, shape in matrices.items():
        own[f"{name}.weight"] = normal(*shape)
        if biased:
            own[f"{name}.bias"] = normal(shape[0])
    return {f"model.layers.{at}.{name}": tensor.cpu().contiguous() for name, tensor in own.items()}


def shards(config: dict) -> Iterator[dict[str, torch.Tensor]]:
    for first in range(0, config["num_hidden_layers"], 4):
        yield {name: tensor for at in range(first, first + 4) for name, tensor in layer(config, at).items()}
    table = [config["vocab_size"], config["hidden_size"]]
    names = ["model.embed_tokens.weight", "lm_head.weight"]
    yield {name: normal(*table).cpu() for name in names} | {"model.norm.weight": torch.ones(table[1], dtype=torch.bfloat16)}


def main(model: str, out: str) -> None:
    config, folder = MODELS[model], Path(out)
    folder.mkdir(parents=True)
    index = {}
    count = config["num_hidden_layers"] // 4 + 1
    for at, tensors in enumerate(shards(config), 1):
        name = f"model-{at:05}-of-{count:05}.safetensors"
        save_file(tensors, folder / name)
        index |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
