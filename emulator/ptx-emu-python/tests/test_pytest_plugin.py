"""`pytest --ptx-emu`: the fixture, its messages and its log."""

import json

import pytest
from programs import reduction

#: Tests of a project: a kernel that is right, one with a race, and one whose result depends on the order of CTAs.
TESTS = '''
import numpy
from pathlib import Path

FOLDER = Path(__file__).parent

def arguments():
    return [numpy.arange(128, dtype=numpy.uint32), numpy.zeros(1, numpy.uint32)]

def test_right(ptx_emu_launch):
    given = arguments()
    found = ptx_emu_launch(FOLDER / "right.ptx", None, 1, 128, given, dynamic_shared=512)
    assert given[1][0] == sum(range(128))
    print("passed", getattr(found, "passed", None))

def test_race(ptx_emu_launch):
    ptx_emu_launch(FOLDER / "race.ptx", None, 1, 128, arguments(), dynamic_shared=512)

def test_order(ptx_emu_launch):
    ptx_emu_launch((FOLDER / "order.ptx").read_text(), None, 8, 1, [numpy.zeros(1, numpy.uint32)])

def test_warned(ptx_emu_launch):
    ptx_emu_launch(FOLDER / "race.ptx", None, 1, 128, arguments(), dynamic_shared=512, warn="data-race",
                   allow_different=True)
'''


@pytest.fixture
def project(pytester):
    """The project with the tests, in a folder of its own."""
    from programs import kernel

    last = kernel(".param .u64 out", "ld.param.u64 %d0, [out]; atom.global.exch.b32 %r2, [%d0], %r0;")
    for name, text in [("right", reduction()), ("race", reduction("")), ("order", last)]:
        (pytester.path / f"{name}.ptx").write_text(text)
    pytester.makepyfile(test_kernels=TESTS)
    return pytester


def run(project, *options):
    # Its own process: the module is loaded as it is in anybody's run.
    return project.runpytest_subprocess("-p", "no:cacheprovider", *options)


def test_skipped_without_the_option(project):
    result = run(project, "-rs")
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["*needs --ptx-emu*"])


def test_schedules_and_findings(project):
    result = run(project, "--ptx-emu", "--ptx-emu-seeds", "3", "-s", "--ptx-emu-sarif", "log.sarif")
    result.assert_outcomes(passed=2, failed=2, warnings=2)
    result.stdout.fnmatch_lines(["*passed 5*"])
    result.stdout.fnmatch_lines([
        "ptx-emu: `k` goes wrong under schedule lazy (1 passed before)",
        "data-race: data race: *",
        "what to do: *",
        "explained: python -c *data-race*",
        "replay: pytest --ptx-emu --ptx-emu-schedule lazy test_kernels.py::test_race",
        "ptx-emu: `k` goes wrong under schedule * passed before)",
        "out: 1 of * elements differ from what schedule eager gives*",
    ])
    result.stdout.fnmatch_lines(["*PtxEmuWarning: data-race: *"])
    log = json.loads((project.path / "log.sarif").read_text())
    assert log["version"] == "2.1.0"
    results = log["runs"][0]["results"]
    rules = [found["ruleId"] for found in results]
    assert rules.count("outputs-differ") == 1 and "data-race" in rules
    levels = {found["level"] for found in results if found["ruleId"] == "data-race"}
    assert levels == {"error"}
    files = {
        found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for found in results
    }
    assert files == {"race.ptx", "test_kernels.py"}


def test_replay_under_one_schedule(project):
    result = run(project, "--ptx-emu", "--ptx-emu-schedule", "lazy", "test_kernels.py::test_race")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ptx-emu: `k` goes wrong under schedule lazy", "data-race: *"])
    result = run(project, "--ptx-emu", "--ptx-emu-schedule", "eager", "-s")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*passed None*"])


def test_clean_and_unwritable_logs(project):
    result = run(project, "--ptx-emu", "-k", "right", "--ptx-emu-sarif", "log.sarif")
    result.assert_outcomes(passed=1, deselected=3)
    assert json.loads((project.path / "log.sarif").read_text())["runs"][0]["results"] == []
    result = run(project, "--ptx-emu", "--ptx-emu-sarif", "no/log.sarif")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--ptx-emu-sarif no/log.sarif: its folder does not exist*"])


def test_options_are_the_launches(project):
    project.makepyfile(test_options='''
        def test_it(ptx_emu_launch):
            found = ptx_emu_launch(".version 8.0\\n.target sm_90\\n.address_size 64\\n.visible .entry k() { ret; }",
                                   None, 1, 1)
            assert (found.gpu, found.model, found.passed) == ("b200", "ptx", 2)
    ''')
    options = ["--ptx-emu-gpu", "b200", "--ptx-emu-model", "ptx", "--ptx-emu-seeds", "0"]
    run(project, "--ptx-emu", *options, "test_options.py").assert_outcomes(passed=1)
