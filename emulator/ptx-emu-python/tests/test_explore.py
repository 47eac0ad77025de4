"""A launch under many schedules."""

import numpy
import pytest
import ptx_emu
from programs import INCREMENT, kernel, reduction


def arguments():
    return [numpy.arange(128, dtype=numpy.uint32), numpy.zeros(1, numpy.uint32)]


def test_a_race_and_its_twin():
    given = arguments()
    found = ptx_emu.explore(reduction(""), None, 1, 128, given, dynamic_shared=512, seeds=4)
    failure = found.failure
    assert not found.clean and failure.finding.kind == "data-race"
    assert failure.schedule == failure.finding.schedule == "lazy"
    assert found.passed == 1
    assert failure.message in repr(failure) and failure.message == str(failure)
    assert given[1][0] == 0
    # The schedule that is named goes wrong by itself.
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.run(
            reduction(""), None, 1, 128, given, dynamic_shared=512, schedule=failure.schedule
        )
    assert raised.value.finding == failure.finding
    # The twin is right, and leaves what eager did.
    given = arguments()
    found = ptx_emu.explore(reduction(), None, 1, 128, given, dynamic_shared=512, seeds=4)
    assert found.clean and found.failure is None and found.passed == 6
    assert given[1][0] == sum(range(128)) and found.warnings == []
    assert found.counters.ctas == 1 and found.lower_bound.gpu == "h200"
    assert "data races in global memory" in found.not_looked_for


def test_outputs_that_differ():
    # The last CTA to come leaves its number.
    last = kernel(".param .u64 out", "ld.param.u64 %d0, [out]; atom.global.exch.b32 %r2, [%d0], %r0;")
    out = numpy.full(1, 99, numpy.uint32)
    found = ptx_emu.explore(last, None, 8, 1, [out], seeds=4)
    assert found.failure.finding is None
    assert found.failure.output.name == "out" and found.failure.output.mismatches == 1
    assert "differ from what schedule eager gives" in found.failure.message
    assert out[0] == 99
    found = ptx_emu.explore(last, None, 8, 1, [out], seeds=4, allow_different=True)
    assert found.clean and out[0] == 7


def test_a_kernel_that_is_always_wrong():
    found = ptx_emu.explore(INCREMENT, None, 1, 32, [numpy.zeros(31, "u4")])
    assert found.failure.schedule == "eager" and found.passed == 0
    assert found.failure.finding.kind == "out-of-bounds"
    assert found.counters is None


def test_ten_seeds_unless_stated():
    found = ptx_emu.explore(INCREMENT, None, 1, 32, [numpy.zeros(32, "u4")])
    assert found.passed == 12
    with pytest.raises(ptx_emu.ArgumentError, match="seeds: required an integer from 0"):
        ptx_emu.explore(INCREMENT, None, 1, 32, [numpy.zeros(32, "u4")], seeds=-1)
