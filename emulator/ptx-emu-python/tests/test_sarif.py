"""Findings as a log for code hosts."""

import json
from pathlib import Path

import numpy
import pytest
import ptx_emu
from programs import reduction


def test_findings_and_what_they_become():
    arguments = [numpy.arange(128, dtype=numpy.uint32), numpy.zeros(1, numpy.uint32)]
    found = ptx_emu.explore(reduction(""), None, 1, 128, arguments, dynamic_shared=512, seeds=0)
    finding = found.failure.finding
    log = json.loads(ptx_emu.sarif([(finding, Path("k.ptx")), (finding.to_dict(), "k.ptx"), (finding, "t.py")]))
    module, program = log["runs"][0]["results"]
    assert module["ruleId"] == "data-race" and module["occurrenceCount"] == 2
    place = module["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "k.ptx" and place["region"]["startLine"] == finding.line
    assert program["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "t.py"}}
    assert json.loads(ptx_emu.sarif([]))["runs"][0]["results"] == []


@pytest.mark.parametrize("wrong", [3, [3], [("x", "k.ptx")], [({"kind": "none", "error": ""}, "k.ptx")], [({}, 3)]])
def test_other_values_are_refused(wrong):
    with pytest.raises(ptx_emu.ArgumentError, match="found"):
        ptx_emu.sarif(wrong)
