"""What a module holds."""

import pytest
import ptx_emu
from programs import ADD, TRITON, kernel


def test_a_module_that_loads():
    found = ptx_emu.check(ADD)
    assert found.loads and (found.version, found.targets) == ((8, 0), ["sm_90"])
    assert (found.gpu, found.runs_on) == ("h200", ["h200", "b200", "b300", "rtx5090", "rtx-pro-6000", "dgx-spark"])
    (add,) = found.entries
    assert (add.name, add.readable_name, add.loads, add.error) == ("add", "add", True, None)
    assert [(p.name, p.type, p.bytes, p.offset) for p in add.parameters] == [
        ("a", "u64", 8, 0), ("b", "u64", 8, 8), ("c", "u64", 8, 16), ("n", "u32", 4, 24),
    ]
    assert not add.dynamic_shared and add.static_shared == 0 and add.reqntid is None


def test_a_kernel_that_triton_compiled():
    found = ptx_emu.check(TRITON / "matmul_sm_100a.ptx")
    assert found.gpu == "b200" and found.loads
    (matmul,) = found.entries
    assert matmul.parameters[0].pointer and matmul.dynamic_shared
    assert matmul.reqntid[0] > 0


def test_a_module_with_an_instruction_that_is_not_modelled():
    bad = kernel("", "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d0, {%f0, %f1}];")
    found = ptx_emu.check(bad + ".visible .entry good() { ret; }")
    assert not found.loads
    first, second = found.entries
    assert not first.loads and second.loads
    assert isinstance(first.error, ptx_emu.LoadError) and first.error.reason == "unsupported"
    assert [item.line for item in first.unsupported] == [first.error.line]
    assert ptx_emu.check(bad + ".visible .entry good() { ret; }", "good").loads
    with pytest.raises(ptx_emu.LoadError, match="entry"):
        ptx_emu.check(bad, "other")


def test_a_module_that_is_refused():
    with pytest.raises(ptx_emu.LoadError) as raised:
        ptx_emu.check(TRITON / "matmul_sm_100a.ptx", gpu="h200")
    assert raised.value.reason == "target"
    with pytest.raises(ptx_emu.LoadError) as raised:
        ptx_emu.check("}")
    assert raised.value.reason == "syntax"
