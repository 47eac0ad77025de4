"""Runs PTX kernels for GPUs from Ampere to Blackwell on NumPy arrays, without a GPU, and says what is
wrong with them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union, final

import numpy
from numpy.typing import NDArray

__version__: str

_Gpu = Literal["a100", "rtx3090", "rtx4090", "l40s", "h200", "b200", "b300", "rtx5090", "rtx-pro-6000", "dgx-spark"]
_Model = Literal["hardware", "ptx"]
_Level = Literal["allow", "warn", "deny"]
_Array = NDArray[Any]
_Extent = Union[int, Sequence[int]]
_Names = Union[str, Iterable[str]]
_Ptx = Union[str, os.PathLike[str]]
_Folder = Union[str, os.PathLike[str]]
_Field = Union[_Array, Output, TensorMap, numpy.generic, bytes, bytearray, None]
_Argument = Union[_Field, int, float, Mapping[int, _Field]]

class Error(Exception):
    """Base class of this module's exceptions."""

class ArgumentError(Error):
    """A Python value that is not what a function or the kernel takes."""

    field: str
    required: str
    actual: str
    index: int | None
    parameter: str | None

class LoadError(Error):
    """A module that is refused: not PTX, for another GPU, or with something that its target lacks or that is not modelled."""

    reason: Literal[
        "syntax",
        "target",
        "version",
        "address-size",
        "entry",
        "unsupported",
        "unknown-symbol",
        "bad-operand",
        "bad-declaration",
        "other",
    ]
    line: int | None
    unsupported: list[Unsupported]

class LaunchError(Error):
    """A launch that does not fit the kernel or the GPU."""

    kernel: str
    field: str | None
    required: str | None
    actual: str | None

class DeviceMemoryError(Error):
    """Device memory that cannot be allocated, read or written."""

class BundleError(Error):
    """A folder that is no launch bundle, or cannot be written."""

    field: str | None
    required: str | None
    actual: str | None

class FindingError(Error):
    """A kernel that did something wrong."""

    finding: Finding
    findings: list[Finding]
    result: Result

@final
class Output:
    """An array whose device memory begins uninitialised."""

    def __new__(cls, array: _Array) -> Output: ...
    @property
    def array(self) -> _Array: ...

@final
class TensorMap:
    """A tensor map of an array, as cuTensorMapEncodeTiled makes it: the innermost dimension first."""

    def __new__(
        cls,
        array: _Array | Output,
        box: Sequence[int],
        *,
        dtype: str | None = ...,
        dims: Sequence[int] | None = ...,
        strides: Sequence[int] | None = ...,
        element_strides: Sequence[int] | None = ...,
        interleave: str = ...,
        swizzle: str = ...,
        l2: str = ...,
        oob: str = ...,
    ) -> TensorMap: ...
    @property
    def array(self) -> _Array | Output: ...

class Record:
    """Read-only values by name, as attributes."""

    def __getattr__(self, name: str) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...

@final
class Counters(Record):
    """What a launch did."""

    ctas: int
    clusters: int
    threads: int
    warp_instructions: int
    lane_instructions: int
    families: Record
    global_: Record
    shared: Record
    local: Record
    constant: Record
    global_unique_bytes_read: int
    global_unique_bytes_written: int
    shared_wavefronts: int
    shared_wavefronts_ideal: int
    atomics: int
    barrier_arrivals: int
    divergent_branches: int
    asynchronous: Record
    tensor: Record
    levels: Record

@final
class LowerBound(Record):
    """The time below which the GPU cannot get for the counted work; computed, never measured."""

    gpu: str
    seconds: float
    by: str
    parts: Record

@final
class Finding:
    """Something that a kernel did wrong, and where."""

    @property
    def kind(self) -> str: ...
    @property
    def level(self) -> _Level: ...
    @property
    def message(self) -> str: ...
    @property
    def advice(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def kernel_name(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def instruction(self) -> str: ...
    @property
    def source_file(self) -> str | None: ...
    @property
    def source_line(self) -> int | None: ...
    @property
    def cta(self) -> tuple[int, int, int]: ...
    @property
    def warp(self) -> int: ...
    @property
    def lane(self) -> int | None: ...
    @property
    def schedule(self) -> str: ...
    @property
    def address(self) -> int | None: ...
    @property
    def bytes(self) -> int | None: ...
    @property
    def space(self) -> Literal["global", "shared", "local", "const", "param"] | None: ...
    @property
    def access(self) -> Literal["read", "write", "atomic"] | None: ...
    @property
    def buffer(self) -> str | None: ...
    def explain(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...

@final
class OutputReport:
    """How a launch's output compares with what is expected, or with what another schedule gave."""

    @property
    def name(self) -> str: ...
    @property
    def elements(self) -> int: ...
    @property
    def mismatches(self) -> int: ...
    @property
    def first(self) -> tuple[int, str, str] | None: ...
    @property
    def max_error(self) -> float: ...

@final
class Result:
    """What a launch came to."""

    @property
    def clean(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def kernel(self) -> str: ...
    @property
    def gpu(self) -> _Gpu: ...
    @property
    def schedule(self) -> str: ...
    @property
    def model(self) -> _Model: ...
    @property
    def findings(self) -> list[Finding]: ...
    @property
    def findings_left_out(self) -> int: ...
    @property
    def counters(self) -> Counters | None: ...
    @property
    def lower_bound(self) -> LowerBound | None: ...
    @property
    def printed(self) -> str: ...
    @property
    def not_written(self) -> list[str]: ...
    @property
    def outputs(self) -> list[OutputReport]: ...
    @property
    def not_looked_for(self) -> list[str]: ...

@final
class Failure:
    """The first schedule that went wrong, and how."""

    @property
    def schedule(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def finding(self) -> Finding | None: ...
    @property
    def others(self) -> list[Finding]: ...
    @property
    def output(self) -> OutputReport | None: ...

@final
class Exploration:
    """What an exploration came to."""

    @property
    def clean(self) -> bool: ...
    @property
    def kernel(self) -> str: ...
    @property
    def gpu(self) -> _Gpu: ...
    @property
    def model(self) -> _Model: ...
    @property
    def passed(self) -> int: ...
    @property
    def failure(self) -> Failure | None: ...
    @property
    def warnings(self) -> list[Finding]: ...
    @property
    def warnings_left_out(self) -> int: ...
    @property
    def counters(self) -> Counters | None: ...
    @property
    def lower_bound(self) -> LowerBound | None: ...
    @property
    def not_written(self) -> list[str]: ...
    @property
    def not_looked_for(self) -> list[str]: ...

@final
class Unsupported:
    """An instruction or declaration that is not modelled."""

    @property
    def line(self) -> int: ...
    @property
    def instruction(self) -> str: ...
    @property
    def why(self) -> str: ...

@final
class Parameter:
    """A parameter of a kernel."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def pointer(self) -> bool: ...
    @property
    def bytes(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def align(self) -> int: ...

@final
class Kernel:
    """A kernel, and whether it can be launched."""

    @property
    def name(self) -> str: ...
    @property
    def readable_name(self) -> str: ...
    @property
    def loads(self) -> bool: ...
    @property
    def error(self) -> LoadError | None: ...
    @property
    def parameters(self) -> list[Parameter]: ...
    @property
    def unsupported(self) -> list[Unsupported]: ...
    @property
    def reqntid(self) -> tuple[int, int, int] | None: ...
    @property
    def maxntid(self) -> tuple[int, int, int] | None: ...
    @property
    def cluster(self) -> tuple[int, int, int] | None: ...
    @property
    def static_shared(self) -> int: ...
    @property
    def dynamic_shared(self) -> bool: ...

@final
class Examination:
    """What a module holds."""

    @property
    def loads(self) -> bool: ...
    @property
    def version(self) -> tuple[int, int]: ...
    @property
    def targets(self) -> list[str]: ...
    @property
    def gpu(self) -> _Gpu: ...
    @property
    def runs_on(self) -> list[_Gpu]: ...
    @property
    def entries(self) -> list[Kernel]: ...

@final
class Kind:
    """A kind of finding."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def advice(self) -> str: ...
    @property
    def fatal(self) -> bool: ...
    @property
    def hardware(self) -> _Level: ...
    @property
    def ptx(self) -> _Level: ...
    def explain(self) -> str: ...

def run(
    ptx: _Ptx,
    entry: str | None,
    grid: _Extent,
    block: _Extent,
    args: Iterable[_Argument] = ...,
    *,
    cluster: _Extent | None = ...,
    dynamic_shared: int = ...,
    gpu: _Gpu | None = ...,
    lax: bool = ...,
    schedule: str = ...,
    model: _Model = ...,
    allow: _Names = ...,
    warn: _Names = ...,
    deny: _Names = ...,
    max_findings: int = ...,
    instruction_limit: int | None = ...,
    check: bool = ...,
    capture: _Folder | None = ...,
) -> Result:
    """Runs a kernel once."""

def explore(
    ptx: _Ptx,
    entry: str | None,
    grid: _Extent,
    block: _Extent,
    args: Iterable[_Argument] = ...,
    *,
    seeds: int = ...,
    allow_different: bool = ...,
    cluster: _Extent | None = ...,
    dynamic_shared: int = ...,
    gpu: _Gpu | None = ...,
    lax: bool = ...,
    model: _Model = ...,
    allow: _Names = ...,
    warn: _Names = ...,
    deny: _Names = ...,
    max_findings: int = ...,
    instruction_limit: int | None = ...,
) -> Exploration:
    """Runs a kernel under `eager`, `lazy` and `seeds` random schedules, up to the first that goes
    wrong."""

def replay(
    folder: _Folder,
    *,
    gpu: _Gpu | None = ...,
    lax: bool = ...,
    schedule: str = ...,
    model: _Model = ...,
    allow: _Names = ...,
    warn: _Names = ...,
    deny: _Names = ...,
    max_findings: int = ...,
    instruction_limit: int | None = ...,
    check: bool = ...,
) -> Result:
    """Runs a launch bundle."""

def check(ptx: _Ptx, entry: str | None = None, *, gpu: _Gpu | None = None, lax: bool = False) -> Examination:
    """Says which kernels of a module can be launched, and what is not modelled of the others."""

def kinds() -> list[Kind]:
    """All kinds of findings."""

def explain(kind: str) -> str:
    """The page about a kind of finding."""

def sarif(found: Iterable[tuple[Finding | Mapping[str, Any], _Folder]]) -> str:
    """A log of findings in the format SARIF 2.1.0."""
