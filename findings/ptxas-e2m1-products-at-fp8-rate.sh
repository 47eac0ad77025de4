#!/usr/bin/env bash
# On sm_120a and sm_121a the kind of an mma.sync, not its operands' type, chooses the machine
# instruction: e2m1 x e2m1 of kind::f8f6f4 and kind::mxf8f6f4 becomes QMMA (k = 32, the FP8 rate),
# and only kind::mxf4 and kind::mxf4nvf4 become OMMA (k = 64).
#
# So a port that passes FP4 operands to the product it used for FP8 compiles, is right, and gains no
# speed. ptxas 13.0.88 says nothing. Seen: QMMA.16832, QMMA.SF.16832, OMMA.SF.16864 twice.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvdisasm==13.5.37
bin=$(echo venv/lib/python3*/site-packages/nvidia/cu13/bin)

instruction() { # TARGET SHAPE-AND-KIND TYPES SCALES: the machine instruction of the product
    cat > kernel.ptx <<PTX
.version 9.0
.target sm_$1
.address_size 64
.visible .entry product(.param .u64 operands) {
    .reg .b64 p;
    .reg .b32 a<4>, b<2>, s;
    .reg .f32 d<4>;
    ld.param.u64 p, [operands];
    ld.global.v4.b32 {a0, a1, a2, a3}, [p];
    ld.global.v2.b32 {b0, b1}, [p+16];
    ld.global.b32 s, [p+24];
    ld.global.v4.f32 {d0, d1, d2, d3}, [p+32];
    mma.sync.aligned.$2.f32.e2m1.e2m1.f32$3 {d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}, {d0, d1, d2, d3}$4;
    st.global.v4.f32 [p], {d0, d1, d2, d3};
    ret;
}
PTX
    "$bin/ptxas" -arch="sm_$1" kernel.ptx -o kernel.cubin
    "$bin/nvdisasm" -c kernel.cubin | grep -oE '[OQ]MMA(\.SF)?\.[0-9]+'
}

scales=", s, {0, 0}, s, {0, 0}"
for target in 120a 121a; do
    plain=$(instruction $target m16n8k32.row.col.kind::f8f6f4 "" "")
    mx8=$(instruction $target m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X .ue8m0 "$scales")
    mx4=$(instruction $target m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X .ue8m0 "$scales")
    nv4=$(instruction $target m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X .ue4m3 "$scales")
    echo "sm_$target: f8f6f4 $plain, mxf8f6f4 $mx8, mxf4 $mx4, mxf4nvf4 $nv4"
    [ "$plain $mx8 $mx4 $nv4" = "QMMA.16832 QMMA.SF.16832 OMMA.SF.16864 OMMA.SF.16864" ]
done
