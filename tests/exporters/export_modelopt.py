"""ModelOpt's own export of every form of 4 bits that it has."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization import tensor_quant
from modelopt.torch.quantization.qtensor import NVFP4QTensor

import models


@dataclasses.dataclass(frozen=True)
class Form:
    """A checkpoint that is exported."""

    name: str
    configuration: str
    model: str = "llama"
    kv: str | None = None
    mixed: bool = False


FORMS = [
    Form("nvfp4", "NVFP4_DEFAULT_CFG"),
    Form("nvfp4", "NVFP4_DEFAULT_CFG", "mixtral"),
    Form("nvfp4", "NVFP4_DEFAULT_CFG", "qwen3-moe"),
    Form("nvfp4", "NVFP4_DEFAULT_CFG", "gpt-oss"),
    Form("nvfp4-mlp-only", "NVFP4_MLP_ONLY_CFG"),
    Form("nvfp4-experts-only", "NVFP4_EXPERTS_ONLY_CFG", "qwen3-moe"),
    Form("w4a16-nvfp4", "W4A16_NVFP4_CFG"),
    Form("nvfp4-kv-fp8", "NVFP4_DEFAULT_CFG", kv="FP8_KV_CFG"),
    Form("nvfp4-kv-nvfp4", "NVFP4_DEFAULT_CFG", kv="NVFP4_KV_CFG"),
    Form("nvfp4-mlp-weight-only", "NVFP4_MLP_WEIGHT_ONLY_CFG"),
    Form("w4a8-nvfp4-fp8", "W4A8_NVFP4_FP8_CFG"),
    Form("mxfp4", "MXFP4_DEFAULT_CFG"),
    Form("mxfp4", "MXFP4_DEFAULT_CFG", "qwen3-moe"),
    Form("mxfp4", "MXFP4_DEFAULT_CFG", "gpt-oss"),
    Form("mxfp4-mlp-weight-only", "MXFP4_MLP_WEIGHT_ONLY_CFG"),
    Form("mxfp4-mlp-weight-only", "MXFP4_MLP_WEIGHT_ONLY_CFG", "gpt-oss"),
    Form("nvfp4-awq-lite", "NVFP4_AWQ_LITE_CFG"),
    Form("nvfp4-svdquant", "NVFP4_SVDQUANT_DEFAULT_CFG"),
    Form("nvfp4-fp8-mixed", "NVFP4_DEFAULT_CFG", mixed=True),
]


def fake_quantise(inputs, block_size, amax, num_bits, exponent_bits, scale_num_bits, scale_exponent_bits):
    """ModelOpt's rounding of activations to NVFP4, which it has for CUDA alone, on the CPU.

    AWQ and SVDQuant search with it. It rounds and decodes by the class that packs weights.
    """
    assert (num_bits, exponent_bits, scale_num_bits, scale_exponent_bits) == (4, 2, 8, 4)
    second = amax.amax().float() / (6 * 448)
    packed, scale, second = NVFP4QTensor.quantize(
        inputs.detach().clone(), block_size, weights_scaling_factor_2=second
    )
    return packed.dequantize(scale=scale, double_scale=second, block_sizes={-1: block_size})


def configuration(form: Form) -> dict:
    """The form's quantisation for `mtq.quantize`."""
    chosen = copy.deepcopy(getattr(mtq, form.configuration))
    if form.kv:
        kv = copy.deepcopy(getattr(mtq, form.kv))
        chosen["quant_cfg"] = chosen["quant_cfg"] + kv["quant_cfg"]
    if form.mixed:
        # Attention in FP8, the rest in NVFP4.
        fp8 = {"num_bits": (4, 3), "axis": None}
        chosen["quant_cfg"] = chosen["quant_cfg"] + [
            {"quantizer_name": "*self_attn*weight_quantizer", "cfg": fp8},
            {"quantizer_name": "*self_attn*_proj.input_quantizer", "cfg": fp8},
        ]
    return chosen


def export(form: Form, size: models.Size, folder: Path) -> Path:
    """Exports one form."""
    model = models.load(models.original(form.model, size, torch.bfloat16, folder))

    def calibrate(model: torch.nn.Module) -> None:
        for batch in models.batches(size):
            model(batch)

    mtq.quantize(model, configuration(form), calibrate)
    path = folder / f"modelopt-{form.name}-{form.model}"
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=path)
    return path


if __name__ == "__main__":
    import run

    tensor_quant.dynamic_block_quantize_op = fake_quantise
    sys.exit(run.exports(FORMS, export))
