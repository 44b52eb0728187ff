"""A program with what it calls and reads: the machine code of its kernels, and its constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runtime.device.code import DeviceCode
from ...runtime.library import Library
from ...runtime.open_size import OpenSize
from ...runtime.program import Program


@dataclass(frozen=True)
class NativeCode:
    """What the library of a native model executes.

    Attributes:
        library: The library, which holds the program and its kernels.
        weights: The content of the file of the constants, which begins at a multiple of 64 bytes.
    """

    library: Library
    weights: NDArray[np.uint8]


@dataclass(frozen=True)
class CompiledProgram:
    """A program that can be executed.

    Attributes:
        program: The program.
        modules: TVM's modules that hold the kernels; none if a library executes the program.
        constants: The bytes of each constant, in the order of `Program.constants`.
        native: The library that executes the program.
        device: The kernels, if a GPU executes them.
        opens: The programs of ranges of sizes. Their kernels are in the modules, too.
    """

    program: Program
    modules: Sequence[Any]
    constants: Sequence[NDArray[np.uint8]]
    native: NativeCode | None = None
    device: DeviceCode | None = None
    opens: tuple[OpenSize, ...] = ()

    @property
    def kernels(self) -> tuple[str, ...]:
        """The symbols of all kernels, those of ranges of sizes included."""
        steps = (step for each in self.opens for step in each.steps if step.kind == "kernel")
        opened = (case.name for step in steps for case in step.cases)
        return tuple(dict.fromkeys([*self.program.kernels, *opened]))
