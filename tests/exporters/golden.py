"""Makes the files in `tests/data/exporters` from exports of the size `golden`.

    python golden.py EXPORTS OUT

Of each export the files that are read are copied, and `expected.json` says what is in it: each
weight of 4 bits with its format, its shape with blocks along the last dimension, sums over its
values as decoded in f64, and the signal-to-noise ratio against the original, where the two are
comparable.
"""

from __future__ import annotations

import json
import shutil
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import torch

import decode
import export_gpt_oss
import suite

# Forms that add hardly anything to the others but bytes. mlx-lm's experts are in `checkpoint/tests/data/mlx`.
LEFT_OUT = [
    "llmcompressor-mxfp4a16-llama",
    "llmcompressor-nvfp4a16-quip-llama",
    "modelopt-mxfp4-mlp-weight-only-llama",
    "modelopt-nvfp4-mlp-only-llama",
    "llmcompressor-nvfp4-f32-llama",
    "modelopt-nvfp4-experts-only-qwen3-moe",
    "torchao-nvfp4-weight-only-qwen3-moe",
    "quark-nvfp4-weight-only-llama",
    "quark-mxfp4-llama",
    "auto-round-nvfp4-llama-tied",
    "llmcompressor-by-auto-round-nvfp4-llama",
    "llmcompressor-by-auto-round-mxfp4-llama",
    "mlx-nvfp4-llama-tied",
    "mlx-mxfp4-qwen3-moe",
]
COPIED = ["model*.safetensors", "model.safetensors.index.json", "config.json", "hf_quant_config.json"]
# Their weights are those of the original only together with other layers.
NOT_COMPARABLE = ["-awq-", "-svdquant-", "-spinquant-", "-quip-"]


# How inputs are quantised: the first pattern that fits.
INPUTS = [
    ("modelopt-mxfp4*", "float"),
    ("modelopt-w4a16*", "float"),
    ("modelopt-w4a8*", "fp8"),
    ("modelopt-nvfp4-mlp-weight-only*", "float"),
    ("modelopt-*", "calibrated"),
    ("llmcompressor-by-auto-round-mxfp4*", "dynamic"),
    ("llmcompressor-*a16*", "float"),
    ("llmcompressor-nvfp4-mxfp4-mixed*", "float"),
    ("llmcompressor-mxfp4*", "dynamic"),
    ("llmcompressor-*", "calibrated"),
    ("torchao-nvfp4-weight-only*", "float"),
    ("torchao-nvfp4-dynamic-one-level*", "one-level"),
    ("torchao-nvfp4-static*", "calibrated"),
    ("torchao-*", "dynamic"),
    ("gpt-oss-*", "float"),
    ("quark-nvfp4-weight-only*", "float"),
    ("quark-nvfp4*", "calibrated"),
    ("quark-mxfp4*", "dynamic"),
    ("auto-round-nvfp4*", "calibrated"),
    ("auto-round-mxfp4*", "dynamic"),
    ("mlx-*", "float"),
]
# The element type of layers that are quantised otherwise, by pattern of the export and of the module.
OTHERS = [
    ("modelopt-nvfp4-fp8-mixed*", "*.self_attn.*_proj", "fp8"),
    ("quark-mxfp4-fp8-mixed*", "*.self_attn.*_proj", "fp8"),
    ("llmcompressor-nvfp4-fp8-mixed*", "*.self_attn.*_proj", "fp8-rows"),
    ("llmcompressor-nvfp4-w4a16-mixed*", "*.o_proj", "packed"),
]
KV_CACHE = [("*-kv-fp8-*", "fp8"), ("*-kv-nvfp4-*", "nvfp4")]
# Tensors that change what a weight means.
SIDE_DATA = ["*.pre_quant_scale", "*._svdquant_lora_?"]


def sums(values: torch.Tensor) -> dict[str, float]:
    """The sum of the values, of their squares, and of their products with the indices modulo 1021."""
    flat = values.double().flatten()
    return {
        "sum": float(flat.sum()),
        "squares": float(flat.square().sum()),
        "moment": float((flat * (torch.arange(len(flat)) % 1021)).sum()),
    }


def original_of(name: str, values: torch.Tensor, tensors: decode.Tensors) -> torch.Tensor:
    """What a weight was before it was quantised, in the same order."""
    if name not in tensors:
        parts = name.split(".")
        short = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
        renamed = ".".join([*parts[:-2], short.get(parts[-2], ""), parts[-1]])
        if renamed in tensors:
            return tensors[renamed]
        tensors = experts_apart(tensors)
    found = tensors[name]
    if found.dim() == 3 and found.shape != values.shape:
        return found.mT
    # Experts in a square look the same either way: gpt-oss's are the ones in the order [K, N].
    square = found.dim() == 3 and found.shape[1] == found.shape[2]
    return found.mT if square and "block_sparse_moe" not in name else found


def experts_apart(tensors: decode.Tensors) -> decode.Tensors:
    """Experts of the original by the names of those who take them apart, join them, or rename them."""
    apart = {}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj" or last == "down_proj":
            for expert, each in enumerate(tensor):
                if last == "down_proj":
                    apart[f"{stem}.{expert}.down_proj.weight"] = each.mT
                else:
                    apart[f"{stem}.{expert}.gate_proj.weight"] = each[:, 0::2].mT
                    apart[f"{stem}.{expert}.up_proj.weight"] = each[:, 1::2].mT
            openai = export_gpt_oss.openai(f"{name}_").removesuffix(".")
            apart[openai] = tensor.mT
        if name.endswith("experts.0.w1.weight"):
            base, experts = name.removesuffix(".0.w1.weight"), []
            while f"{base}.{len(experts)}.w1.weight" in tensors:
                each = f"{base}.{len(experts)}"
                experts.append(torch.cat([tensors[f"{each}.w1.weight"], tensors[f"{each}.w3.weight"]]))
            apart[f"{base}.gate_up_proj"] = torch.stack(experts)
    return apart


def expected(export: Path, original: Path) -> dict:
    """What is in an export."""
    tensors, metadata = decode.read(export)
    before, _ = decode.read(original)
    stored = list(tensors)
    found = decode.decode_all(tensors, metadata)
    # `verify` finds originals by their names, which are Hugging Face's.
    named = "-openai-" not in export.name
    comparable = named and not any(part in export.name for part in NOT_COMPARABLE)
    weights = {}
    for name, weight in sorted(found.items()):
        weights[name] = {"format": weight.format, "shape": list(weight.values.shape), **sums(weight.values)}
        if comparable:
            # ModelOpt has blocks along N here.
            along_n = weight.format == "mxfp4" and name.endswith("_proj") and export.name.startswith("modelopt-")
            right = before[name] if along_n else original_of(name, weight.values, before)
            noise = (weight.values - right.float()).double().square().sum()
            weights[name]["sqnr_db"] = float(10 * torch.log10(right.double().square().sum() / noise))
    modules = sorted({name.rpartition(".")[0] for name in tensors})
    return {
        "original": original.name.removesuffix("-bfloat16") if named else None,
        "inputs": next(inputs for pattern, inputs in INPUTS if fnmatchcase(export.name, pattern)),
        "kv_cache": next((kv for pattern, kv in KV_CACHE if fnmatchcase(export.name, pattern)), None),
        "others": {
            module: kind
            for pattern, modules_of, kind in OTHERS if fnmatchcase(export.name, pattern)
            for module in modules if fnmatchcase(module, modules_of)
        },
        "side_data": sorted(
            name for name in stored for pattern in SIDE_DATA if fnmatchcase(name, pattern)
        ),
        "transforms": sorted(transforms(export)),
        "weights": weights,
    }


def transforms(export: Path) -> dict:
    """Rotations of weights."""
    config = json.loads((export / "config.json").read_text()).get("quantization_config", {})
    return (config.get("transform_config") or {}).get("config_groups", {})


def main() -> None:
    exports, out = Path(sys.argv[1]), Path(sys.argv[2])
    for folder in out.glob("*/"):
        shutil.rmtree(folder)
    for export in sorted(exports.iterdir()):
        if export.name in LEFT_OUT or export.name.endswith("-float32"):
            continue
        target = out / export.name.removesuffix("-bfloat16")
        target.mkdir(parents=True)
        for pattern in COPIED:
            for path in export.glob(pattern):
                shutil.copy(path, target)
        if not export.name.startswith("original-"):
            original = exports / f"original-{suite.model_of(export)}-bfloat16"
            described = expected(export, original)
            (target / "expected.json").write_text(json.dumps(described, indent=1) + "\n")


if __name__ == "__main__":
    main()
