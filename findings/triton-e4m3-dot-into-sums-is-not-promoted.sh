#!/usr/bin/env bash
# For sm_90, Triton 3.9.0 compiles `sums = tl.dot(x, y, sums)` and `sums += tl.dot(x, y)` of f16 to the same: wgmma adds
# all of K in its registers. Of e4m3 it does so for the first form only; the second has an add.f32 for each sum in each
# step, as with max_num_imprecise_acc=128. And max_num_imprecise_acc=0 does not promote more often: e4m3 becomes f16 in
# mma.sync.
#
# wgmma keeps about 13 bits of sums of e4m3, so two spellings of one formula differ in precision. On an H200 (Triton
# 3.6.0), 65536 ones times ones make 16384 by the first form, and 65536 by the second.
# Seen, additions of 64 sums outside of wgmma: f16 0 and 0; e4m3 0, 64, and 64 with 128; with 0 128 mma.sync.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q triton==3.9.0
cat > sums.py <<'PY'
import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def product(a, b, c, K: tl.constexpr, INTO: tl.constexpr, IMPRECISE: tl.constexpr):
    i = tl.arange(0, 64)
    sums = tl.zeros((64, 128), tl.float32)
    for k in range(0, K, 128):
        columns = k + tl.arange(0, 128)
        x = tl.load(a + i[:, None] * K + columns[None, :])
        y = tl.load(b + tl.arange(0, 128)[None, :] * K + columns[:, None])
        if INTO:
            sums = tl.dot(x, y, sums, max_num_imprecise_acc=IMPRECISE)
        else:
            sums += tl.dot(x, y, max_num_imprecise_acc=IMPRECISE)
    tl.store(c + i[:, None] * 128 + tl.arange(0, 128)[None, :], sums)


def promoted(kind, into, imprecise=None):
    source = ASTSource(
        fn=product,
        signature={"a": kind, "b": kind, "c": "*fp32", "K": "constexpr", "INTO": "constexpr", "IMPRECISE": "constexpr"},
        constexprs={"K": 4096, "INTO": into, "IMPRECISE": imprecise},
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    products = set(re.findall(r"(wgmma\.mma_async|mma\.sync)\S*?\.(f16|e4m3)", ptx))
    return sorted(products), len(re.findall(r"^\s*add(?:\.rn)?\.f32", ptx, re.M))


wgmma = "wgmma.mma_async"
for kind, into, imprecise, expected in [
    ("f16", True, None, ([(wgmma, "f16")], 0)),
    ("f16", False, None, ([(wgmma, "f16")], 0)),
    ("e4m3", True, None, ([(wgmma, "e4m3")], 0)),
    ("e4m3", False, None, ([(wgmma, "e4m3")], 64)),
    ("e4m3", True, 128, ([(wgmma, "e4m3")], 64)),
    ("e4m3", True, 0, ([("mma.sync", "f16")], 0)),
]:
    found = promoted({"f16": "*fp16", "e4m3": "*fp8e4nv"}[kind], into, imprecise)
    form = "tl.dot(x, y, sums)" if into else "sums += tl.dot(x, y)"
    print(f"{kind}, {form}, max_num_imprecise_acc={imprecise}: {found[0]}, {found[1]} additions beside")
    if found != expected:
        raise SystemExit(f"was: {expected}, now: {found}")
PY
TRITON_CACHE_DIR="$work/cache" venv/bin/python -W ignore sums.py
