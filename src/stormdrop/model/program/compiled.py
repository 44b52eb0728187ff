"""A program with what it calls and reads: the machine code of its kernels, and its constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .program import Program


@dataclass(frozen=True)
class CompiledProgram:
    """A program that can be executed.

    Attributes:
        program: The program.
        modules: TVM's modules that hold the kernels.
        constants: The bytes of each constant, in the order of `Program.constants`.
    """

    program: Program
    modules: Sequence[Any]
    constants: Sequence[NDArray[np.uint8]]
