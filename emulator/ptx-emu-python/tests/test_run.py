"""Kernels with right results, on arrays and scalars of all kinds."""

import threading

import numpy
import pytest
import ptx_emu
from programs import ADD, HALF, INCREMENT, SAXPY, STRUCT, explained, reduction, scalar


def test_vector_addition(random):
    a, b = random.random((2, 100), dtype=numpy.float32)
    c = numpy.zeros(100, numpy.float32)
    result = ptx_emu.run(ADD, "add", 4, 32, [a, b, c, 100])
    assert (c == a + b).all()
    assert result.clean and result.finished and result.findings == []
    assert (result.kernel, result.gpu, result.schedule) == ("add", "h200", "eager")
    assert result.model == "hardware"
    assert "data races" in result.not_looked_for
    # A path and its text are the same module.
    again = ptx_emu.run(ADD.read_text(), None, (4, 1, 1), [32], (a, b, c, numpy.uint32(100)))
    assert again.counters == result.counters


def test_counters(random):
    a, b, c = random.random((3, 64), dtype=numpy.float32)
    result = ptx_emu.run(ADD, None, 2, 32, [a, b, c, 64])
    counters = result.counters
    assert (counters.ctas, counters.threads) == (2, 64)
    assert counters.families.float.lane == 64
    assert counters.global_unique_bytes_read == 2 * 64 * 4
    assert counters.to_dict()["families"]["float"]["lane"] == 64
    assert "warp_instructions" in dir(counters) and "to_dict" in dir(counters)
    assert "warp_instructions" in repr(counters)
    with pytest.raises(AttributeError, match="required one of .*warp_instructions.*actual `warps`"):
        counters.warps
    bound = result.lower_bound
    assert bound.gpu == "h200" and bound.seconds == max(bound.parts.to_dict().values()) > 0
    other = ptx_emu.run(ADD, None, 3, 32, [a, b, c, 64])
    assert other.counters != counters


def test_saxpy_with_scalars(random):
    x, y = random.random((2, 50), dtype=numpy.float32)
    for a in (1.5, 2, numpy.float32(0.25)):
        expected = numpy.float32(a) * x + y
        ptx_emu.run(SAXPY, None, 2, 32, [a, x, y, 50])
        assert numpy.allclose(y, expected, rtol=1e-6)


def test_reduction_in_dynamic_shared_memory(random):
    x = random.integers(0, 1000, 256, dtype=numpy.uint32)
    out = numpy.zeros(4, numpy.uint32)
    for schedule in ("eager", "lazy", "random:3"):
        out[:] = 0
        result = ptx_emu.run(
            reduction(), None, 4, 64, [x, out], dynamic_shared=256, schedule=schedule
        )
        assert (out == x.reshape(4, 64).sum(axis=1)).all()
        assert result.schedule == schedule
        assert result.counters.shared.bytes_read > 0


def test_f16_arrays_of_two_dimensions(random):
    x = random.random((4, 8)).astype(numpy.float16)
    y = numpy.empty_like(x)
    ptx_emu.run(HALF, None, 1, 32, [numpy.float16(3), x, ptx_emu.Output(y)])
    assert (y == numpy.float16(3) * x).all()


def test_a_struct_by_bytes_and_by_fields():
    out = numpy.zeros(2, numpy.uint32)
    ptx_emu.run(STRUCT, None, 1, 1, [numpy.array([5, 0, 0, 0], "u4").tobytes(), out])
    assert out.tolist() == [5, 77]
    record = numpy.array([(6, 0, 0)], dtype="u4,u4,u8")
    ptx_emu.run(STRUCT, None, 1, 1, [record[0], out])
    assert out.tolist() == [6, 77]
    data = numpy.array([41], numpy.uint32)
    ptx_emu.run(STRUCT, None, 1, 1, [{0: numpy.uint32(7), 8: data}, out])
    assert out.tolist() == [7, 41]


@pytest.mark.parametrize(
    ("declared", "bits", "value", "stored"),
    [
        ("u8", 8, 255, 255),
        ("s8", 8, -1, 0xFF),
        ("u16", 16, True, 1),
        ("u32", 32, numpy.int32(-2), 0xFFFFFFFE),
        ("s32", 32, -(2**31), 1 << 31),
        ("u64", 64, 2**64 - 1, 2**64 - 1),
        ("u64", 64, None, 0),
        ("s64", 64, -(2**63), 1 << 63),
        ("b32", 32, -1, 0xFFFFFFFF),
        ("b32", 32, numpy.float32(1), 0x3F800000),
        ("f16", 16, 65504, 0x7BFF),
        ("f16", 16, numpy.float16(-2), 0xC000),
        ("b16", 16, numpy.float16(1), 0x3C00),
        ("f32", 32, float("-inf"), 0xFF800000),
        ("f32", 32, b"\x01\x00\x00\x00", 1),
        ("f64", 64, numpy.float64(2), 1 << 62),
    ],
)
def test_scalars(declared, bits, value, stored):
    out = numpy.zeros(1, f"u{bits // 8}")
    ptx_emu.run(scalar(declared, bits), None, 1, 1, [value, out])
    assert int(out[0]) == stored


def test_read_only_arrays_are_never_written():
    out = numpy.arange(32, dtype=numpy.uint32)
    out.flags.writeable = False
    result = ptx_emu.run(INCREMENT, None, 1, 32, [out])
    assert (out == numpy.arange(32)).all()
    assert result.not_written == ["out"] and result.clean
    # One that the kernel reads only is no cause for a remark.
    a, b, c = numpy.ones((3, 32), numpy.float32)
    a.flags.writeable = b.flags.writeable = False
    result = ptx_emu.run(ADD, None, 1, 32, [a, b, c, 32])
    assert result.not_written == [] and (c == 2).all()


def test_the_same_array_twice_is_one_buffer():
    x = numpy.arange(32, dtype=numpy.float32)
    ptx_emu.run(ADD, None, 1, 32, [x, x, x, 32])
    assert (x == 2 * numpy.arange(32)).all()
    # So are two views of the same memory, of which one may be written.
    locked = x.view()
    locked.flags.writeable = False
    result = ptx_emu.run(ADD, None, 1, 32, [locked, locked, x, 32])
    assert (x == 4 * numpy.arange(32)).all() and result.not_written == []


def test_arrays_that_overlap_are_refused():
    x = numpy.zeros(64, numpy.float32)
    with pytest.raises(ptx_emu.ArgumentError) as raised:
        ptx_emu.run(ADD, None, 1, 32, [x[:32], x[16:48], x[32:], 32])
    error = raised.value
    assert (error.field, error.index, error.parameter) == ("args[1]", 1, "b")
    assert error.actual == "one that overlaps that of parameter `a`"
    # Neighbours do not overlap.
    ptx_emu.run(ADD, None, 1, 32, [x[:32], x[:32], x[32:], 32])


def test_outputs_begin_uninitialised():
    out = numpy.full(32, 9, numpy.uint32)
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.run(INCREMENT, None, 1, 32, [ptx_emu.Output(out)])
    assert raised.value.finding.kind == "uninitialised-read"
    # What the kernel does not write keeps the array's values.
    c = numpy.full(8, 5, numpy.float32)
    a = numpy.ones(8, numpy.float32)
    ptx_emu.run(ADD, None, 1, 32, [a, a, ptx_emu.Output(c), 3])
    assert c.tolist() == [2, 2, 2, 5, 5, 5, 5, 5]
    assert ptx_emu.Output(c).array is c


def test_arrays_without_dimensions_and_of_records():
    count = numpy.array(4, numpy.uint32)
    ptx_emu.run(INCREMENT, None, 1, 1, [count])
    assert count == 5
    records = numpy.zeros(2, dtype=[("n", "u4"), ("x", "f4")])
    ptx_emu.run(INCREMENT, None, 1, 1, [records])
    assert records["n"].tolist() == [1, 0]


def test_random_schedules_are_deterministic(random):
    x = random.integers(0, 9, 256, dtype=numpy.uint32)

    def findings(seed):
        out = numpy.zeros(1, numpy.uint32)
        arguments = [x, out]
        result = ptx_emu.run(
            reduction(""), None, 1, 256, arguments, dynamic_shared=1024, check=False,
            schedule=f"random:{seed}",
        )
        return out.tolist(), result.findings, result.counters

    assert findings(5) == findings(5)
    assert len({str(findings(seed)) for seed in range(8)}) > 1


def test_runs_at_the_same_time(random):
    results = {}

    def work(name, count):
        a, b = numpy.random.default_rng(count).random((2, count), dtype=numpy.float32)
        c = numpy.zeros(count, numpy.float32)
        result = ptx_emu.run(ADD, None, count // 32, 32, [a, b, c, count])
        results[name] = (c == a + b).all() and result.counters.threads == count

    threads = [threading.Thread(target=work, args=(at, 2048 * (at + 1))) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {at: True for at in range(4)}


def test_other_threads_run_meanwhile():
    # A kernel that spins up to its limit; without the interpreter's lock another thread counts.
    spin = INCREMENT.replace("add.u32 %r2, %r2, 1;", "L: add.u32 %r2, %r2, 1; bra L;")
    done = threading.Event()
    counted = []

    def count():
        while not done.is_set():
            counted.append(None)
            done.wait(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = len(counted)
    with pytest.raises(ptx_emu.FindingError, match="instruction limit"):
        ptx_emu.run(spin, None, 1, 32, [numpy.zeros(32, "u4")], instruction_limit=20_000_000)
    after = len(counted)
    done.set()
    thread.join()
    assert after - before > 3


def test_wgmma():
    wrong, right = explained("missing-wgmma-fence")
    arguments = [None, None, bytes(128)]
    result = ptx_emu.run(right, "k", 1, 128, arguments)
    assert result.counters.tensor.half == 64 * 8 * 16
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.run(wrong, "k", 1, 128, arguments)
    assert raised.value.finding.kind == "missing-wgmma-fence"


def test_tcgen05():
    wrong, right = explained("tensor-memory-not-freed")
    arguments = [None, None, bytes(128)]
    for schedule in ("eager", "lazy", "random:1"):
        assert ptx_emu.run(right, "k", 1, 32, arguments, schedule=schedule).gpu == "b200"
        result = ptx_emu.run(wrong, "k", 1, 32, arguments, schedule=schedule, check=False)
        assert [found.kind for found in result.findings] == ["tensor-memory-not-freed"]
