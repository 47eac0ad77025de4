#!/usr/bin/env bash
# ptxas 13.0.88 makes one QMMA of `mma.sync.m16n8k32` of e4m3 on 8.9 and 12.0, whose tensor cores have it, but on
# 9.0, 10.0, 10.3 and 11.0, which came later or are larger, two HMMA of f16 behind twelve conversions of its
# operands from e4m3 to f16. It says nothing: the PTX is accepted for all of them.
#
# So the instruction saves no tensor-core time over f16 there, and costs conversions: products in e4m3 at their own
# rate need `wgmma` on a Hopper and `tcgen05` on a data-centre Blackwell. A kernel that was tuned on an RTX 40 runs
# unchanged, and slower than its f16 form. Times of it on an H100 say nothing about an RTX 40 either.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvdisasm==13.5.37
bin=$(echo venv/lib/python3*/site-packages/nvidia/cu13/bin)

for case in "89 1 0 0" "90 0 2 12" "100a 0 2 12" "103a 0 2 12" "110a 0 2 12" "120a 1 0 0"; do
    read -r target qmma hmma unpack <<< "$case"
    cat > product.ptx <<PTX
.version 9.0
.target sm_$target
.address_size 64
.visible .entry product(.param .u64 data) {
    .reg .b32 a<4>, b<2>;
    .reg .f32 c<4>;
    .reg .b64 p;
    ld.param.u64 p, [data];
    ld.global.v4.b32 {a0, a1, a2, a3}, [p];
    ld.global.v2.b32 {b0, b1}, [p + 16];
    ld.global.v4.f32 {c0, c1, c2, c3}, [p + 32];
    mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32
        {c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3};
    st.global.v4.f32 [p + 64], {c0, c1, c2, c3};
    ret;
}
PTX
    "$bin/ptxas" -arch="sm_$target" product.ptx -o product.cubin
    "$bin/nvdisasm" -c product.cubin > product.sass
    count() { grep -cE "\b$1" product.sass || true; }
    found="$(count QMMA) $(count HMMA) $(count F2FP.F16.E4M3.UNPACK)"
    echo "sm_$target: QMMA, HMMA, conversions from e4m3: $found"
    [ "$found" = "$qmma $hmma $unpack" ]
done
