"""Statements that ptxas refuses load if they are asked for."""

import numpy
import pytest
import ptx_emu
from programs import kernel

#: `add.f64` has no `.ftz`.
REFUSED = kernel(
    ".param .u64 out",
    """
    ld.param.u64 %d0, [out];
    mov.f64 %x, 0d3FF8000000000000;
    add.rn.ftz.f64 %x, %x, %x;
    st.global.f64 [%d0], %x;
    """,
    registers=".reg .f64 %x;",
)


def test_lax_of_every_function(tmp_path):
    assert not ptx_emu.check(REFUSED).loads
    assert ptx_emu.check(REFUSED, lax=True).loads
    out = numpy.zeros(1)
    with pytest.raises(ptx_emu.LoadError, match="ftz"):
        ptx_emu.run(REFUSED, None, 1, 1, [out])
    with pytest.raises(ptx_emu.LoadError, match="ftz"):
        ptx_emu.explore(REFUSED, None, 1, 1, [out])
    assert ptx_emu.explore(REFUSED, None, 1, 1, [out], lax=True).clean
    bundle = tmp_path / "bundle"
    ptx_emu.run(REFUSED, None, 1, 1, [out], lax=True, capture=bundle)
    assert out[0] == 3
    with pytest.raises(ptx_emu.LoadError, match="ftz"):
        ptx_emu.replay(bundle)
    assert ptx_emu.replay(bundle, lax=True).clean
