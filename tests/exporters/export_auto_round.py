"""AutoRound's export of the forms of 4 bits, in its own terms and in those of compressed-tensors."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import torch
from auto_round import AutoRound
from torch.utils.data import DataLoader

import models


@dataclasses.dataclass(frozen=True)
class Form:
    """A checkpoint that is exported."""

    name: str
    scheme: str
    # AutoRound's name of what it writes.
    format: str = "auto_round"
    model: str = "llama"


FORMS = [
    Form("auto-round-nvfp4", "NVFP4"),
    Form("auto-round-nvfp4", "NVFP4", model="llama-tied"),
    Form("auto-round-mxfp4", "MXFP4"),
    Form("llmcompressor-by-auto-round-nvfp4", "NVFP4", "llm_compressor"),
    Form("llmcompressor-by-auto-round-mxfp4", "MXFP4", "llm_compressor"),
]


def export(form: Form, size: models.Size, folder: Path) -> Path:
    """Exports one form, rounded to nearest: without steps of the search."""
    source = models.original(form.model, size, torch.bfloat16, folder)
    rows = [row for batch in models.batches(size) for row in batch]
    data = DataLoader([{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows], batch_size=2)
    quantiser = AutoRound(
        models.load(source),
        models.tokenizer(size),
        scheme=form.scheme,
        iters=0,
        nsamples=len(rows),
        seqlen=rows[0].numel(),
        dataset=data,
        disable_opt_rtn=True,
        device_map="cpu",
    )
    path = folder / f"{form.name}-{form.model}"
    written = folder / f"{path.name}.made"
    quantiser.quantize_and_save(str(written), format=form.format)
    # It makes a folder in the folder.
    (made,) = written.iterdir()
    made.rename(path)
    shutil.rmtree(written)
    return path


if __name__ == "__main__":
    import run

    sys.exit(run.exports(FORMS, export))
