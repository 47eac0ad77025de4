"""Runs PTX kernels for GPUs from Ampere to Blackwell on NumPy arrays, without a GPU, and says what is
wrong with them.

`run` launches a kernel once, `explore` under many schedules, `replay` a launch that was captured; `check` says
whether a module loads; `kinds` and `explain` describe the findings, and `sarif` writes them for code hosts.
`pytest --ptx-emu` runs tests with the fixture `ptx_emu_launch`.
"""

from ._ptx_emu import *
from ._ptx_emu import __all__, __version__
