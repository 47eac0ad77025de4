"""Calls that are refused: which exception, and what it says."""

import numpy
import pytest
import ptx_emu
from programs import ADD, INCREMENT, SAXPY, STRUCT, kernel, scalar


def refused(*args, error=ptx_emu.ArgumentError, **keywords):
    with pytest.raises(error) as raised:
        ptx_emu.run(*args, **keywords)
    assert isinstance(raised.value, ptx_emu.Error)
    return raised.value


def test_classes():
    names = ["Argument", "Load", "Launch", "DeviceMemory", "Bundle", "Finding"]
    for name in names:
        error = getattr(ptx_emu, f"{name}Error")
        assert issubclass(error, ptx_emu.Error) and error.__doc__ and error.__module__ == "ptx_emu"
    assert issubclass(ptx_emu.Error, Exception)


OUT = numpy.zeros(32, numpy.uint32)


@pytest.mark.parametrize(
    ("field", "keywords", "required", "actual"),
    [
        ("grid", {"grid": -1}, "an integer from 1 to 4294967295", "int -1"),
        ("grid", {"grid": 0}, "an integer from 1 to 4294967295", "int 0"),
        ("grid", {"grid": 2**32}, "an integer from 1 to 4294967295", "int 4294967296"),
        ("grid[1]", {"grid": (1, 2**70)}, "an integer from 1 to 4294967295", f"int {2**70}"),
        ("grid", {"grid": "4"}, "an integer, or 1 to 3 of them (x, y, z)", "str '4'"),
        ("grid", {"grid": ()}, "an integer, or 1 to 3 of them (x, y, z)", "tuple ()"),
        ("block", {"block": (1, 1, 1, 1)}, "an integer, or 1 to 3 of them (x, y, z)", "tuple (1, 1, 1, 1)"),
        ("block[0]", {"block": [1.5]}, "an integer from 1 to 4294967295", "float 1.5"),
        ("cluster", {"cluster": None.__class__}, "an integer, or 1 to 3 of them (x, y, z)", "type <class 'NoneType'>"),
        ("dynamic_shared", {"dynamic_shared": -1}, "an integer from 0 to 4294967295", "int -1"),
        ("gpu", {"gpu": "h100"}, '"a100", "rtx3090", "rtx4090", "l40s", "h200", "b200", "b300", "rtx5090", "rtx-pro-6000", "dgx-spark", or None for the one that the module is for', "str 'h100'"),
        ("schedule", {"schedule": "random"}, '"eager", "lazy" or "random:SEED" (an unsigned 64-bit number)', "str 'random'"),
        ("schedule", {"schedule": 3}, '"eager", "lazy" or "random:SEED" (an unsigned 64-bit number)', "int 3"),
        ("model", {"model": "cuda"}, '"hardware" or "ptx"', "str 'cuda'"),
        ("allow[1]", {"allow": ["trap", "no"]}, "the name of a kind of finding (ptx_emu.kinds() has them)", "str 'no'"),
        ("deny", {"deny": 3}, "names of kinds of findings", "int 3"),
        ("max_findings", {"max_findings": 1.0}, "an integer from 0 to 4294967295", "float 1.0"),
        ("instruction_limit", {"instruction_limit": 0}, f"an integer from 1 to {2**64 - 1}", "int 0"),
        ("ptx", {"ptx": 5}, "str with PTX, or the path of a file (os.PathLike)", "int 5"),
        ("entry", {"entry": b"k"}, "str, or None for a module with one kernel", "bytes b'k'"),
        ("capture", {"capture": 5}, "a folder: str or os.PathLike", "int 5"),
        ("args", {"args": 5}, "a sequence with an item for each parameter", "int 5"),
        ("args", {"args": []}, "1 items (out)", "0 items"),
        ("args", {"args": [OUT, 1]}, "1 items (out)", "2 items"),
    ],
)
def test_keywords(field, keywords, required, actual):
    call = {"ptx": INCREMENT, "entry": None, "grid": 1, "block": 32, "args": [OUT]} | keywords
    error = refused(**call)
    assert (error.field, error.required, error.actual) == (field, required, actual)
    assert str(error) == f"{field}: required {required}, actual {actual}"
    assert error.index is None and error.parameter is None


@pytest.mark.parametrize(
    ("array", "required", "actual"),
    [
        (numpy.zeros(64, "u4")[::2], "a C-contiguous array", "shape (32,) with strides (8,)"),
        (numpy.zeros((4, 8), "u4").T, "a C-contiguous array", "shape (8, 4) with strides (4, 32)"),
        (numpy.zeros(32, object), "elements of a fixed size", "dtype object"),
        (numpy.zeros(32, ">u4"), "elements in little-endian byte order", "dtype >u4"),
        (numpy.zeros(4, [("a", "<u4"), ("b", ">f4")]), "elements in little-endian", "dtype |V8"),
        (numpy.zeros(0, "u4"), "an array of at least one byte", "shape (0,) of dtype uint32"),
        ([1, 2, 3], "an array, ptx_emu.Output or TensorMap, a number, bytes, None", "list [1, 2, 3]"),
        ("text", "an array, ptx_emu.Output or TensorMap, a number, bytes, None", "str 'text'"),
        (bytes(4), "8 bytes, the size of the parameter's type .u64", "4 bytes"),
        (2**64, f"an integer from 0 to {2**64 - 1} (numpy.int64 may be negative)", f"int {2**64}"),
        (-1, f"an integer from 0 to {2**64 - 1} (numpy.int64 may be negative)", "int -1"),
        (1.5, "an integer, for the parameter's type .u64", "float 1.5"),
        (numpy.uint32(1), "a NumPy scalar that fits the parameter's type .u64", "(uint32)"),
        (numpy.float64(1), "a NumPy scalar that fits the parameter's type .u64", "(float64)"),
        ({0: 1}, "a value of the parameter's type .u64, which is no struct", "dict {0: 1}"),
    ],
)
def test_arguments(array, required, actual):
    error = refused(INCREMENT, None, 1, 32, [array])
    assert error.required.startswith(required) and actual in error.actual
    assert (error.field, error.index, error.parameter) == ("args[0]", 0, "out")
    assert str(error).startswith("args[0] (parameter `out`): required ")


@pytest.mark.parametrize(
    ("declared", "bits", "value", "required"),
    [
        ("f32", 32, 1e39, "a number within f32's range"),
        ("f16", 16, 65520, "a number within f16's range"),
        ("f64", 64, 10**400, "a number within f64's range"),
        ("f32", 32, numpy.float64(1), "a NumPy scalar that fits the parameter's type .f32"),
        ("f32", 32, numpy.int32(1), "a NumPy scalar that fits the parameter's type .f32"),
        ("f32", 32, "1", "an array, ptx_emu.Output or TensorMap, a number"),
        ("f64", 64, OUT, "a value of the parameter's type .f64, which is no pointer"),
        ("u32", 32, None, "a value of the parameter's type .u32, which is no pointer"),
        ("u32", 32, -1, "an integer from 0 to 4294967295 (numpy.int32 may be negative)"),
        ("s32", 32, 2**31, f"an integer from {-(2**31)} to {2**31 - 1}, for"),
        ("u8", 8, 256, "an integer from 0 to 255"),
        ("b32", 32, 2**32, f"an integer from {-(2**31)} to {2**32 - 1}"),
        ("b32", 32, 1.5, "an integer, or a NumPy scalar such as numpy.float32"),
    ],
)
def test_scalars(declared, bits, value, required):
    error = refused(scalar(declared, bits), None, 1, 1, [value, numpy.zeros(1, "u8")])
    assert error.required.startswith(required), error.required
    assert error.parameter == "v"


@pytest.mark.parametrize(
    ("value", "field", "required"),
    [
        (5, "args[0]", "16 bytes, or a dictionary of fields by their offsets"),
        (bytes(15), "args[0]", "16 bytes, the size of the parameter's type .b8[16]"),
        (bytes(17), "args[0]", "16 bytes, the size of the parameter's type .b8[16]"),
        (numpy.uint64(1), "args[0]", "a NumPy scalar that fits the parameter's type .b8[16]"),
        (OUT, "args[0]", "a value of the parameter's type .b8[16], which is no pointer"),
        ({"x": None}, "args[0]", "offsets of fields (integers) as keys"),
        ({-1: None}, "args[0]", "offsets of fields (integers) as keys"),
        ({0: 5}, "args[0][0]", "an array, ptx_emu.Output or TensorMap, a NumPy scalar, bytes or None"),
        ({12: None}, "args[0][12]", "a field that ends at or before byte 16"),
        ({2**64 - 1: bytes(8)}, "args[0][18446744073709551615]", "a field that ends at or before"),
        ({0: numpy.uint32(1), 2: bytes(2)}, "args[0][2]", "bytes that no other field has"),
        ({0: numpy.zeros(1, [("a", ">u4")])[0]}, "args[0][0]", "a number in little-endian byte order"),
        (numpy.zeros(1, [("a", ">u8"), ("b", "u8")])[0], "args[0]", "a number in little-endian byte"),
        ({8: numpy.zeros(8, ">u4")}, "args[0][8]", "elements in little-endian byte order"),
    ],
)
def test_structs(value, field, required):
    error = refused(STRUCT, None, 1, 1, [value, numpy.zeros(2, "u4")])
    assert error.field == field and error.required.startswith(required), error.required


def test_outputs():
    for array, required in [
        (5, "a NumPy array"),
        (numpy.zeros(8)[::2], "a C-contiguous array"),
    ]:
        with pytest.raises(ptx_emu.ArgumentError) as raised:
            ptx_emu.Output(array)
        assert raised.value.field == "array" and raised.value.required.startswith(required)
    locked = numpy.zeros(8)
    locked.flags.writeable = False
    with pytest.raises(ptx_emu.ArgumentError, match="a writeable array"):
        ptx_emu.Output(locked)
    x = numpy.zeros(32, numpy.float32)
    error = refused(ADD, None, 1, 32, [x, ptx_emu.Output(x), x, 32])
    assert error.field == "args[1]" and "both arguments or for neither" in error.required


def load_error(text, **keywords):
    error = refused(text, None, 1, 1, [None], error=ptx_emu.LoadError, **keywords)
    return error.reason, error.line, str(error)


def test_modules_that_are_refused():
    text = kernel(".param .u64 out", "mov.u64 %d0, nowhere;")
    line = 1 + [line.strip() for line in text.splitlines()].index("mov.u64 %d0, nowhere;")
    reason, at, message = load_error(text)
    assert (reason, at) == ("unknown-symbol", line) and "`nowhere`" in message
    reason, at, message = load_error(text.replace("mov.u64 %d0, nowhere;", "add.u32 %r2;"))
    assert (reason, at) == ("bad-operand", line) and "`add.u32 %r2;`" in message
    reason, _, message = load_error("int main() {}")
    assert reason == "syntax" and message.startswith("line 1")
    reason, _, message = load_error(kernel("", "", target="sm_110a"))
    assert reason == "target" and "sm_110a" in message
    assert load_error(kernel("", "", target="sm_100a"), gpu="h200")[0] == "target"
    two = kernel("", "") + ".visible .entry other() { ret; }"
    reason, _, message = load_error(two)
    assert reason == "entry" and "k, other" in message and "None" in message
    assert load_error(".version 9.0\n.target sm_90a\n.address_size 64")[0] == "entry"
    error = refused(two, "third", 1, 1, error=ptx_emu.LoadError)
    assert error.reason == "entry" and "third" in str(error) and error.unsupported == []


def test_instructions_that_are_not_modelled_are_named():
    text = kernel(".param .u64 out", "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d0, {%f0, %f1}];")
    error = refused(text, None, 1, 1, [None], error=ptx_emu.LoadError)
    assert error.reason == "unsupported"
    (item,) = error.unsupported
    assert item.instruction.startswith("tex.2d.v4.f32.f32") and item.line == error.line
    assert item.why and "tex.2d.v4" in str(error)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        ptx_emu.run(tmp_path / "none.ptx", None, 1, 1)
    assert raised.value.filename == str(tmp_path / "none.ptx")


@pytest.mark.parametrize(
    ("field", "keywords"),
    [
        ("block", {"block": 2048}),
        ("block", {"block": (1, 1, 65)}),
        ("grid", {"grid": (1, 65536)}),
        ("cluster", {"cluster": 32, "grid": 32}),
        ("grid", {"cluster": 2, "grid": 3}),
        ("shared memory", {"dynamic_shared": 2**20}),
    ],
)
def test_launches_that_are_refused(field, keywords):
    call = {"ptx": INCREMENT, "entry": None, "grid": 1, "block": 32, "args": [OUT]} | keywords
    error = refused(error=ptx_emu.LaunchError, **call)
    assert (error.kernel, error.field) == ("k", field)
    assert f"{field}: required {error.required}, actual {error.actual}" in str(error)


def test_explain_and_check():
    with pytest.raises(ptx_emu.ArgumentError, match="kind: required the name of a kind"):
        ptx_emu.explain("race")
    with pytest.raises(ptx_emu.ArgumentError, match="gpu: required"):
        ptx_emu.check(SAXPY, gpu=5)
