#!/usr/bin/env bash
# Whether ptxas 13.0.88 makes a left shift by a constant an SHF (integer pipe) or an IMAD.SHL (the pipe
# of multiply-adds) depends on instructions elsewhere in the kernel that have nothing to do with it.
#
# Sixteen equal shifts, sm_90a: 8 and 8 alone; all SHF beside 16 multiply-adds of other data; all
# IMAD.SHL beside 16 pairs of xor and min. A change of an epilogue therefore moves the shifts of a main
# loop from one pipe to the other, and with them its time; a time that changes for no visible reason
# deserves a count of both opcodes. The same split was seen for sm_80, sm_89, sm_100a and sm_120a.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvdisasm==13.5.37
bin=$(echo venv/lib/python3*/site-packages/nvidia/cu13/bin)

cat > kernel.py <<PY
import sys
target, kind = sys.argv[1:]
n = 16
lines = [".version 9.0", f".target sm_{target}", ".address_size 64",
         ".visible .entry shifts(.param .u64 data) {", ".reg .b64 p;",
         f".reg .b32 x<{n}>, w<{n}>;", f".reg .f32 f<{n}>;", "ld.param.u64 p, [data];"]
lines += [f"ld.global.b32 x{i}, [p+{4 * i}];" for i in range(n)]
lines += [f"shl.b32 x{i}, x{i}, {3 + i % 5};" for i in range(n)]
lines += [f"st.global.b32 [p+{4096 + 4 * i}], x{i};" for i in range(n)]
for i in range(n if kind == "fma" else 0):
    lines += [f"ld.global.f32 f{i}, [p+{16384 + 4 * i}];", f"fma.rn.f32 f{i}, f{i}, f{i}, 0f3F800000;",
              f"st.global.f32 [p+{32768 + 4 * i}], f{i};"]
for i in range(n if kind == "alu" else 0):
    lines += [f"ld.global.b32 w{i}, [p+{16384 + 4 * i}];", f"xor.b32 w{i}, w{i}, {0x1234567 + i};",
              f"min.s32 w{i}, w{i}, 77;", f"st.global.b32 [p+{32768 + 4 * i}], w{i};"]
print("\n".join(lines + ["ret;", "}"]))
PY

split() { # TARGET KIND: shifts as IMAD.SHL, and as SHF
    venv/bin/python kernel.py "$1" "$2" > kernel.ptx
    "$bin/ptxas" -arch="sm_$1" kernel.ptx -o kernel.cubin
    "$bin/nvdisasm" -c kernel.cubin > kernel.sass
    echo "$(grep -c 'IMAD\.SHL' kernel.sass || true) $(grep -c 'SHF\.L' kernel.sass || true)"
}

for case in "none 8 8" "fma 0 16" "alu 16 0"; do
    read -r kind multiply shift <<< "$case"
    found=$(split 90a "$kind")
    echo "beside $kind: IMAD.SHL and SHF: $found"
    [ "$found" = "$multiply $shift" ]
done
