"""Quark's export of the forms of 4 bits with scales in e4m3 and e8m0."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.quantization.config.config import (
    FP4PerGroupSpec,
    FP8E4M3PerTensorSpec,
    OCP_MXFP4Spec,
    QConfig,
    QLayerConfig,
    ScaleQuantSpec,
)
from torch.utils.data import DataLoader

import models


@dataclasses.dataclass(frozen=True)
class Form:
    """A checkpoint that is exported."""

    name: str
    # How all layers are quantised.
    layers: QLayerConfig
    model: str = "llama"
    # Layers that are quantised otherwise, by pattern.
    others: dict[str, QLayerConfig] = dataclasses.field(default_factory=dict)


def nvfp4(dynamic: bool) -> list:
    scales = FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False)
    codes = FP4PerGroupSpec(ch_axis=-1, group_size=16, is_dynamic=dynamic)
    return ScaleQuantSpec(first_stage=codes, second_stage=scales).to_quantization_spec()


def mxfp4(dynamic: bool):
    return OCP_MXFP4Spec(ch_axis=-1, is_dynamic=dynamic).to_quantization_spec()


def fp8():
    return FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False).to_quantization_spec()


NVFP4 = QLayerConfig(weight=nvfp4(False), input_tensors=nvfp4(True))
MXFP4 = QLayerConfig(weight=mxfp4(False), input_tensors=mxfp4(True))
FP8 = QLayerConfig(weight=fp8(), input_tensors=fp8())

FORMS = [
    Form("nvfp4", NVFP4),
    Form("nvfp4-weight-only", QLayerConfig(weight=nvfp4(False))),
    Form("nvfp4-weight-only", QLayerConfig(weight=nvfp4(False)), "llama-tied"),
    Form("mxfp4", MXFP4),
    Form("mxfp4-fp8-mixed", MXFP4, others={"*self_attn*": FP8}),
]


def export(form: Form, size: models.Size, folder: Path) -> Path:
    """Exports one form."""
    source = models.original(form.model, size, torch.bfloat16, folder)
    config = QConfig(global_quant_config=form.layers, layer_quant_config=form.others, exclude=["lm_head"])
    quantiser = ModelQuantizer(config)
    data = DataLoader([row for batch in models.batches(size) for row in batch], batch_size=2)
    model = quantiser.freeze(quantiser.quantize_model(models.load(source), data))
    path = folder / f"quark-{form.name}-{form.model}"
    export_safetensors(model, path)
    return path


if __name__ == "__main__":
    import run

    sys.exit(run.exports(FORMS, export))
