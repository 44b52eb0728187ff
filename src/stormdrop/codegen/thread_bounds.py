"""Whether the threads of a GPU's kernels stay within the buffers, found out without a GPU.

The indices of every load and store are evaluated for all blocks, threads and iterations at once, as NumPy arrays, and
so are the conditions around them. This reads what TVM lowers a schedule to, so it also sees what TVM adds, such as
reductions across threads and the staging of data in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir import TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.tirx import AttrStmt, Bind, BufferStore, Evaluate, For, IfThenElse, PrimFunc, SeqStmt

from ..errors import UnsupportedFunction
from ..ir.expressions import children, intrinsic
from ..ir.grid import GridEvaluator
from ..machine.gpu import Gpu
from .gpu_lowering import lower_for_gpu

Array = NDArray[Any]

_SHIFTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "shift_right": np.right_shift,
    "shift_left": np.left_shift,
    "bitwise_and": np.bitwise_and,
}
ALWAYS: Array = np.asarray(True)
"""The condition of what runs in every thread and iteration."""


def accesses_out_of_bounds(function: PrimFunc, device: Gpu) -> list[str]:
    """The loads and stores of a scheduled function that some thread makes outside of a buffer.

    Args:
        function: The scheduled function.
        device: The GPU that it was scheduled for.

    Returns:
        One line for each: the kernel, the buffer, its elements, and the lowest and highest index. An index that
        depends on data, as in a gather, is not judged.

    Example:
        >>> from stormdrop import operators
        >>> from stormdrop.machine.gpu import GPUS
        >>> from stormdrop.sketches.registry import sketches_for
        >>> work, a100 = operators.reduce(shape=(50, 96), axis=1), GPUS["a100"]
        >>> (sketch, space), *_ = sketches_for(work, a100)
        >>> accesses_out_of_bounds(sketch.apply(work, a100, space.config(space.origin)).main, a100)
        []
    """
    _, kernels = lower_for_gpu(function, device.tvm())
    lines: list[str] = []
    for name, kernel in kernels.items():
        walk = KernelWalk(name)
        walk.statement(kernel.body, ALWAYS)
        lines += walk.lines
    return list(dict.fromkeys(lines))


class _Values(GridEvaluator):
    """Evaluates expressions of a kernel by the values of its variables, which are in `ranges`.

    It raises `UnsupportedFunction` for a value that depends on data.
    """

    def __init__(self) -> None:
        super().__init__([], {}, {})

    def __call__(self, node: Any) -> Array:
        if isinstance(node, TensorLoad) or (isinstance(node, Var) and node not in self.ranges):
            raise UnsupportedFunction("its value depends on data")
        shift = _SHIFTS.get(intrinsic(node))
        return super().__call__(node) if shift is None else np.asarray(shift(*map(self, node.args)))


class KernelWalk:
    """Visits the statements of a kernel with the values of all variables, and the condition under which they run.

    The variable at depth d has its values along the d-th axis from the right. So values broadcast to one another.

    Args:
        kernel: The kernel's name.

    Attributes:
        lines: What was found; see `accesses_out_of_bounds`.
        value: Evaluates an expression; it raises `UnsupportedFunction` for a value that depends on data.
        depth: The number of loops around what is visited.
    """

    def __init__(self, kernel: str) -> None:
        self.lines: list[str] = []
        self._kernel = kernel
        self.value = _Values()
        self.depth = 0

    def statement(self, node: Any, holds: Array) -> None:
        """Visits a statement, and those in it.

        Args:
            node: The statement.
            holds: Where it runs.
        """
        if isinstance(node, SeqStmt):
            for each in node.seq:
                self.statement(each, holds)
        elif isinstance(node, AttrStmt):
            if node.attr_key == "thread_extent":
                self.loop(node.node.var, 0, int(node.value), node.body, holds)
            else:
                self.statement(node.body, holds)
        elif isinstance(node, For):
            self.loop(node.loop_var, int(node.min), int(node.extent), node.body, holds)
        elif isinstance(node, IfThenElse):
            self._branches(node, holds)
        elif isinstance(node, Bind):
            self._bind(node, holds)
        elif isinstance(node, BufferStore):
            self.access("stores", node.buffer, node.indices, holds)
            self._expression(node.value, holds)
        elif isinstance(node, Evaluate):
            self._expression(node.value, holds)

    def loop(self, variable: Any, start: int, extent: int, body: Any, holds: Array) -> None:
        """Visits a loop, or what the blocks or threads along an axis execute.

        Args:
            variable: Its variable.
            start: The first value of that.
            extent: How many values that has.
            body: The statement in it.
            holds: Where it runs.
        """
        self.value.ranges[variable] = (np.arange(extent) + start).reshape([extent, *[1] * self.depth])
        self.depth += 1
        self.statement(body, holds)
        self.depth -= 1

    def _bind(self, node: Any, holds: Array) -> None:
        """Judges the value of a variable, and remembers it if it is known."""
        self._expression(node.value, holds)
        try:
            self.value.ranges[node.var] = self.value(node.value)
        except UnsupportedFunction:
            self.value.ranges.pop(node.var, None)

    def _branches(self, node: Any, holds: Array) -> None:
        self._expression(node.condition, holds)
        try:
            condition = self.value(node.condition)
        except UnsupportedFunction:  # either may be taken
            condition, opposite = ALWAYS, ALWAYS
        else:
            opposite = np.logical_not(condition)
        self.statement(node.then_case, np.logical_and(holds, condition))
        if node.else_case is not None:
            self.statement(node.else_case, np.logical_and(holds, opposite))

    def _expression(self, node: Any, holds: Array) -> None:
        """Judges the loads in an expression. The branch of a condition is evaluated only where it is taken."""
        if intrinsic(node) == "if_then_else":
            condition, then, otherwise = node.args
            self._expression(condition, holds)
            try:
                taken = self.value(condition)
            except UnsupportedFunction:
                return
            self._expression(then, np.logical_and(holds, taken))
            self._expression(otherwise, np.logical_and(holds, np.logical_not(taken)))
            return
        if isinstance(node, prim.And):
            self._expression(node.a, holds)
            try:
                holds = np.logical_and(holds, self.value(node.a))
            except UnsupportedFunction:
                return
            self._expression(node.b, holds)
            return
        if isinstance(node, prim.Let):
            self._bind(node, holds)
            self._expression(node.body, holds)
            return
        if isinstance(node, TensorLoad):
            self.access("loads", node.source, node.indices, holds)
        if isinstance(node, prim.Ramp | prim.Broadcast):
            self._expression(node.base if isinstance(node, prim.Ramp) else node.value, holds)
            return
        if isinstance(node, prim.Shuffle):
            for each in node.vectors:
                self._expression(each, holds)
            return
        for each in children(node):
            self._expression(each, holds)

    def access(self, verb: str, buffer: Any, indices: Any, holds: Array) -> None:
        """Judges a load or a store.

        Args:
            verb: What a kernel does: "loads" or "stores".
            buffer: The buffer.
            indices: The indices, of which the last may be a `Ramp`.
            holds: Where it is done.
        """
        for index, extent in zip(indices, buffer.shape, strict=True):
            lanes = 0
            if isinstance(index, prim.Ramp):
                lanes, index = int(index.stride) * (int(index.lanes) - 1), index.base
            try:
                first = self.value(index)
            except UnsupportedFunction:
                continue
            low, high = np.minimum(first, first + lanes), np.maximum(first, first + lanes)
            if np.any(np.logical_and(holds, np.logical_or(low < 0, high >= int(extent)))):
                taken, lows, highs = np.broadcast_arrays(holds, low, high)
                self.lines.append(
                    f"{self._kernel} {verb} {buffer.name}[{lows[taken].min()}] to [{highs[taken].max()}],"
                    f" which has {int(extent)} elements"
                )
