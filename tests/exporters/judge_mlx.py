"""Reads MLX's form by mlx-lm, and writes the model as transformers has it when it is not quantised, in f32."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from safetensors.numpy import save_file

import judge_gguf
import models


# The projections of an expert, and Mixtral's.
PROJECTIONS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def transformed(values: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """The values under transformers' names: a matrix for each expert, or gpt-oss's tensors of all."""
    found, joined = {}, {}
    for name, value in values.items():
        module, _, ending = name.rpartition(".")
        parent, _, projection = module.rpartition(".")
        if parent.endswith(".switch_mlp"):
            own = PROJECTIONS[projection] if kind == "mixtral" else projection
            experts = parent.removesuffix("switch_mlp") + "experts"
            found |= {f"{experts}.{expert}.{own}.{ending}": matrix for expert, matrix in enumerate(value)}
        elif kind == "gpt_oss" and parent.endswith(".experts"):
            joined.setdefault(parent, {})[f"{projection.removesuffix('_proj')}.{ending}"] = value
        else:
            found[name] = value
    for parent, parts in joined.items():
        found |= judge_gguf.of_gpt_oss(parent, parts)
    return found


def write(folder: Path, out: Path) -> None:
    """Writes the model of a folder to the folder OUT."""
    raw = json.loads((folder / "config.json").read_text())
    model, _ = load_model(folder, model_config=models.published(raw))
    values = {}
    for name, module in model.named_modules():
        if "scales" not in module:
            continue
        how = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
        # Routers are integers of 8 bits with biases, for which f32 is asked as of every loader.
        has_biases = module.get("biases") is not None
        scales = [module[key].astype(mx.float32) for key in ("scales", "biases")] if has_biases else [module.scales]
        values[f"{name}.weight"] = mx.dequantize(module.weight, *scales, **how)
    quantised = {name.removesuffix(".weight") for name in values}
    for name, value in tree_flatten(model.parameters()):
        module, _, ending = name.rpartition(".")
        if module not in quantised or ending == "bias":
            values[name] = value
    decoded = {name: np.array(value.astype(mx.float32)) for name, value in values.items()}
    decoded = {name: np.ascontiguousarray(value) for name, value in transformed(decoded, raw["model_type"]).items()}
    save_file(decoded, out / "model.safetensors", metadata={"format": "pt"})
    for key in ("quantization", "quantization_config"):
        raw.pop(key, None)
    (out / "config.json").write_text(json.dumps(raw))
