"""transformers' export of what TorchAO quantises, of every form of 4 bits that it has."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Callable

import torch
import transformers
from torchao.core.config import AOBaseConfig
from torchao.prototype.mx_formats import (
    MXDynamicActivationMXWeightConfig,
    NVFP4DynamicActivationNVFP4WeightConfig,
    NVFP4WeightOnlyConfig,
    inference_workflow,
)
from torchao.quantization import FqnToConfig, quantize_

import models


@dataclasses.dataclass(frozen=True)
class Form:
    """A checkpoint that is exported."""

    name: str
    make: Callable[[models.Size], AOBaseConfig]
    model: str = "llama"
    # Whether the scale of the input is fixed by calibration.
    static: bool = False


def weight_only(two_levels: bool) -> Callable[[models.Size], AOBaseConfig]:
    return lambda size: NVFP4WeightOnlyConfig(use_dynamic_per_tensor_scale=two_levels)


def dynamic(**options) -> AOBaseConfig:
    return NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=False, **options)


def mxfp4(size: models.Size) -> AOBaseConfig:
    fp4 = torch.float4_e2m1fn_x2
    return MXDynamicActivationMXWeightConfig(activation_dtype=fp4, weight_dtype=fp4)


def experts(size: models.Size) -> AOBaseConfig:
    chosen = {r"re:model\.layers\..*\.mlp\.experts\.gate_up_proj": dynamic()}
    # TorchAO cannot tile the scales of several matrices whose rows are no multiple of 128.
    if size.hidden % 128 == 0:
        chosen[r"re:model\.layers\..*\.mlp\.experts\.down_proj"] = dynamic()
    return FqnToConfig(chosen)


FORMS = [
    Form("nvfp4-weight-only", weight_only(True)),
    Form("nvfp4-weight-only-one-level", weight_only(False)),
    Form("nvfp4-dynamic", lambda size: dynamic()),
    Form("nvfp4-dynamic-one-level", lambda size: dynamic(use_dynamic_per_tensor_scale=False)),
    Form("nvfp4-static", lambda size: dynamic(step="convert"), static=True),
    Form("mxfp4", mxfp4),
    Form("nvfp4-experts", experts, "mixtral"),
    Form("nvfp4-weight-only", weight_only(True), "qwen3-moe"),
]


def export(form: Form, size: models.Size, folder: Path) -> Path:
    """Exports one form."""
    source = models.original(form.model, size, torch.bfloat16, folder)
    config = transformers.TorchAoConfig(form.make(size))
    if form.static:
        # transformers quantises while it loads, which leaves no time to calibrate, so its
        # quantiser is attached to a model that was calibrated and quantised before.
        model = models.load(source)
        linear = lambda module, name: isinstance(module, torch.nn.Linear) and name != "lm_head"
        quantize_(model, dynamic(step="prepare"), filter_fn=linear)
        for batch in models.batches(size):
            model(batch)
        quantize_(model, form.make(size), filter_fn=linear)
        model.config.quantization_config = config
        model.hf_quantizer = transformers.quantizers.AutoHfQuantizer.from_config(config)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.bfloat16, quantization_config=config
        )
    path = folder / f"torchao-{form.name}-{form.model}"
    model.save_pretrained(path)
    return path


if __name__ == "__main__":
    import run

    # It refuses to quantise for devices that it cannot see, although the arithmetic is the same.
    inference_workflow.is_sm_at_least_100 = lambda: True
    sys.exit(run.exports(FORMS, export))
