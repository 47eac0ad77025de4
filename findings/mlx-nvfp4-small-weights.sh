#!/usr/bin/env bash
# MLX 0.32.4 quantises small weights to zeros in its mode nvfp4, unless it is given `global_scale`, which is
# the largest magnitude itself.
#
# Without `global_scale` there is no second level: the scale of a block is amax / 6 in e4m3, whose least
# value is 2^-9. A block below 6 * 2^-10, 0.00586, becomes 0, which is a part of most models' weights. With it,
# scales are relative to global_scale / (6 * 448): it is neither ModelOpt's `weight_scale_2`, amax / 2688,
# nor compressed-tensors' reciprocal of that, and it is not among the results, so that a file of codes and
# scales alone has lost it.
# Seen: 0.001 becomes 0 without it, and 0.001 with it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q "mlx[cpu]==0.32.4" numpy==2.4.6

cat > small.py <<PY
import mlx.core as mx
import numpy as np
mx.set_default_device(mx.cpu)
weights = mx.array(np.full((1, 32), 0.001, np.float32))
for extra in ({}, {"global_scale": mx.array(0.001)}):
    results = mx.quantize(weights, group_size=16, bits=4, mode="nvfp4", **extra)
    values = mx.dequantize(results[0], results[1], group_size=16, bits=4, mode="nvfp4", **extra)
    scale = int(np.array(results[1]).ravel()[0])
    print(len(results), scale, f"{float(np.array(values.astype(mx.float32)).ravel()[0]):.4f}")
PY
found=$(venv/bin/python small.py)
echo "results, byte of the first scale, value of 0.001; without and with global_scale:"
echo "$found"
[ "$found" = "2 0 0.0000
2 126 0.0010" ]
