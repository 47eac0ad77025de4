"""Kernels that Triton compiled, as they are (`kernels.py` in their folder says how). Behind a kernel's
own parameters are two of Triton's: scratch memory, and memory of its profiler."""

import numpy
import pytest
import ptx_emu
from programs import TRITON


def quarters(random, *shape):
    """Multiples of a quarter from -1 to 1."""
    return (random.integers(-4, 5, shape) / 4).astype(numpy.float16)


@pytest.mark.parametrize(
    ("file", "threads", "shared", "scratch"),
    [("matmul_sm_90a.ptx", 384, 131_672, 512), ("matmul_sm_100a.ptx", 256, 98_524, 384)],
)
@pytest.mark.parametrize("schedule", ["eager", "random:1"])
def test_products(random, file, threads, shared, scratch, schedule):
    m, n, k = 256, 128, 128
    a, b = quarters(random, m, k), quarters(random, n, k)
    c = numpy.empty((m, n), numpy.float16)
    memory = ptx_emu.Output(numpy.zeros(2 * scratch, numpy.uint8))
    result = ptx_emu.run(
        TRITON / file,
        "matmul",
        (m // 128, n // 128),
        threads,
        [a, b, ptx_emu.Output(c), m, n, k, memory, None],
        dynamic_shared=shared,
        schedule=schedule,
    )
    # Sums are multiples of 1/16 below 128: f16 rounds some of them.
    assert numpy.allclose(c, a.astype(numpy.float32) @ b.astype(numpy.float32).T, rtol=1e-3)
    assert result.findings == [] and result.counters.tensor.half == m * n * k


def test_sums_behind_a_spin_lock(random):
    x = quarters(random, 6, 128).astype(numpy.float32)
    lock, out = numpy.zeros(1, numpy.int32), numpy.zeros(128, numpy.float32)
    result = ptx_emu.explore(
        TRITON / "locked_sm_90a.ptx", None, 6, 128, [x, lock, out, None, None],
        dynamic_shared=4, seeds=3,
    )
    assert result.clean and result.passed == 5
    assert (out == x.sum(axis=0)).all() and lock[0] == 0
