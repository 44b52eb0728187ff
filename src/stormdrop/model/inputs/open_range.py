"""What is asked of shapes that have a range in the place of a size."""

from __future__ import annotations

from ...errors import InputError
from ...machine.contract import CPU, Machine
from .combinations import GivenShapes, is_list
from .size_range import Range


def has_range(shapes: GivenShapes | None) -> bool:
    """Whether the shapes of inputs have a range in the place of a size."""
    return any(isinstance(size, Range) for shape in (shapes or {}).values() for size in shape)


def check_range(shapes: GivenShapes | None, machine: Machine, native: bool) -> None:
    """Checks that a model for a machine can run at each size of a range, before the work that this takes.

    Args:
        shapes: The shapes of its inputs.
        machine: The machine.
        native: Whether machine code is to be saved.

    Raises:
        InputError: It cannot.
    """
    if not has_range(shapes):
        return
    if machine.device != CPU or machine.runner:
        raise InputError(
            f"a range of sizes is possible on this machine's CPU, not on {machine.target_name}: list sizes"
        )
    if native:
        raise InputError("a range of sizes is not possible in a native model: list sizes, or leave native out")
    if any(is_list(size) and not isinstance(size, Range) for shape in (shapes or {}).values() for size in shape):
        raise InputError("a range of sizes is not possible beside a list of sizes: give ranges, or lists")
