"""Times Humming's W4A16 NVFP4 products beside ours: shapes as `nvfp4 bench` writes them.

    pip install humming-kernels==0.1.19 && python3 benches/peers/time_humming.py \
        grouped:80,176,128,72,64,248,96,160x4096x7168 gemm:128x7168x16384

Needs a CUDA GPU, torch and the wheel, which compiles its kernels when they are first used. The
protocol is that of `nvfp4 bench`: launches overlap within a CUDA graph, each on operands of its own,
enough of them that caches are cold; the median of the graph's replays, for one launch. Weights are
random, quantised by Humming; of each shape one result is compared with an f32 product of the weights
as they were before that, which finds a wrong use of the interface and no more.

A gated product is not one of Humming's: `dual:MxNxK` is its plain product with 2 N rows of weights,
without the activation.
"""

import math
import statistics
import sys

import torch
from humming.layer import HummingLayer

# Bytes of operands that are more than an H200's L2 holds, several times.
ROTATED = 4 * 60 * 2**20
REPLAYS = 30
# A result is right within this part of its own size: two roundings of FP4 weights.
TOLERANCE = 0.2


def parse(text):
    """The operation, token counts of the groups (one where there are none), N and K."""
    operation, sizes = text.split(":")
    tokens, n, k = sizes.rsplit("x", 2)
    counts = []
    for part in tokens.split(","):
        count, _, size = part.partition("*")
        counts += [int(size)] * int(count) if size else [int(count)]
    if operation not in ("gemm", "dual", "grouped") or operation != "grouped" and len(counts) != 1:
        sys.exit(f"{text}: must be gemm:MxNxK, dual:MxNxK or grouped:M1,G*M,..xNxK")
    return operation, counts, (2 if operation == "dual" else 1) * int(n), int(k)


def layer(n, k, experts):
    """A layer with random weights, and those weights."""
    shape = (experts, n, k) if experts else (n, k)
    weights = torch.randn(shape, device="cuda", dtype=torch.float16) / math.sqrt(k)
    config = {
        "dtype": "float4e2m1",
        "scale_dtype": "float8e4m3",
        "group_size": 16,
        "scale_2_type": "tensor",
    }
    made = HummingLayer(
        shape_n=n, shape_k=k, weight_config=config, num_experts=experts, torch_dtype=torch.float16
    ).cuda()
    made.load_from_unquantized(weights)
    made.transform()
    return made, weights


def measure(text):
    operation, counts, n, k = parse(text)
    grouped = operation == "grouped"
    experts = len(counts) if grouped else None
    bytes_of_set = (experts or 1) * n * k * 9 // 16 + sum(counts) * k * 2
    sets = max(2, math.ceil(ROTATED / bytes_of_set))
    offsets = torch.tensor([0] + counts, device="cuda").cumsum(0).long()
    launches = []
    for _ in range(sets):
        made, weights = layer(n, k, experts)
        x = torch.randn((sum(counts), k), device="cuda", dtype=torch.float16)
        out = torch.empty((sum(counts), n), device="cuda", dtype=torch.float16)
        options = {"outputs": out}
        if grouped:
            options |= {"expert_layout": offsets, "compute_config": {"gemm_type": "grouped_contiguous"}}
        launches.append((made, x, options))
    for made, x, options in launches:
        made(x, **options)
    torch.cuda.synchronize()
    starts = [0] + list(torch.tensor(counts).cumsum(0).tolist())
    matrices = weights if grouped else weights[None]
    for matrix, start, end in zip(matrices, starts, starts[1:]):
        right = x[start:end].float() @ matrix.float().T
        error = (out[start:end].float() - right).norm() / right.norm() if end > start else 0.0
        if not error < TOLERANCE:
            sys.exit(f"{text}: tokens {start} to {end} are off by {error:.3f} of their size")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for made, x, options in launches:
            made(x, **options)
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / sets)
    print(f"{text}: humming {statistics.median(times):.2f} us, {sets} input sets", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for shape in sys.argv[1:]:
        measure(shape)
