"""The values of a checkpoint's weights, computed by nobody's loader: the oracle of the comparison.

The result is the same model without any quantisation, in f32.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def read(folder: Path) -> tuple[Tensors, dict[str, str]]:
    """Tensors and metadata of all shards."""
    tensors, metadata = {}, {}
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, "pt") as opened:
            metadata.update(opened.metadata() or {})
            tensors.update({name: opened.get_tensor(name) for name in opened.keys()})
    return tensors, metadata


def codes(packed: torch.Tensor) -> torch.Tensor:
    """The numbers of packed codes, the low nibble first."""
    pairs = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).long()
    return torch.where(pairs < 8, 1.0, -1.0) * E2M1[pairs % 8]


def scale_values(scales: torch.Tensor) -> torch.Tensor:
    """The numbers of block scales: E4M3 or, as bytes or by its own type, E8M0."""
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return torch.exp2(scales.view(torch.uint8).double() - 127)
    return scales.double()


def unswizzle(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Scales in tiles of 128x4 by row and column."""
    outer = scales.shape[:-2]
    tiles = scales.reshape(*outer, -(-rows // 128), -(-columns // 4), 32, 4, 4)
    # Element (row, column) of a tile stands at [row % 32, row / 32, column].
    turned = tiles.transpose(-2, -3).movedim(-4, -2)
    whole = turned.reshape(*outer, -(-rows // 128) * 128, -(-columns // 4) * 4)
    return whole[..., :rows, :columns]


def product(packed: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Codes times block scales times the tensor's factor, blocks along the last dimension."""
    elements = codes(packed).double()
    block = elements.shape[-1] // scales.shape[-1]
    spread = scale_values(scales).repeat_interleave(block, dim=-1)
    return (elements * spread * factor.double()).float()


@dataclasses.dataclass
class Weight:
    """A decoded weight of 4 bits, as it is stored: without what is added to it or folded into it."""

    format: str
    # Blocks are along the last dimension.
    values: torch.Tensor


Found = dict[str, Weight]


def note(found: Found, name: str, scales: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Remembers a decoded weight."""
    found[name] = Weight("nvfp4" if scales.dtype == torch.float8_e4m3fn else "mxfp4", values)
    return values


def take(tensors: Tensors, *names: str) -> list[torch.Tensor]:
    return [tensors.pop(name) for name in names]


def decode_modelopt(tensors: Tensors, found: Found) -> None:
    for scale in [name for name in tensors if name.endswith("weight_scale")]:
        stem = scale.removesuffix("_weight_scale").removesuffix(".weight_scale")
        fused = scale.endswith("_weight_scale") and not scale.endswith(".weight_scale")
        own = stem if fused else f"{stem}.weight"
        packed, scales = take(tensors, own, scale)
        second = tensors.pop(f"{scale}_2", torch.ones(()))
        for part in ("input_scale", "input_scale_2"):
            tensors.pop(scale.removesuffix("weight_scale") + part, None)
        if packed.dtype == torch.float8_e4m3fn:
            tensors[own] = packed.float() * scales.float()
            continue
        if fused and scales.dtype == torch.float8_e4m3fn:
            # The second dimension is K, and bytes and scales go along it.
            decoded = note(found, own, scales, product(packed.mT, scales.mT, second))
            tensors[own] = decoded.transpose(1, 2).contiguous()
            continue
        decoded = note(found, own, scales, product(packed, scales, second))
        low, high = (f"{stem}.weight_quantizer._svdquant_lora_{side}" for side in "ab")
        if low in tensors:
            a, b = take(tensors, low, high)
            decoded = decoded + (b.double() @ a.double()).float()
        if f"{stem}.pre_quant_scale" in tensors:
            decoded = decoded * tensors.pop(f"{stem}.pre_quant_scale").float()
        tensors[own] = decoded


def decode_compressed_tensors(tensors: Tensors, found: Found) -> None:
    for scale in [name for name in tensors if name.endswith("weight_scale")]:
        stem = scale.removesuffix("_scale")
        own = stem if stem in tensors else f"{stem}_packed"
        stored, scales = take(tensors, own, scale)
        divisor = tensors.pop(f"{stem}_global_scale", torch.ones(()))
        tensors.pop(stem.removesuffix("weight") + "input_global_scale", None)
        if stored.dtype == torch.float8_e4m3fn:
            tensors[stem] = stored.float() * scales.float()
        elif stored.dtype == torch.int32:
            shape = tensors.pop(f"{stem}_shape").tolist()
            nibbles = torch.stack([(stored >> (4 * at)) & 15 for at in range(8)], dim=-1)
            integers = nibbles.flatten(-2)[:, : shape[1]].float() - 8
            tensors[stem] = integers * scales.float().repeat_interleave(shape[1] // scales.shape[1], 1)
        else:
            tensors[stem] = note(found, stem, scales, product(stored, scales, 1 / divisor.double()))


def decode_torchao(tensors: Tensors, metadata: dict[str, str], found: Found) -> None:
    for data in [name for name in tensors if name.endswith("_qdata")]:
        stem = data.removesuffix("_qdata")
        module, attribute = stem.rsplit("._", 1)
        own = f"{module}.{attribute}"
        packed, stored = take(tensors, data, f"{stem}_scale")
        factor = tensors.pop(f"{stem}_per_tensor_scale", torch.ones(()))
        tensors.pop(f"{stem}_act_per_tensor_scale", None)
        # transformers renames tensors while it saves, and leaves the metadata as it is.
        described = metadata.get(own) or metadata[own.replace("block_sparse_moe", "mlp")]
        if json.loads(described)["_data"]["is_swizzled_scales"]:
            block = 16 if stored.dtype == torch.float8_e4m3fn else 32
            scales = unswizzle(stored, packed.shape[-2], packed.shape[-1] * 2 // block)
        else:
            scales = stored.reshape(*packed.shape[:-1], -1)
        tensors[own] = note(found, own, stored, product(packed, scales, factor))


def decode_gpt_oss(tensors: Tensors, found: Found) -> None:
    for blocks in [name for name in tensors if name.endswith(("_blocks", ".blocks"))]:
        stem, joint = blocks.removesuffix("blocks")[:-1], blocks.removesuffix("blocks")[-1]
        packed, scales = take(tensors, blocks, f"{stem}{joint}scales")
        decoded = note(found, stem, scales, product(packed.flatten(-2), scales, torch.ones(())))
        # OpenAI's names are read by no loader here, so they keep the order that they have.
        tensors[stem] = decoded if joint == "." else decoded.mT


def decode_mlx(tensors: Tensors, found: Found) -> None:
    for name in [name for name in tensors if name.endswith(".scales")]:
        own = f"{name.removesuffix('.scales')}.weight"
        if own not in tensors or tensors[own].dtype != torch.uint32:
            continue
        words, stored = take(tensors, own, name)
        packed = words.view(torch.uint8)
        biases = tensors.pop(f"{name.removesuffix('.scales')}.biases", None)
        if biases is not None:
            # Routers: mlx-lm has them in integers of 8 bits in groups of 64.
            codes_of = packed.unflatten(-1, (-1, 64)).float()
            values = codes_of * stored.float().unsqueeze(-1) + biases.float().unsqueeze(-1)
            tensors[own] = values.flatten(-2)
            continue
        # Blocks of 16 have scales in e4m3, those of 32 powers of two.
        blocks_of_16 = packed.shape[-1] * 2 == stored.shape[-1] * 16
        scales = stored.view(torch.float8_e4m3fn) if blocks_of_16 else stored
        tensors[own] = note(found, own, scales, product(packed, scales, torch.ones(())))


def split_experts(tensors: Tensors, kind: str) -> Tensors:
    """The experts that mlx-lm has in a tensor for each projection, as a matrix each."""
    split = {}
    for name, tensor in tensors.items():
        stacked = r"(.*)\.switch_mlp" if kind != "gpt_oss" else r"(.*)\.experts"
        match = re.fullmatch(stacked + r"\.(\w+)\.(weight|bias)", name)
        if match and match[2] in ("gate_proj", "up_proj", "down_proj"):
            for expert, matrix in enumerate(tensor):
                split[f"{match[1]}.experts.{expert}.{match[2]}.{match[3]}"] = matrix
        else:
            split[name] = tensor
    return split


def join_experts(tensors: Tensors, kind: str) -> Tensors:
    """The experts of a model as transformers reads them."""
    joined, split = {}, {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.(weight|bias)", name)
        if kind == "mixtral" and match and match[3].endswith("_proj"):
            short = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[match[3]]
            joined[f"{match[1]}.{match[2]}.{short}.{match[4]}"] = tensor
        elif kind == "gpt_oss" and match:
            part, ending = match[3], "" if match[4] == "weight" else "_bias"
            split.setdefault((match[1], ending), {}).setdefault(int(match[2]), {})[part] = tensor
        else:
            joined[name] = tensor
    for (experts, ending), each in split.items():
        each = [parts for _, parts in sorted(each.items())]
        downs = torch.stack([parts["down_proj"].mT if not ending else parts["down_proj"] for parts in each])
        ups = torch.stack(
            [torch.stack([parts["gate_proj"], parts["up_proj"]], dim=1).flatten(0, 1) for parts in each]
        )
        joined[f"{experts}.down_proj{ending}"] = downs
        joined[f"{experts}.gate_up_proj{ending}"] = ups if ending else ups.mT
    return joined


def decode_all(tensors: Tensors, metadata: dict[str, str]) -> Found:
    """Decodes tensors where they are; returns the weights of 4 bits."""
    found: Found = {}
    if any(name.endswith("_qdata") for name in tensors):
        decode_torchao(tensors, metadata, found)
    decode_gpt_oss(tensors, found)
    decode_mlx(tensors, found)
    if any(name.endswith(("weight_packed", "global_scale")) for name in tensors):
        decode_compressed_tensors(tensors, found)
    decode_modelopt(tensors, found)
    return found


def decode(folder: Path) -> tuple[Tensors, dict]:
    """All tensors without quantisation, by the names that transformers reads, and the model's configuration."""
    tensors, metadata = read(folder)
    config = json.loads((folder / "config.json").read_text())
    for key in ("quantization_config", "quantization"):
        config.pop(key, None)
    decode_all(tensors, metadata)
    kv = re.compile(r".*\.[kv]_scale")
    kept = {name: tensor for name, tensor in tensors.items() if not kv.fullmatch(name)}
    kind = config["model_type"]
    joined = join_experts(split_experts(kept, kind), kind)
    return {name: tensor.float().contiguous() for name, tensor in joined.items()}, config


def write(folder: Path, out: Path) -> None:
    """Writes the decoded model into a folder."""
    tensors, config = decode(folder)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
