"""Compares what loaders read with what it ought to be.

    python compare.py TASKS.json RESULTS.json
"""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import load_file

# Largest difference over the largest magnitude of a tensor, where values must be the same. What
# compressed-tensors decodes of NVFP4 is in bf16 whatever type is asked for.
TOLERANCE = {
    "modelopt": 1e-6, "torchao": 1e-6, "gpt-oss": 0.0, "compressed-tensors": 2**-8, "dequantize": 1e-6, "gguf": 1e-6,
    "mlx": 0.0, "quark": 2**-8, "auto-round": 2**-8,
}
# Where values were rounded: the least signal-to-noise ratio, dB. MXFP4 gives 17 to 18.5.
LEAST_DB = 16.0


def ratio(read: torch.Tensor, reference: torch.Tensor) -> float:
    """Signal to noise, dB."""
    noise = (read - reference).double().square().sum()
    return float(10 * torch.log10(reference.double().square().sum() / noise))


def values(task: dict) -> tuple[str | None, str]:
    """What is wrong with the values, and a note."""
    read = load_file(Path(task["read"], "values.safetensors"))
    reference = load_file(Path(task["reference"], "values.safetensors"))
    # compressed-tensors keeps the scales and shapes of what it decoded.
    left = {name for name in read.keys() - reference.keys() if not name.endswith(("_scale", "_shape"))}
    if left or reference.keys() - read.keys():
        return f"parameters differ: {sorted(left | (reference.keys() - read.keys()))[:4]}", ""
    worst, least = 0.0, float("inf")
    for name, right in reference.items():
        if read[name].shape != right.shape:
            return f"{name} is {tuple(read[name].shape)}, not {tuple(right.shape)}", ""
        difference = float((read[name] - right).abs().max() / right.abs().max())
        if not difference <= worst:
            worst, where = difference, name
        if difference > 0:
            least = min(least, ratio(read[name], right))
    if task["exact"]:
        tolerance = TOLERANCE[task["layout"]]
        return (f"{where} differs by {worst:.1e} of its largest value" if not worst <= tolerance else None), ""
    if not least >= LEAST_DB:
        return f"values are {least:.1f} dB from the reference's", ""
    if least == float("inf"):
        return "no value differs from the original's, so nothing is quantised", ""
    return None, f"{least:.1f} dB"


def compared(task: dict) -> tuple[str | None, str]:
    """What is wrong with what a loader read, and a note."""
    path = Path(task["read"], "report.json")
    report = json.loads(path.read_text())
    if report["error"]:
        return f"the loader ends with {report['error'][:300]}", ""
    unexpected = [name for name in report["unexpected"] if not any(fnmatchcase(name, x) for x in task["allowed"])]
    for what, names in [("missing", report["missing"]), ("unexpected", unexpected), ("wrong", report["other"])]:
        if names:
            return f"{len(names)} {what} keys: {', '.join(names[:3])}", ""
    return values(task)


def main() -> None:
    tasks = json.loads(Path(sys.argv[1]).read_text())
    results = []
    for task in tasks:
        problem, note = compared(task)
        results.append({"row": task["row"], "column": task["column"], "problem": problem, "note": note})
    Path(sys.argv[2]).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
