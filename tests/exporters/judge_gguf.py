"""Reads GGUF by the package `gguf`: its parser, its decoders of blocks, its table of names.

    python judge_gguf.py FOLDER OUT

writes the model of a folder to the folder OUT as transformers has it when it is not quantised, in f32.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

# What the package's table has under one name for all experts, and transformers as a matrix each.
EXPERTS = {
    "mixtral": ("block_sparse_moe.experts", {"gate": "w1", "up": "w3", "down": "w2"}),
    "qwen3_moe": ("mlp.experts", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    "gpt_oss": ("mlp.experts", {}),
}
# The router, for which the table has a name that it shares with other models.
ROUTERS = {"mixtral": "block_sparse_moe.gate", "qwen3_moe": "mlp.gate", "gpt_oss": "mlp.router"}
# Modules of transformers that are looked up in the package's table.
MODULES = [
    "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "self_attn.sinks", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
]
OUTSIDE = ["model.embed_tokens", "model.norm", "lm_head"]


def names(architecture: str, kind: str, layers: int) -> dict[str, str]:
    """ggml's modules, each with the one of transformers."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(number, layers)
    inside = MODULES + ([ROUTERS[kind]] if kind in ROUTERS else [])
    modules = OUTSIDE + [f"model.layers.{layer}.{module}" for layer in range(layers) for module in inside]
    found = {table.get_name(module): module for module in modules}
    found.pop(None, None)
    return found


def unturned(rows: np.ndarray, heads: int) -> np.ndarray:
    """The order of rows that transformers has for rotary embeddings: halves of a head instead of pairs.

    The inverse of `LlamaModel.permute` of ggml's converter.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def decoded(reader: gguf.GGUFReader) -> dict[str, np.ndarray]:
    """The values of all tensors under ggml's names, with tensor-level scales applied, which are left out."""
    stored = {tensor.name: tensor for tensor in reader.tensors}
    values = {}
    for name, tensor in stored.items():
        # Factors of frequencies follow from the configuration in transformers.
        if name.endswith((".scale", ".input_scale")) or name == "rope_freqs.weight":
            continue
        own = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        shape = [int(size) for size in reversed(tensor.shape)]
        own = own.reshape(shape)
        scale = stored.get(name.removesuffix(".weight") + ".scale")
        if scale is not None:
            factors = np.asarray(scale.data, np.float32).reshape(-1)
            if factors.size not in (1, shape[0]):
                raise ValueError(f"{scale.name} has {factors.size} scales for {shape}")
            own = own * factors.reshape(-1, *[1] * (len(shape) - 1))
        values[name] = own
    return values


def read(folder: Path) -> dict[str, np.ndarray]:
    """The values of a folder's only file, under transformers' names."""
    (path,) = Path(folder).glob("*.gguf")
    reader = gguf.GGUFReader(path)
    kind = json.loads(Path(folder, "config.json").read_text())["model_type"]

    def field(key: str) -> str | int:
        return reader.fields[key].contents()

    architecture = field("general.architecture")
    layers, heads = field(f"{architecture}.block_count"), field(f"{architecture}.attention.head_count")
    groups = field(f"{architecture}.attention.head_count_kv")
    table, found = names(architecture, kind, layers), {}
    joined: dict[str, dict[str, np.ndarray]] = {}
    for name, own in decoded(reader).items():
        module, ending = name.rsplit(".", 1)
        if module.endswith("_exps"):
            layer, projection = module.split(".")[1], module.rsplit("_", 2)[1]
            experts, projections = EXPERTS[kind]
            if kind == "gpt_oss":
                joined.setdefault(f"model.layers.{layer}.{experts}", {})[f"{projection}.{ending}"] = own
                continue
            for expert, matrix in enumerate(own):
                found[f"model.layers.{layer}.{experts}.{expert}.{projections[projection]}.{ending}"] = matrix
            continue
        if architecture == "llama" and module.endswith(("attn_q", "attn_k")):
            own = unturned(own, heads if module.endswith("attn_q") else groups)
        target = table[module]
        found[target if target.endswith(".sinks") else f"{target}.{ending}"] = own
    for module, parts in joined.items():
        found.update(of_gpt_oss(module, parts))
    return {name: np.ascontiguousarray(own) for name, own in found.items()}


def of_gpt_oss(module: str, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The experts of a layer as transformers has them: rows of gate and up alternate, K before N."""
    both = np.stack([parts["gate.weight"], parts["up.weight"]], axis=2)
    found = {
        f"{module}.gate_up_proj": both.reshape(both.shape[0], -1, both.shape[3]).swapaxes(1, 2),
        f"{module}.down_proj": parts["down.weight"].swapaxes(1, 2),
    }
    if "down.bias" in parts:
        biases = np.stack([parts["gate.bias"], parts["up.bias"]], axis=2)
        found[f"{module}.gate_up_proj_bias"] = biases.reshape(biases.shape[0], -1)
        found[f"{module}.down_proj_bias"] = parts["down.bias"]
    return found


def write(folder: Path, out: Path) -> None:
    """Writes the model as transformers has it when it is not quantised, in f32."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(read(folder), out / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(folder / "config.json", out)


def main() -> None:
    folder, out = map(Path, sys.argv[1:])
    write(folder, out)


if __name__ == "__main__":
    main()
