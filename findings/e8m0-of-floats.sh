#!/usr/bin/env bash
# A float cast to e8m0 has another value in NVIDIA's header than in ml_dtypes for most inputs.
#
# __nv_fp8_e8m0's constructor (cuda_fp8.h 13.0) rounds up to a power of two, takes the magnitude of a
# negative number, makes 2^-127 of zero and the largest power of infinity. ml_dtypes 0.6.0 rounds to
# the nearest, ties away from zero (1.5 to 2 and 3 to 4), and makes NaN (255) of zero, of negative
# numbers and of infinity. An MX scale computed by a cast is thus up to twice as large in one as in the
# other, and a block of zeros is either harmless or NaN.
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
#include "cuda_fp8.h"
int main() {
    for (float x : {1.0f, 1.1f, 1.5f, 1.9f, 3.0f, 0.0f, -1.0f, INFINITY})
        std::printf("%u ", unsigned(__nv_fp8_e8m0(x).__x));
}
CPP
g++ -I "$include" -I "$include/cccl" header.cpp -o header
cat > library.py <<PY
import numpy as np, ml_dtypes
x = np.array([1, 1.1, 1.5, 1.9, 3, 0, -1, np.inf], np.float32)
print(*x.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8), end=" ")
PY
header=$(./header)
library=$(venv/bin/python library.py)
echo "1, 1.1, 1.5, 1.9, 3, 0, -1, inf: cuda_fp8.h $header, ml_dtypes $library"
[ "$header" = "127 128 128 128 129 0 127 254 " ]
[ "$library" = "127 127 128 128 129 255 255 255 " ]
