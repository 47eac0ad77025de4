"""Tensor maps of arrays."""

import numpy
import pytest
import ptx_emu
from programs import kernel

#: out = the tile of 8 by 4 words of `map` at column 4, row 2.
TILE = kernel(
    ".param .align 64 .b8 map[128], .param .u64 out",
    """
    ld.param.u64 %d0, [out]; mov.u64 %d1, map; cvta.param.u64 %d1, %d1;
    mov.u32 %r2, tile; mov.u32 %r3, bar; mov.u32 %r4, 4; mov.u32 %r5, 2;
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared.b64 [%r3], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 %d2, [%r3], 128;
    @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d1, {%r4, %r5}], [%r3];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0;
    @!%p1 bra WAIT;
    mad.lo.u32 %r2, %t, 4, %r2; mad.wide.u32 %d0, %t, 4, %d0;
    ld.shared.u32 %r6, [%r2]; st.global.u32 [%d0], %r6;
    """,
    module=".shared .align 128 .b8 tile[128]; .shared .align 8 .b64 bar;",
)


def tile(tensor, folder=None, **keywords):
    out = numpy.zeros((4, 8), numpy.uint32)
    for schedule in ("eager", "random:2"):
        ptx_emu.run(
            TILE, None, 1, 32, [ptx_emu.TensorMap(tensor, (8, 4), **keywords), ptx_emu.Output(out)],
            schedule=schedule, capture=folder if schedule == "eager" else None,
        )
    return out


def test_a_tile_of_an_array(tmp_path):
    tensor = numpy.arange(12 * 16, dtype=numpy.uint32).reshape(12, 16)
    assert (tile(tensor, tmp_path / "launch") == tensor[2:6, 4:12]).all()
    result = ptx_emu.replay(tmp_path / "launch", schedule="lazy")
    assert result.clean and result.counters.asynchronous.tensor_loads.bytes == 128
    # A column that is out of bounds is zero.
    assert (tile(tensor, dims=(10, 12), strides=(64,))[:, 6:] == 0).all()
    # The array's memory as another tensor.
    assert (tile(tensor, dims=(32, 6)) == tensor.reshape(6, 32)[2:6, 4:12]).all()
    words = tensor.view(numpy.float32)
    found = ptx_emu.TensorMap(words, (8, 4), swizzle="32B")
    assert repr(found) == "TensorMap(FLOAT32, dims [16, 12], box [8, 4], swizzle 32B)"
    assert found.array is words


def test_a_tile_of_what_nothing_wrote():
    tensor = ptx_emu.Output(numpy.zeros((12, 16), numpy.uint32))
    with pytest.raises(ptx_emu.FindingError) as raised:
        tile(tensor)
    assert raised.value.finding.kind == "uninitialised-read"


ARRAY = numpy.zeros((12, 16), numpy.uint32)


@pytest.mark.parametrize(
    ("call", "field", "required"),
    [
        (((5,), (8, 4)), "array", "a NumPy array"),
        ((ARRAY, 8), "box", "a sequence of integers, the innermost dimension first"),
        ((ARRAY, "84"), "box", "a sequence of integers"),
        ((ARRAY, (8, -4)), "box[1]", "an integer from 0 to 4294967295"),
        ((ARRAY, (8, 4), {"swizzle": "100B"}), "swizzle", "one of NONE, 32B"),
        ((ARRAY, (8, 4), {"dtype": 5}), "dtype", "one of UINT8"),
        ((ARRAY, (8, 4), {"dims": 5}), "dims", "a sequence of integers"),
        ((ARRAY.astype(bool), (8, 4)), "dtype", "given for arrays of a type"),
    ],
)
def test_maps_that_are_refused(call, field, required):
    *arguments, keywords = call if isinstance(call[-1], dict) else (*call, {})
    with pytest.raises(ptx_emu.ArgumentError) as raised:
        ptx_emu.TensorMap(*arguments, **keywords)
    assert raised.value.field == field and raised.value.required.startswith(required)


def test_maps_that_the_driver_would_refuse():
    with pytest.raises(ptx_emu.ArgumentError) as raised:
        tile(ARRAY, strides=(20,))
    assert raised.value.field == "args[0].strides[0]" and "16" in raised.value.required
    with pytest.raises(ptx_emu.ArgumentError, match="which is no tensor map"):
        ptx_emu.run(TILE, None, 1, 32, [bytes(128), ptx_emu.TensorMap(ARRAY, (8, 4))])
    with pytest.raises(ptx_emu.ArgumentError, match="a multiple of 64 bytes"):
        two = kernel(".param .align 64 .b8 s[192]", "")
        ptx_emu.run(two, None, 1, 1, [{32: ptx_emu.TensorMap(ARRAY, (8, 4))}])
    two = kernel(".param .align 64 .b8 s[192]", "")
    assert ptx_emu.run(two, None, 1, 1, [{64: ptx_emu.TensorMap(ARRAY, (8, 4))}]).clean
