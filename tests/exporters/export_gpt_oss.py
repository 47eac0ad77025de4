"""gpt-oss with the names of Hugging Face and of OpenAI, experts rounded by ModelOpt's code for MXFP4.

The writer of the published files is not public; ModelOpt is what users make such files with.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import torch
from modelopt.torch.quantization.qtensor import MXFP4QTensor
from safetensors.torch import save_file

import models


@dataclasses.dataclass(frozen=True)
class Form:
    """A checkpoint that is exported."""

    name: str
    model: str = "gpt-oss"


FORMS = [Form("huggingface"), Form("openai")]


def blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An expert's matrices `[E, K, N]` as blocks `[E, N, K/32, 16]` and scales `[E, N, K/32]`."""
    turned = weight.transpose(-1, -2).contiguous()
    packed, scales = MXFP4QTensor.quantize(turned, block_size=32)
    *outer, inner = turned.shape
    return (
        packed._quantized_data.reshape(*outer, inner // 32, 16).contiguous(),
        scales.reshape(*outer, inner // 32).contiguous(),
    )


def openai(name: str) -> str:
    """OpenAI's name of a tensor of Hugging Face."""
    for here, there in [
        ("model.layers.", "block."),
        ("self_attn.o_proj", "attn.out"),
        ("self_attn.", "attn."),
        ("input_layernorm.weight", "attn.norm.scale"),
        ("post_attention_layernorm.weight", "mlp.norm.scale"),
        ("mlp.router", "mlp.gate"),
        ("mlp.experts.gate_up_proj_bias", "mlp.mlp1_bias"),
        ("mlp.experts.down_proj_bias", "mlp.mlp2_bias"),
        ("mlp.experts.gate_up_proj_", "mlp.mlp1_weight."),
        ("mlp.experts.down_proj_", "mlp.mlp2_weight."),
        ("model.embed_tokens", "embedding"),
        ("model.norm.weight", "norm.scale"),
        ("lm_head", "unembedding"),
    ]:
        name = name.replace(here, there)
    return name


def rename(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as OpenAI stores them: q, k and v in one."""
    renamed = {}
    for name, tensor in tensors.items():
        if any(f".{part}_proj." in name for part in "kv"):
            continue
        if ".q_proj." in name:
            tensor = torch.cat([tensors[name.replace(".q_", f".{part}_")] for part in "qkv"])
            name = name.replace("q_proj", "qkv")
        renamed[openai(name)] = tensor
    return renamed


def export(form: Form, size: models.Size, folder: Path) -> Path:
    """Exports one form."""
    source = models.original(form.model, size, torch.bfloat16, folder)
    config = json.loads((source / "config.json").read_text())
    tensors = {}
    for name, tensor in models.load(source).state_dict().items():
        if name.endswith("_proj") and ".experts." in name:
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks(tensor)
        else:
            tensors[name] = tensor
    if form.name == "openai":
        tensors = rename(tensors)
        kept = ["num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "head_dim"]
        config = {key: config[key] for key in kept} | {"num_experts": size.experts}
    else:
        left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        config["quantization_config"] = {"modules_to_not_convert": left, "quant_method": "mxfp4"}
    path = folder / f"gpt-oss-{form.name}-{form.model}"
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config, indent=2))
    return path


if __name__ == "__main__":
    import run

    sys.exit(run.exports(FORMS, export))
