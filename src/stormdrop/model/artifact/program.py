"""The program of a model: what TVM executes, and the large constants, which stand outside of it.

    main(x): kernel(x, <16 MB>, <4 KB>)   ->   main(x, w): kernel(x, w, <4 KB>), w

TVM stores a program as one string, with its constants in it, and copies it several times to write or to read it. What
stands outside is written to a file once, and mapped when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.runtime.vm import VirtualMachine

from .constants_file import ConstantsWriter
from .metadata import Weight

LEAST = 1 << 20
"""The fewest bytes of a constant that stands outside. It costs a call some 50 ns, and to read it takes 20 us."""


@dataclass(frozen=True)
class Program:
    """The program of a model.

    Attributes:
        executable: TVM's executable, or its module. It has a function for each size, which takes the inputs in order,
            then the weights.
        weights: The weights of each size: TVM's tensors. Empty if there are none.
    """

    executable: Any
    weights: tuple[tuple[Any, ...], ...] = ()

    @property
    def module(self) -> Any:
        """TVM's module of the executable, with the machine code of the kernels."""
        return self.executable.mod if hasattr(self.executable, "mod") else self.executable

    def weights_of(self, size: int) -> tuple[Any, ...]:
        """The weights of the size at this position."""
        return self.weights[size] if self.weights else ()

    def machine(self) -> VirtualMachine:
        """A new virtual machine that executes it."""
        return VirtualMachine(self.executable if hasattr(self.executable, "jit") else self.module, tvm.cpu())


def write_weights(weights: Sequence[Iterable[Any]], file: Path) -> tuple[tuple[Weight, ...], ...]:
    """Writes the weights of a program to a file.

    Args:
        weights: The weights of each size.
        file: The file, which is made. Only its owner may write to it, so that it may be mapped where it is.

    Returns:
        What the metadata says of them.

    Raises:
        OSError: The file cannot be written.
    """
    result = []
    with ConstantsWriter(file) as writer:
        file.chmod(file.stat().st_mode & ~0o022)
        for tensors in map(tuple, weights):
            places = zip(writer.write(tensors), tensors, strict=True)
            result.append(tuple(Weight(at, tuple(map(int, each.shape)), str(each.dtype)) for at, each in places))
    return tuple(result)
