#!/usr/bin/env bash
# ptxas 13.0.88 moves a load behind griddepcontrol.wait if it is ld.global.nc, and leaves an
# ordinary ld.global before it.
#
# Programmatic dependent launch hides latency by loading weights before the wait. Read-only loads
# look like the natural choice for weights, but with them nothing is in flight when the wait ends.
# Seen for sm_90a, sm_100a and sm_120a: LDG, LDG, ACQBULK, LDG without .nc, and ACQBULK first with it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvdisasm==13.5.37
bin=$(echo venv/lib/python3*/site-packages/nvidia/cu13/bin)

order() { # MODIFIER TARGET: the loads and the wait, in the order of the machine code
    cat > kernel.ptx <<PTX
.version 9.0
.target sm_$2
.address_size 64
.visible .entry scale(.param .u64 weights, .param .u64 tokens, .param .u64 results) {
    .reg .b64 w, t, r;
    .reg .f32 a<4>, b<4>;
    ld.param.u64 w, [weights];
    ld.param.u64 t, [tokens];
    ld.param.u64 r, [results];
    ld.global$1.v4.f32 {a0, a1, a2, a3}, [w];
    griddepcontrol.wait;
    ld.global.v4.f32 {b0, b1, b2, b3}, [t];
    mul.f32 a0, a0, b0;
    mul.f32 a1, a1, b1;
    mul.f32 a2, a2, b2;
    mul.f32 a3, a3, b3;
    st.global.v4.f32 [r], {a0, a1, a2, a3};
    ret;
}
PTX
    "$bin/ptxas" -arch="sm_$2" kernel.ptx -o kernel.cubin
    "$bin/nvdisasm" -c kernel.cubin | grep -oE 'LDG|ACQBULK' | tr '\n' ' '
}

for target in 90a 100a 120a; do
    plain=$(order "" $target)
    nc=$(order .nc $target)
    echo "sm_$target: ld.global: $plain / ld.global.nc: $nc"
    [ "$plain" = "LDG ACQBULK LDG " ]
    [ "$nc" = "ACQBULK LDG LDG " ]
done
