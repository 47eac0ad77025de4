"""mlx-lm's conversion into MLX's forms of 4 bits."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

import mlx_lm
import torch

import models


@dataclasses.dataclass(frozen=True)
class Form:
    """A checkpoint that is exported."""

    # MLX's mode.
    name: str
    model: str = "llama"


FORMS = [
    Form("nvfp4"),
    Form("nvfp4", "llama-tied"),
    Form("mxfp4"),
    Form("nvfp4", "mixtral"),
    Form("mxfp4", "qwen3-moe"),
    Form("mxfp4", "gpt-oss"),
]


def export(form: Form, size: models.Size, folder: Path) -> Path:
    """Exports one form."""
    source = models.original(form.model, size, torch.bfloat16, folder)
    # mlx-lm 0.32.2 reads gpt-oss's experts in blocks alone, which it keeps as they are.
    is_quantised = form.model == "gpt-oss"
    if is_quantised:
        source = folder / "gpt-oss-huggingface-gpt-oss"
    path = folder / f"mlx-{form.name}-{form.model}"
    with tempfile.TemporaryDirectory() as with_tokenizer:
        # mlx-lm opens no model without one.
        shutil.copytree(source, with_tokenizer, dirs_exist_ok=True)
        models.tokenizer(size).save_pretrained(with_tokenizer)
        path_of_config = Path(with_tokenizer, "config.json")
        config = json.loads(path_of_config.read_text())
        path_of_config.write_text(json.dumps(config | models.published(config)))
        how = {} if is_quantised else {"quantize": True, "q_mode": form.name}
        mlx_lm.convert(with_tokenizer, mlx_path=str(path), **how)
    return path


if __name__ == "__main__":
    import run

    sys.exit(run.exports(FORMS, export))
