#!/usr/bin/env bash
# ptxas 13.0.88 puts three loads that are never executed, `@!PT LDS RZ, [RZ]`, between a load from shared
# memory and the next cp.async (LDGSTS), on every target from sm_80 to sm_100. They take issue slots.
#
# Four loads and four copies to other addresses: 3 such instructions if the copies follow one another behind the
# loads, 12 if loads and copies take turns. In a pipelined main loop it is therefore cheaper to start the copies of
# a stage together than to spread them among the loads of operands, which looks like the better overlap.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-cuda-nvdisasm==13.5.37
bin=$(echo venv/lib/python3*/site-packages/nvidia/cu13/bin)

cat > kernel.py <<PY
import sys
take_turns = sys.argv[1] == "turns"
pairs = range(4)
load = lambda i: f"ld.shared.v4.b32 {{a{i}, b{i}, c{i}, d{i}}}, [from + {64 * i}];"
copy = lambda i: f"cp.async.cg.shared.global [to + {64 * i}], [p + {64 * i}], 16;"
store = lambda i: f"st.global.v4.b32 [p + {4096 + 16 * i}], {{a{i}, b{i}, c{i}, d{i}}};"
if take_turns:
    body = [line(i) for i in pairs for line in (load, copy)]
else:
    body = [load(i) for i in pairs] + [copy(i) for i in pairs]
print("\n".join([
    ".version 7.4", ".target sm_80", ".address_size 64", ".visible .entry ring(.param .u64 data) {",
    ".reg .b32 a<4>, b<4>, c<4>, d<4>, from, to;", ".reg .b64 p;", ".shared .align 16 .b8 stages[16384];",
    "ld.param.u64 p, [data];", "mov.u32 from, %tid.x;", "shl.b32 from, from, 4;", "mov.u32 to, stages;",
    "add.u32 from, from, to;", "add.u32 to, from, 8192;",
    *body, "cp.async.commit_group;", "cp.async.wait_group 0;", *map(store, pairs), "ret;", "}"]))
PY

for target in 80 86 89 90 100; do
    for case in "together 3" "turns 12"; do
        read -r order expected <<< "$case"
        venv/bin/python kernel.py "$order" > kernel.ptx
        "$bin/ptxas" -arch="sm_$target" kernel.ptx -o kernel.cubin
        "$bin/nvdisasm" -c kernel.cubin > kernel.sass
        found=$(grep -c '@!PT LDS RZ' kernel.sass || true)
        echo "sm_$target, copies $order: $(grep -c LDGSTS kernel.sass) LDGSTS, $found loads that are never executed"
        [ "$found" = "$expected" ]
    done
done
