"""The plugin of pytest: kernels on the emulator, under many schedules.

A test that has the fixture `ptx_emu_launch` runs with `pytest --ptx-emu` and is skipped without it.
"""

import json
import os
import shlex
import warnings
from pathlib import Path

import pytest

#: What a finding is called among the properties of a test's report.
PROPERTY = "ptx_emu_finding"


class PtxEmuWarning(UserWarning):
    """A finding that does not make a kernel wrong."""


def pytest_addoption(parser):
    group = parser.getgroup("ptx-emu", "kernels on the emulator of PTX")
    group.addoption(
        "--ptx-emu", action="store_true",
        help="run the tests that have the fixture ptx_emu_launch; without it, they are skipped",
    )
    group.addoption(
        "--ptx-emu-seeds", type=int, default=10, metavar="N",
        help="random schedules besides eager and lazy, unless a launch says how many (default: 10)",
    )
    group.addoption(
        "--ptx-emu-schedule", metavar="eager|lazy|random:SEED",
        help="run every launch under this schedule alone, to replay what went wrong",
    )
    group.addoption(
        "--ptx-emu-model", choices=["hardware", "ptx"], default="hardware",
        help="orders that hold, unless a launch says which: what hardware is known to order (default), or "
        "only what PTX ISA promises",
    )
    group.addoption("--ptx-emu-gpu", metavar="NAME", help="the machine, unless a launch says which")
    group.addoption(
        "--ptx-emu-sarif", metavar="FILE", help="write all findings to this file, in the format SARIF 2.1.0",
    )


def pytest_configure(config):
    path = config.getoption("ptx_emu_sarif")
    # Workers of pytest-xdist send their reports to the process that began the run.
    if path and not hasattr(config, "workerinput"):
        if not Path(path).absolute().parent.is_dir():
            raise pytest.UsageError(f"--ptx-emu-sarif {path}: its folder does not exist")
        config.pluginmanager.register(_Log(Path(path).absolute()), "ptx-emu-sarif")


class _Log:
    """The findings of all tests, for `--ptx-emu-sarif`."""

    def __init__(self, path):
        self.path = path
        self.found = []

    def pytest_runtest_logreport(self, report):
        # This report has the properties of all phases of the test.
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    found = json.loads(value)
                    self.found.append((found["finding"], found["file"]))

    def pytest_sessionfinish(self):
        import ptx_emu

        self.path.write_text(ptx_emu.sarif(self.found), encoding="utf-8")


@pytest.fixture
def ptx_emu_launch(request):
    """Runs kernels under many schedules, and fails with the first finding.

    ptx_emu_launch(ptx, entry, grid, block, args, ..) takes what `ptx_emu.explore` does and returns its
    result. The arrays have what the kernel left, and the test goes on if nothing went wrong.
    """
    if not request.config.getoption("ptx_emu"):
        pytest.skip("needs --ptx-emu")
    return _Launch(request)


class _Launch:
    """The fixture's value."""

    def __init__(self, request):
        self._config = request.config
        self._test = request.node

    def __call__(self, ptx, entry, grid, block, args=(), **keywords):
        """Runs a kernel as `ptx_emu.explore` does, or under the schedule of `--ptx-emu-schedule` alone."""
        import ptx_emu

        option = self._config.getoption
        keywords.setdefault("model", option("ptx_emu_model"))
        keywords.setdefault("gpu", option("ptx_emu_gpu"))
        schedule = option("ptx_emu_schedule")
        if schedule is None:
            keywords.setdefault("seeds", option("ptx_emu_seeds"))
            found = ptx_emu.explore(ptx, entry, grid, block, args, **keywords)
            self._warn(ptx, found.warnings)
            if not found.clean:
                self._explored(ptx, found)
        else:
            for name in ("seeds", "allow_different"):
                keywords.pop(name, None)
            found = ptx_emu.run(
                ptx, entry, grid, block, args, schedule=schedule, check=False, **keywords
            )
            denied = [finding for finding in found.findings if finding.level == "deny"]
            self._warn(ptx, [finding for finding in found.findings if finding.level != "deny"])
            if denied:
                self._note(ptx, *(finding.to_dict() for finding in denied))
                self._fail(denied[0].kernel_name, schedule, "", denied[0].message, denied)
        return found

    def _explored(self, ptx, found):
        failure = found.failure
        findings = [failure.finding, *failure.others] if failure.finding else []
        self._note(ptx, *(finding.to_dict() for finding in findings))
        if failure.output:
            self._note(ptx, {"kind": "outputs-differ", "error": failure.message})
        passed = f" ({found.passed} passed before)"
        self._fail(found.kernel, failure.schedule, passed, failure.message, findings)

    def _fail(self, kernel, schedule, passed, message, findings):
        lines = [f"ptx-emu: `{kernel}` goes wrong under schedule {schedule}{passed}"]
        if findings:
            first, *others = findings
            lines += [f"{first.kind}: {message}", f"what to do: {first.advice}"]
            lines += [f"also {other.level}[{other.kind}]: {other.message}" for other in others]
            lines.append(f'explained: python -c \'import ptx_emu; print(ptx_emu.explain("{first.kind}"))\'')
        else:
            lines.append(message)
        test = shlex.quote(self._test.nodeid)
        lines.append(f"replay: pytest --ptx-emu --ptx-emu-schedule {schedule} {test}")
        pytest.fail("\n".join(lines), pytrace=False)

    def _warn(self, ptx, findings):
        for finding in findings:
            self._note(ptx, finding.to_dict())
            warnings.warn(PtxEmuWarning(f"{finding.kind}: {finding.message}"), stacklevel=3)

    def _note(self, ptx, *findings):
        """Keeps findings for `--ptx-emu-sarif`, at the module's file or, if it has none, at the test's."""
        if not self._config.getoption("ptx_emu_sarif"):
            return
        file = os.fspath(ptx) if hasattr(ptx, "__fspath__") else str(self._test.path)
        for finding in findings:
            text = json.dumps({"finding": finding, "file": file})
            self._test.user_properties.append((PROPERTY, text))
