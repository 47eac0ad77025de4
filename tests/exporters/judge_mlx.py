"""Reads MLX's form by mlx-lm, and writes the model as transformers has it when it is not quantised, in f32."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from safetensors.numpy import save_file

import models


def write(folder: Path, out: Path) -> None:
    """Writes the model of a folder to the folder OUT."""
    raw = json.loads((folder / "config.json").read_text())
    model, _ = load_model(folder, model_config=models.published(raw))
    values = {}
    for name, module in model.named_modules():
        if "scales" not in module:
            continue
        # Blocks of nvfp4 and mxfp4 alone: other modes have biases.
        how = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
        values[f"{name}.weight"] = mx.dequantize(module.weight, module.scales, **how)
    quantised = {name.removesuffix(".weight") for name in values}
    for name, value in tree_flatten(model.parameters()):
        if name.rpartition(".")[0] not in quantised:
            values[name] = value
    decoded = {name: np.array(value.astype(mx.float32)) for name, value in values.items()}
    save_file(decoded, out / "model.safetensors", metadata={"format": "pt"})
    for key in ("quantization", "quantization_config"):
        raw.pop(key, None)
    (out / "config.json").write_text(json.dumps(raw))
