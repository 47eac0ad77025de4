"""What kernels do wrong: findings, their levels, and the exception that carries them."""

import numpy
import pytest
import ptx_emu
from programs import ADD, INCREMENT, explained, kernel, reduction


def test_out_of_bounds():
    a = numpy.ones(40, numpy.float32)
    c = numpy.zeros(35, numpy.float32)
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.run(ADD, "add", 2, 32, [a, a, c, 40])
    error = raised.value
    found = error.finding
    assert (found.kind, found.level) == ("out-of-bounds", "deny")
    assert found.instruction == "st.global.f32 [%rd3], %f3;"
    assert ADD.read_text().splitlines()[found.line - 1].strip() == found.instruction
    assert (found.cta, found.warp, found.lane) == ((1, 0, 0), 0, 3)
    assert (found.kernel, found.kernel_name, found.schedule) == ("add", "add", "eager")
    assert (found.space, found.access, found.bytes, found.buffer) == ("global", "write", 4, "c")
    assert found.address % 256 == 35 * 4
    assert found.source_file is None and found.source_line is None
    assert found.message == str(found) and found.message in str(error)
    assert found.advice in str(error)
    assert found.to_dict()["line"] == found.line
    assert "## Rule" in found.explain()
    # It ended the kernel: the array is as before.
    assert (c == 0).all()
    assert error.findings == [found]
    assert not error.result.finished and not error.result.clean
    assert error.result.counters is None and error.result.lower_bound is None
    result = ptx_emu.run(ADD, "add", 2, 32, [a, a, c, 40], check=False)
    assert result.findings == [found] and not result.finished


def test_lines_of_the_source():
    text = kernel(
        ".param .u64 out",
        """
        .loc 1 12 0
        ld.param.u64 %d0, [out];
        .loc 1 13 0
        st.global.u32 [%d0], 1;
        """,
    )
    text += '\n.file 1 "saxpy.cu"\n'
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.run(text, None, 1, 1, [None])
    found = raised.value.finding
    assert (found.source_file, found.source_line) == ("saxpy.cu", 13)
    assert "null pointer" in found.message


def test_a_finding_that_is_not_fatal_leaves_a_result():
    x = numpy.arange(128, dtype=numpy.uint32)
    out = numpy.zeros(1, numpy.uint32)
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.run(
            reduction(""), None, 1, 128, [x, out], dynamic_shared=512, schedule="random:1"
        )
    result = raised.value.result
    assert result.finished and not result.clean
    assert raised.value.finding.kind == "data-race"
    assert result.counters.ctas == 1
    # The kernel ended, so its results are in the array.
    assert out[0] != 0


def test_levels():
    wrong, right = explained("data-race")
    arguments = [None, None, bytes(128)]

    def run(program=wrong, **levels):
        return ptx_emu.run(program, "k", 1, 64, arguments, schedule="lazy", check=False, **levels)

    assert {found.level for found in run().findings} == {"deny"}
    warned = run(warn=["data-race"])
    assert warned.clean and {found.level for found in warned.findings} == {"warn"}
    assert run(allow="data-race").findings == []
    # The strictest counts.
    assert not run(allow=["data-race"], deny=["data-race"]).clean
    assert run(right).clean
    none = run(max_findings=0)
    assert none.findings == [] and none.findings_left_out > 0


def test_models():
    wrong, right = explained("same-value-race")
    arguments = [numpy.zeros(64, "u4"), None, bytes(128)]

    def kinds(program, model):
        result = ptx_emu.run(
            program, "k", 1, 64, arguments, schedule="lazy", model=model, check=False
        )
        assert result.model == model
        return {found.kind for found in result.findings}

    assert kinds(wrong, "hardware") == set()
    assert kinds(wrong, "ptx") == {"same-value-race"}
    assert kinds(right, "ptx") == set()


def test_uninitialised_shared_memory():
    program = reduction().replace("st.shared.u32 [%s], %r2;", "", 1)
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.run(
            program, None, 1, 64, [numpy.zeros(64, "u4"), numpy.zeros(1, "u4")], dynamic_shared=256
        )
    assert raised.value.finding.kind == "uninitialised-read"
    assert raised.value.finding.space == "shared"


def test_kinds():
    kinds = {kind.name: kind for kind in ptx_emu.kinds()}
    assert len(kinds) == len(ptx_emu.kinds()) > 40
    race, bounds = kinds["data-race"], kinds["out-of-bounds"]
    assert (race.fatal, race.hardware, race.ptx) == (False, "deny", "deny")
    assert bounds.fatal
    assert (kinds["same-value-race"].hardware, kinds["same-value-race"].ptx) == ("allow", "deny")
    for kind in kinds.values():
        assert kind.title and kind.advice and kind.name in repr(kind)
        assert kind.explain() == ptx_emu.explain(kind.name)
        assert "## Program" in kind.explain()


def test_instruction_limit():
    spin = INCREMENT.replace("add.u32 %r2, %r2, 1;", "L: add.u32 %r2, %r2, 1; bra L;")
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.run(spin, None, 1, 32, [numpy.zeros(32, "u4")], instruction_limit=1000)
    assert raised.value.finding.kind == "instruction-limit"
