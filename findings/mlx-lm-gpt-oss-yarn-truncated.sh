#!/usr/bin/env bash
# mlx-lm 0.32.2 computes gpt-oss's rotations as if `truncate` were true, whatever its configuration says.
#
# YaRN blends two frequencies between two indices into a head's frequencies. gpt-oss has `"truncate": false`, so that
# these are 8.1 and 17.4. transformers 5.24.0 honours it; mlx-lm leaves the field out, rounds to 8 and 18, and says
# nothing: nine of the 32 frequencies are off by more than 0.1 %, and one is 1.76 times too large. With `truncate` true,
# the rule for YaRN, both agree: a test with another model finds nothing, nor does a port that is checked by mlx-lm.
# Seen: largest ratio 1.000 with true, 1.763 with false. The packages take 6 GB, because torch brings CUDA.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q transformers==5.24.0 torch==2.14.0 "mlx[cpu]==0.32.4" mlx-lm==0.32.2 numpy==2.4.6

cat > frequencies.py <<PY
import numpy as np
from mlx_lm.models import gpt_oss
from transformers import GptOssConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

print("transformers' own default:", GptOssConfig().rope_parameters["truncate"])
for truncate in (True, False):
    config = GptOssConfig()
    config.rope_parameters["truncate"] = truncate
    expected, _ = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    args = gpt_oss.ModelArgs(head_dim=config.head_dim, rope_theta=150000, rope_scaling=dict(config.rope_parameters))
    ratio = 1 / np.array(gpt_oss.AttentionBlock(args).rope._freqs) / expected.numpy()
    print(f"{truncate}: {ratio.size} ratios up to {ratio.max():.3f}, {(abs(ratio - 1) > 1e-3).sum()} not 1")
PY
found=$(venv/bin/python frequencies.py 2> log || { cat log >&2; exit 1; })
echo "$found"
[ "$found" = "transformers' own default: False
True: 32 ratios up to 1.000, 0 not 1
False: 32 ratios up to 1.763, 9 not 1" ]
