#!/usr/bin/env bash
# nvcc 13.0.88 compiles a file for -arch=sm_120a (100a, 90a, 121a, 120f) twice: besides machine code and PTX of
# that target it embeds PTX of the plain architecture, for which __CUDA_ARCH_FEAT_SM120_ALL is not defined.
#
# A library's "#ifdef" around block-scaled products or wgmma takes its other branch there. On a GPU of the same
# major version that the "a" target does not cover (an sm_120a program on a GPU of 12.1) a driver can compile that
# PTX: instead of "no kernel image" the program runs without the products, aborts in an assertion, or
# computes what the fallback computes. -gencode arch=compute_120a,code=sm_120a embeds nothing else.
# Seen: PTX for 120 and 120a, one store of 1 and one of 2; with -gencode machine code alone.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cuobjdump==13.5.37
bin=$(echo "$PWD"/venv/lib/python3*/site-packages/nvidia/cu13/bin)
cat > kernel.cu <<'CU'
__global__ void which(int *out) {
#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    *out = 2;
#else
    *out = 1;
#endif
}
CU
embedded() { # FLAGS: each target of PTX with the number that its kernel stores
    "$bin/nvcc" "$@" -fatbin -o kernel.fatbin kernel.cu
    "$bin/cuobjdump" -ptx kernel.fatbin | awk '/^\.target/ { target = $2 }
        /mov.*, [12];/ { value = $NF } /st\.global/ { v = $NF; print target, (v ~ /^[12];/ ? v : value) }'
}
for arch in sm_90a sm_120a; do
    found=$(embedded -arch=$arch)
    echo "$found"
    plain=${arch%a}
    [ "$found" = "$plain 1;"$'\n'"$arch 2;" ]
done
[ -z "$(embedded -gencode arch=compute_120a,code=sm_120a)" ]
