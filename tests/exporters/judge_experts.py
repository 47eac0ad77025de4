"""Reads compressed-tensors' form of models whose experts are linear layers of their own.

transformers reads these only in part: of experts in NVFP4 it ignores the tensor-level scale, even
in what llmcompressor wrote. So the model is made as llmcompressor makes it, with experts as linear
layers, and filled and decoded by compressed-tensors.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from llmcompressor.modeling.moe.linearize import linearize_moe
from safetensors.torch import save_file

import decode

# Names in checkpoints, and in the model with linear experts.
NAMES = [
    (".block_sparse_moe.", ".mlp."),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
]


def load(folder: Path) -> tuple[torch.nn.Module, dict]:
    """The decoded model, and keys that are missing or that compressed-tensors does not expect."""
    raw = json.loads((folder / "config.json").read_text())
    stated = raw.pop("quantization_config")
    stated["ignore"] = [name.replace(".block_sparse_moe.", ".mlp.") for name in stated["ignore"]]
    quantization = QuantizationConfig.model_validate(stated)
    tensors = {}
    for name, tensor in decode.read(folder)[0].items():
        for stored, here in NAMES:
            name = name.replace(stored, here)
        tensors[name] = tensor
    config = transformers.AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    linearize_moe(model)
    apply_quantization_config(model, quantization, run_compressed=False)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model=model)
    expected = dict(model.state_dict())
    info = {
        "missing_keys": expected.keys() - tensors.keys(),
        "unexpected_keys": tensors.keys() - expected.keys(),
        "mismatched_keys": [
            f"{name}: {tuple(tensors[name].shape)}, expected {tuple(value.shape)}"
            for name, value in expected.items()
            if name in tensors and tensors[name].shape != value.shape
        ],
    }
    model.load_state_dict({name: tensors[name] for name in expected.keys() & tensors.keys()}, strict=False)
    compressor.decompress_model(model=model)
    decoded = {name: value.float() for name, value in model.state_dict().items() if not name.endswith("_scale")}
    kind = config.model_type
    if kind == "mixtral":
        decoded = {name.replace(".mlp.", ".block_sparse_moe."): value for name, value in decoded.items()}
    decoded = {name: value.contiguous().clone() for name, value in decode.join_experts(decoded, kind).items()}
    with tempfile.TemporaryDirectory() as written:
        save_file(decoded, f"{written}/model.safetensors", metadata={"format": "pt"})
        Path(written, "config.json").write_text(json.dumps(raw))
        plain, left = transformers.AutoModelForCausalLM.from_pretrained(
            written, dtype=torch.float32, output_loading_info=True
        )
    info["missing_keys"] |= left["missing_keys"]
    return plain, info
