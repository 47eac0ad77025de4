"""llmcompressor's own export, in compressed-tensors' form, of every form of 4 bits that it has."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs
from llmcompressor import oneshot
from llmcompressor.modeling.moe.linearize import load_quantizable_moe
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform import QuIPModifier, SpinQuantModifier
from torch.utils.data import DataLoader

import models


@dataclasses.dataclass(frozen=True)
class Form:
    """A checkpoint that is exported."""

    name: str
    # Presets of compressed-tensors, each with the modules that it is for.
    schemes: dict[str, list[str]]
    model: str = "llama"
    dtype: torch.dtype = torch.bfloat16
    kv: bool = False
    transform: str | None = None
    shards: bool = False


LINEAR = ["Linear"]
ATTENTION = [r"re:.*self_attn\..*_proj$"]
MLP = [r"re:.*mlp\..*_proj$"]
# The scheme in integers has groups of 128, so K is a multiple of that here in each size.
OUTPUT = [r"re:.*o_proj$"]

FORMS = [
    Form("nvfp4", {"NVFP4": LINEAR}),
    Form("nvfp4", {"NVFP4": LINEAR}, "mixtral"),
    Form("nvfp4", {"NVFP4": LINEAR}, "qwen3-moe"),
    Form("nvfp4a16", {"NVFP4A16": LINEAR}, "llama-tied"),
    Form("nvfp4-f32", {"NVFP4": LINEAR}, dtype=torch.float32),
    Form("nvfp4a16-shards", {"NVFP4A16": LINEAR}, shards=True),
    Form("nvfp4a16", {"NVFP4A16": LINEAR}, "mixtral"),
    Form("nvfp4-kv-fp8", {"NVFP4": LINEAR}, kv=True),
    Form("mxfp4", {"MXFP4": LINEAR}),
    Form("mxfp4a16", {"MXFP4A16": LINEAR}),
    Form("mxfp4a16", {"MXFP4A16": LINEAR}, "gpt-oss"),
    Form("nvfp4-fp8-mixed", {"NVFP4": MLP, "FP8_DYNAMIC": ATTENTION}),
    Form("nvfp4-w4a16-mixed", {"NVFP4A16": MLP, "W4A16": OUTPUT}),
    Form("nvfp4-mxfp4-mixed", {"NVFP4A16": MLP, "MXFP4A16": ATTENTION}),
    Form("nvfp4a16-spinquant", {"NVFP4A16": LINEAR}, transform="spinquant"),
    Form("nvfp4a16-quip", {"NVFP4A16": LINEAR}, transform="quip"),
]


def recipe(form: Form) -> list:
    """The form's modifiers."""
    kv = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False)
    quantise = QuantizationModifier(
        scheme=form.schemes,
        ignore=["lm_head", r"re:.*mlp\.gate$", r"re:.*block_sparse_moe\.gate$", r"re:.*router$"],
        kv_cache_scheme=kv if form.kv else None,
    )
    match form.transform:
        case None:
            return [quantise]
        case "spinquant":
            # R4 stays in the model as a rotation of the input of down_proj.
            return [SpinQuantModifier(rotations=["R1", "R2", "R4"]), quantise]
        case "quip":
            return [QuIPModifier(rotations=["v"], transform_type="hadamard"), quantise]
    raise ValueError(f"no transform is called {form.transform}")


def export(form: Form, size: models.Size, folder: Path) -> Path:
    """Exports one form."""
    source = models.original(form.model, size, form.dtype, folder)
    with load_quantizable_moe():
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
    data = DataLoader(
        [{"input_ids": row, "attention_mask": torch.ones_like(row)} for batch in models.batches(size) for row in batch],
        batch_size=2,
    )
    oneshot(model=model, processor=models.tokenizer(size), dataset=data, recipe=recipe(form), pipeline="basic")
    path = folder / f"llmcompressor-{form.name}-{form.model}"
    limit = {"max_shard_size": size.hidden * size.intermediate * 3} if form.shards else {}
    model.save_pretrained(path, save_compressed=True, **limit)
    return path


if __name__ == "__main__":
    import run

    sys.exit(run.exports(FORMS, export))
