"""The kernels whose PTX is in this folder, and how it was made: Triton 3.9.0, no GPU needed.

    pip install triton==3.9.0
    TRITON_DISABLE_LINE_INFO=1 python kernels.py
"""

from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WS: tl.constexpr):
    """C = A B', a tile per CTA, tensor maps made on the device."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    db = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=WS):
        acc = tl.dot(da.load([m, k]), db.load([n, k]).T, acc)
    dc.store([m, n], acc.to(tl.float16))


@triton.jit
def persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same by CTAs that compute several tiles, with specialised warps."""
    da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    db = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    tiles = (M // BM) * (N // BN)
    first, step = tl.program_id(0), tl.num_programs(0)
    for tile in tl.range(first, tiles, step, flatten=True, warp_specialize=True):
        m, n = tile // (N // BN) * BM, tile % (N // BN) * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in tl.range(0, K, BK):
            acc = tl.dot(da.load([m, k]), db.load([n, k]).T, acc)
        dc.store([m, n], acc.to(tl.float16))


@triton.jit
def attention(q, k, v, o, S, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """softmax(Q K' scale) V in base 2, with specialised warps."""
    m = tl.program_id(0) * BM
    dq = tl.make_tensor_descriptor(q, [S, D], [D, 1], [BM, D])
    dk = tl.make_tensor_descriptor(k, [S, D], [D, 1], [BN, D])
    dv = tl.make_tensor_descriptor(v, [S, D], [D, 1], [BN, D])
    do = tl.make_tensor_descriptor(o, [S, D], [D, 1], [BM, D])
    queries = dq.load([m, 0])
    most = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in tl.range(0, S, BN, warp_specialize=True):
        scores = tl.dot(queries, dk.load([n, 0]).T) * scale
        now = tl.maximum(most, tl.max(scores, 1))
        p = tl.math.exp2(scores - now[:, None])
        shrink = tl.math.exp2(most - now)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), dv.load([n, 0]), acc * shrink[:, None])
        most = now
    do.store([m, 0], (acc / total[:, None]).to(tl.float16))


@triton.jit
def nvfp4(a, sa, b, sb, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A B' of e2m1 with e4m3 scales of 16."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    byte, scale = tl.arange(0, BK // 2), tl.arange(0, BK // 16)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * (K // 2) + (k // 2 + byte)[None, :])
        y = tl.load(b + columns[None, :] * (K // 2) + (k // 2 + byte)[:, None])
        s = tl.load(sa + rows[:, None] * (K // 16) + (k // 16 + scale)[None, :])
        t = tl.load(sb + columns[:, None] * (K // 16) + (k // 16 + scale)[None, :])
        acc = tl.dot_scaled(x, s, "e2m1", y, t, "e2m1", acc)
    tl.store(c + rows[:, None] * N + columns[None, :], acc)


@triton.jit
def locked(x, lock, o, B: tl.constexpr):
    """Sums of CTAs, one after the other behind a spin lock."""
    i = tl.arange(0, B)
    mine = tl.load(x + tl.program_id(0) * B + i)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(o + i, tl.load(o + i) + mine)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def write(name, kernel, signature, constants, capability, ctas=1):
    signature = dict(signature) | {key: "constexpr" for key in constants}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, kind in enumerate(signature.values())
        if kind.startswith("*") or kind == "i32"
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": 4, "num_stages": 3, "num_ctas": ctas}
    compiled = triton.compile(source, target=target, options=options)
    Path(__file__).with_name(f"{name}.ptx").write_text(compiled.asm["ptx"])
    print(name, "shared memory:", compiled.metadata.shared, "scratch:", compiled.metadata.global_scratch_size)


HALF = {name: "*fp16" for name in "abc"} | {name: "i32" for name in "MNK"}
TILE = {"BM": 128, "BN": 128, "BK": 64}
QUERIES = {name: "*fp16" for name in "qkvo"} | {"S": "i32", "scale": "fp32"}
CODES = {"a": "*u8", "sa": "*fp8e4nv", "b": "*u8", "sb": "*fp8e4nv", "c": "*fp32"}
for capability in (90, 100):
    for name, kernel, signature, constants in (
        ("matmul", matmul, HALF, TILE | {"WS": True}),
        ("persistent", persistent, HALF, TILE),
        ("attention", attention, QUERIES, {"D": 64, "BM": 128, "BN": 64}),
    ):
        write(f"{name}_sm_{capability}a", kernel, signature, constants, capability)
write("pair_sm_100a", matmul, HALF, TILE | {"BM": 256, "WS": False}, 100, ctas=2)
write("nvfp4_sm_100a", nvfp4, CODES | {name: "i32" for name in "MNK"}, TILE | {"BK": 256}, 100)
write("locked_sm_90a", locked, {"x": "*fp32", "lock": "*i32", "o": "*fp32"}, {"B": 128}, 90)
