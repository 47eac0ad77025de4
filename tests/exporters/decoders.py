"""Whole models for `nvfp4_candle::models`: logits and greedy tokens as transformers computes them in f32.

    python decoders.py make --nvfp4 PROGRAM --data tests/data [--only NAME]
    python decoders.py check --nvfp4 PROGRAM --data tests/data --out RESULTS

`make` writes `DATA/models`: tiny models with random weights by transformers, quantised by `nvfp4`, and of each the
logits after every token of a prompt, and the tokens that follow, of the dequantised weights. `exporters.safetensors`
has logits of the exporters' models in `DATA/exporters`. `check` computes all of them again and compares.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import safetensors.torch
import tokenizers
import torch
import transformers

SEED = 20261130
PROMPT, CONTINUED = 40, 16
# Logits are those of one program, summed in another order by the next.
BOUND = 1e-4
# Of the exporters' models, every so many tokens.
EVERY = 8
# What products do not read: they mean something only together with other layers.
REFUSED = ["awq", "svdquant", "spinquant", "quip", "-openai-"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A model and how it is quantised."""

    name: str
    config: type
    settings: dict
    quantise: tuple[str, ...]


COMMON = dict(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=128,
    max_position_embeddings=1024,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    tie_word_embeddings=False,
)
EXPERTS = dict(num_experts_per_tok=2, num_local_experts=4, intermediate_size=64)

KINDS = [
    Kind(
        "llama",
        transformers.LlamaConfig,
        {
            "rope_parameters": dict(
                rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32,
            )
        },
        ("nvfp4", "modelopt", "modelopt"),
    ),
    Kind(
        "qwen3",
        transformers.Qwen3Config,
        dict(
            tie_word_embeddings=True, attention_bias=True, use_sliding_window=True, sliding_window=16,
            max_window_layers=1, rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        ),
        ("nvfp4", "compressed-tensors", "compressed-tensors"),
    ),
    Kind(
        "mixtral",
        transformers.MixtralConfig,
        {**EXPERTS, "sliding_window": 24, "rope_parameters": dict(rope_type="default", rope_theta=1000000.0)},
        ("mxfp4", "compressed-tensors", "compressed-tensors"),
    ),
    Kind(
        "qwen3-moe",
        transformers.Qwen3MoeConfig,
        dict(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, intermediate_size=128, decoder_sparse_step=1,
            mlp_only_layers=[0], norm_topk_prob=True, rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        ),
        ("nvfp4", "modelopt", "modelopt"),
    ),
    Kind(
        "gpt-oss",
        transformers.GptOssConfig,
        {
            **EXPERTS,
            "sliding_window": 16,
            "rope_parameters": dict(
                rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=32,
            ),
        },
        ("mxfp4", "torchao", "gpt-oss"),
    ),
    Kind(
        "deepseek-v3",
        transformers.DeepseekV3Config,
        dict(
            num_key_value_heads=4, head_dim=16, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
            first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, n_shared_experts=2,
            moe_intermediate_size=64, norm_topk_prob=True, routed_scaling_factor=2.5,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                mscale_all_dim=0.8, original_max_position_embeddings=32,
            ),
        ),
        ("nvfp4", "modelopt", "modelopt"),
    ),
    Kind(
        "deepseek-v3-plain",
        transformers.DeepseekV3Config,
        dict(
            num_key_value_heads=4, head_dim=16, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16,
            v_head_dim=32, rope_interleave=False, attention_bias=True, first_k_dense_replace=0, n_routed_experts=4,
            num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, moe_intermediate_size=64,
            norm_topk_prob=False, routed_scaling_factor=1.5,
            rope_parameters=dict(rope_type="default", rope_theta=50000.0),
        ),
        ("nvfp4", "compressed-tensors", "compressed-tensors"),
    ),
]

TEMPLATE = """{%- for message in messages %}{{ '[' + message.role.strip() + '] ' + message.content + ' ' }}{% endfor %}
{%- if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"""


def build(kind: Kind, folder: Path) -> None:
    """Writes a model. Its weights are large enough for attention and routing to be decided, and logits to differ."""
    config = kind.config(**COMMON | kind.settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.1 * noise)
            elif "bias" in name:
                parameter.copy_(0.2 * noise)
            elif parameter.dim() == 1 or "embed" in name:
                parameter.copy_(noise)
            else:
                turned = kind.name == "gpt-oss" and parameter.dim() == 3
                factor = 3 if "lm_head" in name or "gate.weight" in name or "router" in name else 1.5
                parameter.copy_(factor * noise / parameter.shape[-2 if turned else -1] ** 0.5)
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    model.to(torch.bfloat16).save_pretrained(folder)


def characters(folder: Path) -> None:
    """Writes a tokenizer of printable ASCII characters."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {chr(code): code - 29 for code in range(32, 127)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[], unk_token="<pad>"))
    core.decoder = tokenizers.decoders.Fuse()
    core.add_special_tokens(["<pad>", "<s>", "</s>"])
    core.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def run(program: Path, *arguments: str) -> None:
    """Runs nvfp4."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nvfp4 {' '.join(arguments)}: {done.stderr}")


def dequantised(program: Path, folder: Path, work: Path) -> transformers.PreTrainedModel:
    """The model of a folder's weights in f32."""
    out = work / f"{folder.name}-f32"
    if folder.name.startswith("original-"):
        shutil.copytree(folder, out)
    else:
        run(program, "dequantize", str(folder), "--dtype", "f32", "--out", str(out))
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def prompts(vocabulary: int, count: int) -> torch.Tensor:
    """Random tokens."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(3, vocabulary, (count, PROMPT), generator=generator)


@torch.no_grad()
def continued(model: transformers.PreTrainedModel, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Logits after each token of the prompt, the likeliest tokens that follow, and by how much they are the likeliest."""
    tokens, margin, first = prompt[None], float("inf"), None
    for _ in range(CONTINUED):
        logits = model(tokens).logits[0].float()
        first = logits if first is None else first
        best = logits[-1].topk(2).values
        margin = min(margin, float(best[0] - best[1]) / float(logits.std()))
        tokens = torch.cat([tokens, logits[-1].argmax().reshape(1, 1)], dim=1)
    return first, tokens[0, PROMPT:], margin


def record(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """What the model gives for that prompt of several in which each next token is the likeliest by far, and none ends it."""
    best = None
    for prompt in prompts(model.config.vocab_size, 40):
        logits, tokens, margin = continued(model, prompt)
        if model.config.eos_token_id not in tokens and (best is None or margin > best[0]):
            best = margin, prompt, logits, tokens
    margin, prompt, logits, tokens = best
    print(f"  the likeliest token is {margin:.3f} standard deviations ahead", flush=True)
    ids = {"prompt": prompt.int(), "tokens": tokens.int()}
    return ids | {"logits": logits.contiguous()}


def of_exporters(program: Path, data: Path, work: Path) -> dict[str, torch.Tensor]:
    """Logits of the exporters' models for one prompt."""
    found = {}
    for folder in sorted((data / "exporters").glob("*/")):
        if any(part in folder.name for part in REFUSED):
            continue
        model = dequantised(program, folder, work)
        prompt = prompts(model.config.vocab_size, 1)[0]
        with torch.no_grad():
            logits = model(prompt[None]).logits[0].float()
        found["prompt"] = prompt.int()
        found[folder.name] = logits[EVERY - 1 :: EVERY].contiguous()
    return found


def make(program: Path, data: Path, work: Path, only: str | None) -> None:
    """Writes all files, or those of one model."""
    target = data / "models"
    target.mkdir(exist_ok=True)
    for kind in [kind for kind in KINDS if only in (None, kind.name)]:
        original, out = work / kind.name, target / kind.name
        build(kind, original)
        shutil.rmtree(out, ignore_errors=True)
        form, recipe, layout = kind.quantise
        run(program, "quantize", str(original), "--format", form, "--recipe", recipe, "--layout", layout, "--out", str(out))
        (out / "generation_config.json").unlink(missing_ok=True)
        if kind.name == "deepseek-v3":
            # config.json says the same, and so does another model's file.
            (out / "hf_quant_config.json").unlink()
        if kind is KINDS[0]:
            characters(out)
        print(kind.name, flush=True)
        expected = record(dequantised(program, out, work))
        safetensors.torch.save_file(expected, out / "expected.safetensors")
        (out / "expected.safetensors").rename(target / f"{kind.name}.safetensors")
    if only is None:
        safetensors.torch.save_file(of_exporters(program, data, work), target / "exporters.safetensors")


def check(program: Path, data: Path, work: Path) -> list[dict]:
    """Compares the files with what transformers gives now."""
    results = []

    def compare(name: str, found: torch.Tensor, right: torch.Tensor) -> None:
        off = float((found - right).abs().max() / right.abs().max())
        problem = None if off < BOUND else f"logits differ by {off:.1e} of the largest"
        results.append({"name": name, "problem": problem})

    for kind in KINDS:
        right = safetensors.torch.load_file(data / "models" / f"{kind.name}.safetensors")
        model = dequantised(program, data / "models" / kind.name, work)
        logits, tokens, _ = continued(model, right["prompt"].long())
        compare(kind.name, logits, right["logits"])
        if tokens.int().tolist() != right["tokens"].tolist():
            results[-1]["problem"] = "other tokens are the likeliest"
    right = safetensors.torch.load_file(data / "models" / "exporters.safetensors")
    found = of_exporters(program, data, work)
    assert found.keys() == right.keys()
    for name in sorted(found.keys() - {"prompt"}):
        compare(name, found[name], right[name])
    return results


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("command", choices=["make", "check"])
    arguments.add_argument("--nvfp4", type=Path, required=True)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--only")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        program, data, work = chosen.nvfp4.resolve(), chosen.data, Path(folder)
        if chosen.command == "make":
            make(program, data, work, chosen.only)
        else:
            chosen.out.write_text(json.dumps(check(program, data, work)))


if __name__ == "__main__":
    main()
