"""Loads checkpoints as users of each layout do, and writes down what came of it.

    python judge.py LAYOUT TASKS.json

TASKS.json is a list of {"checkpoint": folder, "out": folder}. In each `out` are written

- `report.json`: keys that the model lacks, keys that the loader did not expect, and an error;
- `values.safetensors`: every parameter of the model, decoded, in f32, by its name in the model.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Callable

import torch
import transformers
from safetensors.torch import save_file

import decode

# Models whose experts `judge_experts` makes layers of their own.
EXPERTS = ["mixtral", "qwen3_moe", "gpt_oss"]

Loaded = tuple[torch.nn.Module, dict]


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's parameters, decoded."""
    decoded = {}
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "dequantize") and type(parameter.data) is not torch.Tensor:
            # TorchAO's classes state f32 exactly; their own type may be bf16.
            decoded[name] = parameter.data.dequantize(torch.float32)
        else:
            decoded[name] = parameter.data.float()
    return {name: value.detach().contiguous().clone() for name, value in decoded.items()}


def plain(checkpoint: Path) -> Loaded:
    """A model that is not quantised."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, output_loading_info=True
    )


def compressed_tensors(checkpoint: Path) -> Loaded:
    """transformers with compressed-tensors, which decodes everything as soon as it is loaded."""
    if transformers.AutoConfig.from_pretrained(checkpoint).model_type in EXPERTS:
        import judge_experts

        return judge_experts.load(checkpoint)
    return transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint,
        dtype=torch.float32,
        output_loading_info=True,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True),
    )


def torchao(checkpoint: Path) -> Loaded:
    """transformers with TorchAO; TorchAO alone for scales of inputs, which transformers cannot read.

    transformers ends with an error at the configuration of TorchAO's own files with such scales.
    """
    tensors, metadata = decode.read(checkpoint)
    if any(name.endswith("_act_per_tensor_scale") for name in tensors):
        return torchao_alone(checkpoint, tensors, metadata)
    return transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, output_loading_info=True
    )


def torchao_alone(checkpoint: Path, tensors: dict, metadata: dict) -> Loaded:
    """TorchAO makes its tensors, and the model takes them."""
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    state, left = unflatten_tensor_state_dict(tensors, metadata)
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    del config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    # A tied head is the embedding, which is assigned.
    model.tie_weights()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    return model, {
        "missing_keys": sorted({*missing} - tied),
        "unexpected_keys": [*unexpected, *left],
        "mismatched_keys": [],
    }


def gpt_oss(checkpoint: Path) -> Loaded:
    """transformers with blocks and scales of MXFP4, which it decodes where it has no kernel."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint,
        dtype=torch.float32,
        output_loading_info=True,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
    )


def oracle(checkpoint: Path) -> Loaded:
    """The definition of each layout, decoded in f64, as a model that is not quantised."""
    with tempfile.TemporaryDirectory() as folder:
        decode.write(checkpoint, Path(folder))
        return plain(Path(folder))


def modelopt(checkpoint: Path) -> Loaded:
    """ModelOpt has no loader of what it exports for engines; see `judge_modelopt`."""
    import judge_modelopt

    return judge_modelopt.load(checkpoint)


def gguf(checkpoint: Path) -> Loaded:
    """The package gguf: its parser, decoders and names; what it reads as a model that is not quantised."""
    import judge_gguf

    with tempfile.TemporaryDirectory() as folder:
        judge_gguf.write(checkpoint, Path(folder))
        return plain(Path(folder))


def in_floats(model: torch.nn.Module, decoded: Callable[[torch.nn.Module], torch.Tensor | None]) -> torch.nn.Module:
    """The model with linear layers of floats in the place of those that `decoded` gives a weight of."""
    for name, module in list(model.named_modules()):
        weight = decoded(module)
        if weight is None:
            continue
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=module.bias is not None)
        linear.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
        if module.bias is not None:
            linear.bias = torch.nn.Parameter(module.bias.float(), requires_grad=False)
        model.set_submodule(name, linear)
    return model


def auto_round(checkpoint: Path) -> Loaded:
    """transformers with AutoRound, whose layers decode."""
    model, info = plain(checkpoint)

    def decoded(module: torch.nn.Module) -> torch.Tensor | None:
        return module.dequant_weight_online() if hasattr(module, "dequant_weight_online") else None

    return in_floats(model, decoded), info


def quark(checkpoint: Path) -> Loaded:
    """Quark's own loader; transformers' use of Quark finds no scale of NVFP4."""
    from quark.torch import import_model_from_safetensors
    from quark.torch.export.nn.modules.qparamslinear import QParamsLinear

    stored = decode.read(checkpoint)[0]
    model = import_model_from_safetensors(None, str(checkpoint), device="cpu")
    layers = {name for name, module in model.named_modules() if isinstance(module, QParamsLinear)}
    quantised = {name.rpartition(".")[0] for name in stored if name.endswith(".weight_scale")}

    def decoded(module: torch.nn.Module) -> torch.Tensor | None:
        return module._get_qweight(module.weight) if isinstance(module, QParamsLinear) else None

    info = {
        "missing_keys": sorted(f"{name}.weight_scale" for name in layers - quantised),
        "unexpected_keys": sorted(f"{name}.weight_scale" for name in quantised - layers),
        "mismatched_keys": [],
    }
    return in_floats(model.float(), decoded), info


def mlx(checkpoint: Path) -> Loaded:
    """mlx-lm, which refuses missing and unexpected tensors itself."""
    import judge_mlx

    with tempfile.TemporaryDirectory() as folder:
        judge_mlx.write(checkpoint, Path(folder))
        return plain(Path(folder))


LOADERS: dict[str, Callable[[Path], Loaded]] = {
    "plain": plain,
    "oracle": oracle,
    "compressed-tensors": compressed_tensors,
    "torchao": torchao,
    "gpt-oss": gpt_oss,
    "modelopt": modelopt,
    "gguf": gguf,
    "mlx": mlx,
    "quark": quark,
    "auto-round": auto_round,
}


def judge(layout: str, checkpoint: Path, out: Path) -> None:
    """Loads one checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    report: dict = {"missing": [], "unexpected": [], "other": [], "error": None}
    try:
        model, info = LOADERS[layout](checkpoint)
        report["missing"] = sorted(info["missing_keys"])
        report["unexpected"] = sorted(info["unexpected_keys"])
        report["other"] = sorted(map(str, info["mismatched_keys"])) + sorted(map(str, info.get("error_msgs", [])))
        save_file(parameters(model), out / "values.safetensors")
    except Exception as error:
        traceback.print_exc()
        report["error"] = f"{type(error).__name__}: {error}"
    (out / "report.json").write_text(json.dumps(report, indent=1))


def main() -> None:
    layout, tasks = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    torch.set_num_threads(1)
    for task in tasks:
        print(f"{layout} reads {task['checkpoint']}", flush=True)
        judge(layout, Path(task["checkpoint"]), Path(task["out"]))


if __name__ == "__main__":
    main()
