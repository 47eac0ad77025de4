#!/usr/bin/env bash
# MLX 0.32.4 turns a block of tiny values into infinities in its mode mxfp4.
#
# The scale's exponent is ceil(log2(amax / 6)) plus 127 in eight bits, without a lower bound: from amax
# 1.76e-38 down it is -1, which is stored as 255, the NaN of e8m0, and MLX's own reader gives infinity for it.
# A block of zeros has the byte 127, a scale of 1, where gguf and compressed-tensors write 0. A reader that
# checks scales must refuse 255, and a writer must clamp before it stores.
# Seen: byte 255 and infinity for 1e-38, byte 0 and the nearest value for 3e-38, byte 127 for zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q "mlx[cpu]==0.32.4" numpy==2.4.6

cat > tiny.py <<PY
import mlx.core as mx
import numpy as np
mx.set_default_device(mx.cpu)
for value in (1e-38, 3e-38, 0.0):
    block = mx.array(np.full((1, 32), value, np.float32))
    codes, scales = mx.quantize(block, group_size=32, bits=4, mode="mxfp4")
    back = mx.dequantize(codes, scales, group_size=32, bits=4, mode="mxfp4").astype(mx.float32)
    print(value, int(np.array(scales)[0, 0]), f"{float(np.array(back)[0, 0]):.2g}")
PY
found=$(venv/bin/python tiny.py)
echo "value, byte of the scale, value read back:"
echo "$found"
[ "$found" = "1e-38 255 inf
3e-38 0 3.5e-38
0.0 127 0" ]
