#!/usr/bin/env bash
# gguf 0.19.0 encodes an NVFP4 block scale of 256 as 448, though e4m3 has 256 exactly (0x78).
#
# Its encoder of unsigned e4m3 saturates the whole top binade, 256 to 448, to 0x7e, and 248, which
# rounds up into that binade, too. With the tensor scale that ModelOpt and others choose, the largest
# block scale is 448 and any between 256 and 448 is usual: encoded again by gguf, such a block comes
# back up to 1.75 times too large. Its decoder reads 0x78 to 0x7d as it should, so bytes that are
# copied are right, and only scales that are encoded go wrong.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q gguf==0.19.0 numpy==2.4.6

cat > scales.py <<PY
import numpy as np
from gguf.quants import NVFP4
values = np.array([240, 248, 256, 288, 320, 448], np.float32)
codes = NVFP4.fp32_to_ue4m3(values)
# The decoder halves scales, because its table of codes is doubled.
back = 2 * NVFP4.ue4m3_to_fp32(codes)
print(*(f"{v:.0f}:{c:x}:{b:.0f}" for v, c, b in zip(values, codes, back)))
print(*2 * NVFP4.ue4m3_to_fp32(np.arange(0x78, 0x7F, dtype=np.uint8)))
PY
found=$(venv/bin/python scales.py)
echo "value:code:decoded, then what 0x78 to 0x7e decode to:"
echo "$found"
[ "$found" = "240:77:240 248:7e:448 256:7e:448 288:7e:448 320:7e:448 448:7e:448
256.0 288.0 320.0 352.0 384.0 416.0 448.0" ]
