"""Reads ModelOpt's export for engines, which ModelOpt itself has no loader of.

Modules and what each stores follow from `hf_quant_config.json`, as engines read it. Values are
decoded by ModelOpt's own classes, with the tensor-level scale that engines take for layers which
they join: the largest of them.
"""

from __future__ import annotations

import fnmatch
import json
import re
import tempfile
from pathlib import Path

import torch
import transformers
from modelopt.torch.quantization.qtensor import MXFP4QTensor, NVFP4QTensor
from safetensors.torch import save_file

import decode

# Tensors beside the weight, by the algorithm.
BESIDE = {
    "NVFP4": ["weight_scale", "weight_scale_2", "input_scale"],
    "W4A16_NVFP4": ["weight_scale", "weight_scale_2"],
    "W4A8_NVFP4_FP8": ["weight_scale", "weight_scale_2", "input_scale"],
    "NVFP4_AWQ": ["weight_scale", "weight_scale_2", "input_scale"],
    "NVFP4_SVD": [
        "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale",
        "weight_quantizer._svdquant_lora_a", "weight_quantizer._svdquant_lora_b",
    ],
    "mxfp4": ["weight_scale"],
    "FP8": ["weight_scale", "input_scale"],
}
OPTIONAL = {"NVFP4_AWQ": ["pre_quant_scale"]}
JOINED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3")]


def modules(folder: Path) -> list[str]:
    """Linear layers of the model, by the names in a checkpoint, and tensors of fused experts."""
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    kind, found = config.model_type, []
    for name, module in model.named_modules():
        stored = name.replace(".mlp", ".block_sparse_moe") if kind == "mixtral" else name
        if isinstance(module, torch.nn.Linear) or stored.endswith(("mlp.gate", "block_sparse_moe.gate", "router")):
            found.append(stored)
        if name.endswith(".experts"):
            parts = ["w1", "w2", "w3"] if kind == "mixtral" else ["gate_proj", "up_proj", "down_proj"]
            if kind == "gpt_oss":
                found += [f"{stored}.gate_up_proj", f"{stored}.down_proj"]
            else:
                count = module.gate_up_proj.shape[0]
                found += [f"{stored}.{expert}.{part}" for expert in range(count) for part in parts]
    return found


def algorithm(quantization: dict, module: str) -> str | None:
    """What a module is quantised with."""
    if quantization["quant_algo"] == "MIXED_PRECISION":
        return quantization["quantized_layers"].get(module, {}).get("quant_algo")
    for pattern in quantization["exclude_modules"]:
        if fnmatch.fnmatchcase(module, pattern) or module.startswith(f"{pattern}."):
            return None
    return quantization["quant_algo"]


def group_size(quantization: dict, module: str) -> int:
    layer = quantization.get("quantized_layers", {}).get(module, quantization)
    return layer.get("group_size", 32)


def unpacked(packed: torch.Tensor, scale: torch.Tensor, second: torch.Tensor | None, block: int) -> torch.Tensor:
    """Decoded by ModelOpt."""
    shape = torch.Size([*packed.shape[:-1], packed.shape[-1] * 2])
    if second is None:
        tensor = MXFP4QTensor(shape, torch.float32, packed)
        return tensor.dequantize(scale=scale, block_sizes={-1: block}, dtype=torch.float32)
    tensor = NVFP4QTensor(shape, torch.float32, packed)
    return tensor.dequantize(scale=scale, double_scale=second, block_sizes={-1: block}, dtype=torch.float32)


def joined(module: str, tensors: decode.Tensors, name: str) -> torch.Tensor:
    """The largest of a scale over the layers that engines join with this one."""
    stem, dot, last = module.rpartition(".")
    group = next((group for group in JOINED if last in group), (last,))
    names = [f"{stem}{dot}{other}.{name}" for other in group]
    values = [tensors[stored] for stored in names if stored in tensors]
    return torch.stack([value.float().reshape(()) for value in values]).max()


def load(folder: Path) -> tuple[torch.nn.Module, dict]:
    """The decoded model, and keys that are missing or that no reader expects."""
    tensors, _ = decode.read(folder)
    quantization = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    named = json.loads((folder / "config.json").read_text())["quantization_config"]
    plain, missing, used = {}, [], set()
    for module in modules(folder):
        kind = algorithm(quantization, module)
        if kind is None:
            continue
        fused = f"{module}.weight" not in tensors and module in tensors
        prefix, own = (f"{module}_", module) if fused else (f"{module}.", f"{module}.weight")
        needed = [own, *(f"{prefix}{part}" for part in BESIDE[kind])]
        missing += [name for name in needed if name not in tensors]
        optional = [f"{prefix}{part}" for part in OPTIONAL.get(kind, [])]
        present = [name for name in [*needed, *optional] if name in tensors]
        used.update(present)
        if any(name not in tensors for name in needed):
            continue
        weight, scale = tensors[own], tensors[f"{prefix}weight_scale"]
        if kind == "FP8":
            plain[own] = weight.float() * scale.float()
            continue
        block = group_size(quantization, module)
        second = None
        if kind != "mxfp4":
            second = tensors[f"{prefix}weight_scale_2"].float() if fused else joined(module, tensors, "weight_scale_2")
        along_k = fused and kind != "mxfp4"
        turn = (lambda tensor: tensor.transpose(1, 2).contiguous()) if along_k else (lambda tensor: tensor)
        values = turn(unpacked(turn(weight), turn(scale), second, block))
        if "NVFP4_SVD" == kind:
            low, high = (tensors[f"{prefix}weight_quantizer._svdquant_lora_{side}"].float() for side in "ab")
            values = values + high @ low
        if f"{prefix}pre_quant_scale" in present:
            values = values * tensors[f"{prefix}pre_quant_scale"].float()
        plain[own] = values
    if quantization.get("kv_cache_quant_algo"):
        scales = [name for name in tensors if re.fullmatch(r".*\.(k_proj\.k|v_proj\.v)_scale", name)]
        if not scales:
            missing.append("k_scale and v_scale")
        used.update(scales)
    if named["quant_algo"] != quantization["quant_algo"]:
        raise ValueError(f"config.json says {named['quant_algo']}, hf_quant_config.json {quantization['quant_algo']}")
    plain |= {name: tensor for name, tensor in tensors.items() if name not in used}
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config")
    with tempfile.TemporaryDirectory() as written:
        save_file({name: value.contiguous() for name, value in plain.items()}, f"{written}/model.safetensors",
                  metadata={"format": "pt"})
        Path(written, "config.json").write_text(json.dumps(config))
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            written, dtype=torch.float32, output_loading_info=True
        )
    info["missing_keys"] = {*info["missing_keys"], *missing}
    return model, info
