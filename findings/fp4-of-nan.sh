#!/usr/bin/env bash
# What e2m1, which has no NaN, makes of a NaN differs by library, and ml_dtypes turns its sign round.
#
# cuda_fp4.h (13.0) gives 0x7, 6.0, for both signs. ml_dtypes 0.6.0 gives 0x8, -0.0, for a positive NaN
# and 0x0, +0.0, for a negative one; infinities saturate in both. A reference in NumPy therefore hides
# a NaN as a zero where the GPU's conversion shows it as the largest value.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 ml_dtypes==0.6.0 numpy==2.4.6
include=$(echo venv/lib/python3*/site-packages/nvidia/cu13/include)

cat > header.cpp <<CPP
#include <cmath>
#include <cstdio>
#include "cuda_fp4.h"
int main() {
    for (float x : {std::copysign(NAN, 1.0f), std::copysign(NAN, -1.0f), INFINITY, -INFINITY})
        std::printf("%x ", unsigned(__nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest)));
}
CPP
g++ -I "$include" -I "$include/cccl" header.cpp -o header
cat > library.py <<PY
import numpy as np, ml_dtypes
x = np.array([0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000], np.uint32).view(np.float32)
print(*(f"{code:x}" for code in x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)), end=" ")
PY
header=$(./header)
library=$(venv/bin/python library.py)
echo "NaN, -NaN, inf, -inf: cuda_fp4.h $header, ml_dtypes $library"
[ "$header" = "7 7 7 f " ]
[ "$library" = "8 0 7 f " ]
