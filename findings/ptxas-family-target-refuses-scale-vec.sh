#!/usr/bin/env bash
# ptxas 13.0.88 takes tcgen05.mma's .scale_vec::4X for sm_100a and refuses it for the family target
# sm_100f, which takes the other spelling of the same thing, .block16. For mma.sync the family target
# sm_120f takes .scale_vec::4X.
#
# So PTX that is to be retargeted from sm_100a to sm_100f (for a B300) by its .target line alone does
# not assemble, though no instruction in it is missing there.
# Seen: "Feature '.scale_vec::4X' not supported on .target 'sm_100f'".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.0.88
ptxas=$(echo venv/lib/python3*/site-packages/nvidia/cu13/bin/ptxas)

tcgen05() { # TARGET MODIFIER
    cat > kernel.ptx <<PTX
.version 9.0
.target sm_$1
.address_size 64
.visible .entry product(.param .u64 operands) {
    .reg .b64 p, a, b;
    .reg .b32 d, i;
    .reg .pred more;
    ld.param.u64 p, [operands];
    ld.global.v2.b64 {a, b}, [p];
    ld.global.v2.b32 {d, i}, [p+16];
    setp.ne.b32 more, i, 0;
    tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.$2 [d], a, b, i, [d], [d], more;
    ret;
}
PTX
    "$ptxas" -arch="sm_$1" kernel.ptx -o kernel.cubin 2>&1 | head -n 1
}

sync() { # TARGET
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
    mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3
        {d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}, {d0, d1, d2, d3}, s, {0, 0}, s, {0, 0};
    st.global.v4.f32 [p], {d0, d1, d2, d3};
    ret;
}
PTX
    "$ptxas" -arch="sm_$1" kernel.ptx -o kernel.cubin 2>&1 | head -n 1
}

set +o pipefail # a refusal is one of the outcomes
[ -z "$(tcgen05 100a scale_vec::4X)" ]
[ -z "$(tcgen05 100a block16)" ]
[ -z "$(tcgen05 100f block16)" ]
[ -z "$(sync 120f)" ]
refusal=$(tcgen05 100f scale_vec::4X)
echo "sm_100f: $refusal"
[[ $refusal == *"Feature '.scale_vec::4X' not supported on .target 'sm_100f'"* ]]
