"""Tiny models with random weights, of which every exporter makes a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tokenizers
import torch
import transformers

SEED = 20261123


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the models are."""

    hidden: int
    intermediate: int
    layers: int
    experts: int
    head: int
    vocabulary: int


SIZES = {
    # As large as a swizzled tile of scales in both dimensions, and larger in one of them.
    "small": Size(hidden=128, intermediate=256, layers=2, experts=4, head=32, vocabulary=128),
    # For files that are kept.
    "golden": Size(hidden=64, intermediate=64, layers=1, experts=2, head=32, vocabulary=32),
    # For mlx-lm, which wants as many columns of queries as of the model, and a layer of each kind of attention.
    "least": Size(hidden=32, intermediate=32, layers=2, experts=2, head=8, vocabulary=32),
}


def config(model: str, size: Size) -> transformers.PretrainedConfig:
    """The configuration of a kind of model."""
    common = dict(
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=size.head,
        vocab_size=size.vocabulary,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    match model:
        case "llama":
            return transformers.LlamaConfig(**common)
        case "llama-tied":
            return transformers.LlamaConfig(**common | {"tie_word_embeddings": True})
        case "mixtral":
            return transformers.MixtralConfig(
                **common, num_local_experts=size.experts, num_experts_per_tok=2
            )
        case "qwen3-moe":
            return transformers.Qwen3MoeConfig(
                **common,
                moe_intermediate_size=size.intermediate,
                num_experts=size.experts,
                num_experts_per_tok=2,
                decoder_sparse_step=1,
                mlp_only_layers=[],
            )
        case "gpt-oss":
            return transformers.GptOssConfig(
                **common, num_local_experts=size.experts, num_experts_per_tok=2
            )
    raise ValueError(f"no model is called {model}")


def build(model: str, size: Size, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """The model, the same at each call.

    The weights have heavy tails, and each tensor a scale of its own, so that two tensors hardly
    ever have the same amax: a scale that ought to be shared, but is not, is seen.
    """
    settings = config(model, size)
    built = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in sorted(built.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(("norm" in name) + 0.1 * noise)
                continue
            tails = torch.randn(parameter.shape, generator=generator).abs().clamp(min=0.5)
            scale = 0.02 * (1 + torch.rand((), generator=generator))
            parameter.copy_(scale * noise * tails.sqrt())
    return built.to(dtype)


def original(model: str, size: Size, dtype: torch.dtype, folder: Path) -> Path:
    """Writes the model as it is before it is quantised, unless it is there."""
    path = folder / f"original-{model}-{str(dtype).removeprefix('torch.')}"
    if not (path / "config.json").exists():
        build(model, size, dtype).save_pretrained(path)
    return path


def load(path: Path) -> transformers.PreTrainedModel:
    """The model of a folder, as users open it."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval()


def published(config: dict) -> dict:
    """The keys that published models have, and mlx-lm reads, where transformers writes others today."""
    keys = {"rope_theta": config["rope_parameters"]["rope_theta"]}
    if "num_local_experts" in config:
        keys["num_experts"] = config["num_local_experts"]
    return keys


def tokenizer(size: Size) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of words, for exporters that ask for one."""
    words = {f"<{word}>": word for word in range(size.vocabulary)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<0>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<0>")


def batches(size: Size, count: int = 4) -> list[torch.Tensor]:
    """Input for calibration."""
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randint(3, size.vocabulary, (2, 32), generator=generator) for _ in range(count)]
