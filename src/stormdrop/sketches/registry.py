"""The sketches that exist, and which of them apply to a workload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..errors import InputError, hint
from ..ir.workload import Workload
from ..machine.contract import CPU, Machine
from ..machine.cpu import Cpu
from ..machine.gpu import Gpu
from ..plugins import plugins, require
from ..space import Space
from .contract import AnySketch, Estimator, Sketch, Yielding
from .cpu.attention.sketch import Attention
from .cpu.code_sums.dots import CodeDots
from .cpu.code_sums.sketch import CodeSums
from .cpu.contractions.register_blocked import RegisterBlocked
from .cpu.streaming import Streaming
from .cpu.tiles.sketch import Tiles, TilesOfParts
from .cpu.winograd.sketch import Winograd, WinogradOfBytes
from .fingerprint import space_of
from .gpu.attention.mma import GpuMmaAttention
from .gpu.attention.sketch import GpuAttention
from .gpu.contraction import GpuContraction
from .gpu.dot_products.sketch import GpuDotProducts
from .gpu.mma import GpuMma
from .gpu.rows.sketch import GpuRows
from .gpu.streaming import GpuStreaming
from .gpu.tensor_core import GpuTensorCore
from .gpu.transpose import GpuTranspose
from .gpu.winograd import GpuWinograd

MAX_ERROR = 1e-4
"""How far a schedule may differ from the reference by default: max|difference| / max|reference|."""

BUILTIN = "builtin"
SOURCES = (BUILTIN, "rules", "meta_schedule")
"""Where sketches come from: this module lists them, or rules derive them, or TVM MetaSchedule generates them."""


def sketches_for(
    workload: Workload, target: Machine, sketches: Sequence[AnySketch] | str | None = None, max_error: float = MAX_ERROR
) -> list[tuple[AnySketch, Space]]:
    """The sketches that apply to a workload, with their spaces.

    Args:
        workload: The function to tune.
        target: The machine to tune it for.
        sketches: The sketches to choose from, or one of `SOURCES`; by default "builtin". A sketch of "builtin" that
            yields (`Yielding`) is left out if another one applies, which does the same and more: that of streams. It
            stays if a contraction has too few columns to fill the vectors of a CPU, and beside `gpu_rows`.
        max_error: How far the schedules of "builtin" may differ from the reference; with 0 they only reorder it.

    Returns:
        Sketches and spaces, in the order in which they were given; those of "builtin" for GPUs in the order of the
        seconds that are expected of their origins. The origin of the first space is the default schedule.

    Raises:
        InputError: The source is unknown.
        TargetError: The source has no sketches for this kind of machine.

    Example:
        >>> from stormdrop import operators, parse_machine
        >>> from stormdrop.sketches.registry import sketches_for
        >>> target = parse_machine("cpu/x86-64-v4")
        >>> [sketch.name for sketch, _ in sketches_for(operators.matmul(64, 64, 64), target)]
        ['register_blocked']
    """
    if isinstance(sketches, str):
        sketches = _from_source(sketches, workload, target)
    if sketches is None:
        return _builtin(workload, target, max_error)
    for sketch in sketches:
        if type(sketch).__hash__ is None:
            raise InputError(f"sketch {sketch.name} has no hash: declare its class with @dataclass(frozen=True)")
    spaces = [(sketch, space_of(sketch, workload, target)) for sketch in sketches]
    return [(sketch, space) for sketch, space in spaces if space is not None]


def cpu_sketches(max_error: float = MAX_ERROR) -> tuple[Sketch[Cpu], ...]:
    """The builtin sketches for CPUs, and after them those of plug-ins.

    Args:
        max_error: How far schedules may differ from the reference; with 0 there are only sketches that reorder it.

    Raises:
        PluginError: A plug-in does not load, or is no sketch.
    """
    # The first one that applies has the default schedule.
    every: list[Sketch[Cpu]] = [
        CodeDots(),
        CodeSums(),
        Tiles(),
        RegisterBlocked(),
        TilesOfParts(),
        *([Winograd(4, max_error), Winograd(2, max_error)] if max_error else []),  # as inexact as they are allowed
        WinogradOfBytes(),
        Attention(),
        Streaming(),
        *_of_plugins("cpu_sketches"),
    ]
    return tuple(sketch for sketch in every if sketch.max_error <= max_error)


def gpu_sketches(max_error: float = MAX_ERROR) -> tuple[Sketch[Gpu], ...]:
    """The builtin sketches for GPUs, and after them those of plug-ins; arguments and errors as for `cpu_sketches`."""
    every: list[Sketch[Gpu]] = [
        GpuMma(),
        GpuTensorCore(),
        GpuDotProducts(),
        GpuContraction(),
        *([GpuWinograd(4, max_error), GpuWinograd(2, max_error)] if max_error else []),
        GpuMmaAttention(),
        GpuAttention(),
        GpuTranspose(),
        GpuRows(),
        GpuStreaming(),
        *_of_plugins("gpu_sketches"),
    ]
    return tuple(sketch for sketch in every if sketch.max_error <= max_error)


def _of_plugins(group: str) -> list[Any]:
    """The sketches that other packages add. An entry point names a sketch, or a class whose instance is one."""
    sketches = []
    for plugin in plugins(group).values():
        found = plugin.load()
        sketch = found() if isinstance(found, type) else found
        require(plugin, isinstance(sketch, Sketch) and sketch.name == plugin.name, f"a sketch named {plugin.name!r}")
        sketches.append(sketch)
    return sketches


def _from_source(source: str, workload: Workload, target: Machine) -> Sequence[AnySketch] | None:
    """The sketches of a source; None for "builtin"."""
    if source not in SOURCES:
        raise InputError(f"unknown sketches {source!r}; {hint(source, SOURCES)}")
    if source == "rules":
        from .rules import derive

        return derive(workload, target)
    if source == "meta_schedule":
        from .meta_schedule import meta_schedule_sketches  # loads much of TVM

        return meta_schedule_sketches(workload, target)
    return None


def _builtin(workload: Workload, target: Machine, max_error: float) -> list[tuple[AnySketch, Space]]:
    sketches: Sequence[AnySketch] = cpu_sketches(max_error) if target.device == CPU else gpu_sketches(max_error)
    applicable: list[tuple[AnySketch, Space]] = []
    for sketch in sketches:
        if applicable and isinstance(sketch, Yielding) and sketch.yields(workload, target):
            continue
        space = space_of(sketch, workload, target)
        if space is not None:
            applicable.append((sketch, space))
    return applicable if target.device == CPU else sorted(applicable, key=partial(_expected, workload, target))


def _expected(workload: Workload, target: Machine, pair: tuple[AnySketch, Space]) -> float:
    """The seconds that are expected of an origin; infinite if its sketch expects nothing."""
    sketch, space = pair
    if not isinstance(sketch, Estimator):
        return math.inf
    return float(sketch.estimate(workload, target, space.columns([space.origin]))[0])
