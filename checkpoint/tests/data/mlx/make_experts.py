"""Writes nvfp4-mixtral and mxfp4-gpt-oss: models of `tests/exporters/models.py`, size `least`, as mlx-lm 0.32.2
stores them, and `values.safetensors`, the values that it reads under the names of transformers.

    python export_gpt_oss.py EXPORTS --size least; python export_mlx.py EXPORTS --size least
    python make_experts.py EXPORTS

with `tests/exporters` as folder of modules.
"""
import shutil
import sys
import tempfile
from pathlib import Path

import judge_mlx

for name in ["nvfp4-mixtral", "mxfp4-gpt-oss"]:
    export, out = Path(sys.argv[1], f"mlx-{name}"), Path(__file__).parent / name
    out.mkdir(exist_ok=True)
    for file in ["model.safetensors", "config.json"]:
        shutil.copy(export / file, out)
    with tempfile.TemporaryDirectory() as read:
        judge_mlx.write(export, Path(read))
        # Not in the folder of the model, of which it is no part.
        shutil.copy(Path(read, "model.safetensors"), out.with_name(f"{name}-values.safetensors"))
