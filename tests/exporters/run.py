"""The command line that the exporters share."""

from __future__ import annotations

import argparse
import traceback
from pathlib import Path
from typing import Callable

import torch

import models


def exports(forms: list, export: Callable) -> int:
    """Exports the forms, and their originals; says which of them failed."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--size", choices=models.SIZES, default="small")
    arguments.add_argument("--only", default="")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    size = models.SIZES[chosen.size]
    failed = 0
    for form in forms:
        name = f"{form.name}-{form.model}"
        if chosen.only not in name:
            continue
        try:
            models.original(form.model, size, torch.bfloat16, chosen.folder)
            print(f"exported {export(form, size, chosen.folder).name}", flush=True)
        except Exception:
            traceback.print_exc()
            print(f"FAILED {name}", flush=True)
            failed += 1
    return int(failed > 0)
