#!/usr/bin/env bash
# ptxas 13.0.88 drops setmaxnreg, with an "info" line and exit status 0, unless the kernel's register
# count is fixed by .maxnreg or by .minnctapersm beside a number of threads. The number of threads
# alone, by .maxntid or .reqntid, is not enough.
#
# A warp-specialised kernel then keeps one register count for all warps: the producer gives nothing
# up and the consumers spill or run slower, while the results stay right.
# Seen: C7508 "'setmaxnreg' ignored; unable to determine register count at entry", 0 USETMAXREG.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvdisasm==13.5.37
bin=$(echo venv/lib/python3*/site-packages/nvidia/cu13/bin)

kept() { # DIRECTIVES: how many setmaxnreg are in the machine code
    cat > kernel.ptx <<PTX
.version 9.0
.target sm_90a
.address_size 64
.visible .entry roles(.param .u64 out) $1 {
    .reg .b64 o;
    .reg .b32 t;
    .reg .pred consumer;
    ld.param.u64 o, [out];
    mov.u32 t, %tid.x;
    setp.lt.u32 consumer, t, 128;
    @consumer bra consume;
    setmaxnreg.dec.sync.aligned.u32 40;
    bra.uni done;
consume:
    setmaxnreg.inc.sync.aligned.u32 232;
done:
    st.global.u32 [o], t;
    ret;
}
PTX
    "$bin/ptxas" -arch=sm_90a kernel.ptx -o kernel.cubin 2> messages
    "$bin/nvdisasm" -c kernel.cubin | grep -c USETMAXREG || true
}

for directives in ".maxntid 256" ".reqntid 256"; do
    found=$(kept "$directives")
    echo "$directives: $found; $(cat messages)"
    [ "$found" = 0 ]
    grep -q C7508 messages
done
for directives in ".maxnreg 168" ".reqntid 256 .maxnreg 168" ".maxntid 256 .minnctapersm 1"; do
    found=$(kept "$directives")
    echo "$directives: $found"
    [ "$found" = 2 ]
    [ ! -s messages ]
done
