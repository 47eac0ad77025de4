"""Compares what llama.cpp generates from our GGUF with what transformers generates from the same values.

llama.cpp rounds activations to 8 bits before products with blocks, so that its token may be another one that
transformers finds as good, within CLOSE of the largest logit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

sys.path.append(str(Path(__file__).parent.parent))

import judge

FORMATS = ["nvfp4", "mxfp4"]
MODELS = ["llama", "llama-tied", "mixtral", "qwen3-moe", "gpt-oss"]
# llama.cpp applies no tensor-level scale there, so that none is written.
REFUSED = [("gpt-oss", "nvfp4")]
# Scalings of rotary positions, which make the logits of a long prompt others.
SCALINGS = {
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}
COUNT, CLOSE = 12, 0.05
PROMPT = [3 + 37 * at % 120 for at in range(48)]


def generated(greedy: Path, file: Path) -> list[int]:
    """llama.cpp's tokens."""
    done = subprocess.run([greedy, file, str(COUNT), *map(str, PROMPT)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"llama.cpp ends with {done.returncode}: {done.stderr.strip()[-300:]}")
    return [int(token) for token in done.stdout.split()]


def compared(model: torch.nn.Module, tokens: list[int]) -> tuple[int, float]:
    """How many tokens are transformers' own, and by how much the logit of the worst is below the largest."""
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1]
    below = [float(row.max() - row[token]) for row, token in zip(logits, tokens)]
    return sum(gap == 0 for gap in below), max(below)


def check(program: Path, greedy: Path, source: Path, form: str, folder: Path) -> tuple[int, float]:
    """Quantises a model, and has both generate."""
    out = folder / "gguf"
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run(
        [program, "quantize", source, "--format", form, "--layout", "gguf", "--out", out],
        check=True, stdout=subprocess.DEVNULL,
    )
    model, info = judge.gguf(out)
    if info["missing_keys"]:
        raise RuntimeError(f"missing: {sorted(info['missing_keys'])[:3]}")
    return compared(model, generated(greedy, out / "model.gguf"))


def main() -> None:
    arguments = argparse.ArgumentParser()
    for name in ["nvfp4", "greedy", "exports"]:
        arguments.add_argument(f"--{name}", type=Path, required=True)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sources = {model: chosen.exports / f"original-{model}-bfloat16" for model in MODELS}
        for kind, scaling in SCALINGS.items():
            source = sources[f"llama-{kind}"] = folder / f"llama-{kind}"
            shutil.copytree(sources["llama"], source)
            config = json.loads((source / "config.json").read_text())
            config["rope_parameters"] |= scaling
            (source / "config.json").write_text(json.dumps(config))
        for name, source in sources.items():
            for form in FORMATS:
                if (name, form) in REFUSED:
                    continue
                try:
                    same, gap = check(chosen.nvfp4, chosen.greedy, source, form, folder)
                    problem = None if gap <= CLOSE else f"a logit is {gap:.3f} below the largest"
                    note = f"{same} of {COUNT} tokens are the same, the worst logit {gap:.3f} below the largest"
                except (RuntimeError, subprocess.CalledProcessError) as error:
                    problem, note = str(error), ""
                failed += problem is not None
                print(f"{name}, {form}: {f'FAILED: {problem}' if problem else note}", flush=True)
    sys.exit(int(failed > 0))


if __name__ == "__main__":
    main()
