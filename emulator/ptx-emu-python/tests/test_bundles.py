"""Launches that are captured and replayed."""

import json

import numpy
import pytest
import ptx_emu
from programs import ADD, INCREMENT


def capture(folder):
    a = numpy.arange(40, dtype=numpy.float32)
    c = numpy.zeros(40, numpy.float32)
    ptx_emu.run(ADD, None, 2, 32, [a, a, ptx_emu.Output(c), 40], capture=folder)
    return c


def test_a_launch_is_replayed(tmp_path):
    capture(tmp_path / "launch")
    result = ptx_emu.replay(tmp_path / "launch")
    assert result.clean and result.kernel == "add" and result.counters.ctas == 2
    (output,) = result.outputs
    assert (output.name, output.elements, output.mismatches) == ("c", 160, 0)
    assert output.first is None
    assert ptx_emu.replay(str(tmp_path / "launch"), schedule="random:4").schedule == "random:4"


def test_outputs_that_differ(tmp_path):
    c = capture(tmp_path / "launch")
    description = json.loads((tmp_path / "launch/bundle.json").read_text())
    wrong = c.copy()
    wrong[3] += 1
    expected = description["expected"]["c"]
    (tmp_path / "launch" / expected["file"]).write_bytes(wrong.tobytes())
    expected["compare"] = {"dtype": "f32"}
    (tmp_path / "launch/bundle.json").write_text(json.dumps(description))
    result = ptx_emu.replay(tmp_path / "launch")
    assert not result.clean and result.findings == []
    assert result.outputs[0].mismatches == 1
    assert result.outputs[0].first == (3, "7", "6")
    assert result.outputs[0].max_error == 1


def test_a_launch_that_a_finding_ends_is_captured(tmp_path):
    with pytest.raises(ptx_emu.FindingError):
        ptx_emu.run(INCREMENT, None, 1, 32, [numpy.zeros(31, "u4")], capture=tmp_path / "launch")
    with pytest.raises(ptx_emu.FindingError) as raised:
        ptx_emu.replay(tmp_path / "launch")
    assert raised.value.finding.kind == "out-of-bounds"
    result = ptx_emu.replay(tmp_path / "launch", check=False)
    assert result.findings == [raised.value.finding] and not result.finished


def test_folders_that_are_no_bundles(tmp_path):
    with pytest.raises(ptx_emu.BundleError, match="cannot be read"):
        ptx_emu.replay(tmp_path)
    capture(tmp_path / "launch")
    with pytest.raises(ptx_emu.BundleError, match="cannot be written"):
        capture(tmp_path / "launch")
    # Nothing ran.
    out = numpy.zeros(32, "u4")
    with pytest.raises(ptx_emu.BundleError, match="exists"):
        ptx_emu.run(INCREMENT, None, 1, 32, [out], capture=tmp_path / "launch")
    assert (out == 0).all()
    path = tmp_path / "launch/bundle.json"
    description = json.loads(path.read_text())
    path.write_text(json.dumps(description | {"params": "0"}))
    with pytest.raises(ptx_emu.BundleError) as raised:
        ptx_emu.replay(tmp_path / "launch")
    assert raised.value.field == "params" and raised.value.required and raised.value.actual
    path.write_text(json.dumps(description | {"entry": "other"}))
    with pytest.raises(ptx_emu.LoadError) as raised:
        ptx_emu.replay(tmp_path / "launch")
    assert raised.value.reason == "entry"
    path.write_text(json.dumps(description | {"block": [33, 0, 1]}))
    with pytest.raises(ptx_emu.LaunchError) as raised:
        ptx_emu.replay(tmp_path / "launch")
    assert raised.value.field == "block"
    memory = description["memory"] + [description["memory"][0]]
    path.write_text(json.dumps(description | {"memory": memory}))
    with pytest.raises(ptx_emu.DeviceMemoryError, match="overlap"):
        ptx_emu.replay(tmp_path / "launch")
