"""Executes the program of a model in this process: prepared calls of kernels, with memory of their own.

    memory          storage and outputs of a size, in one piece; constants are shared by all executions
    tensors         a structure for each view, which says where it lies; that of an input is set in each call
    arguments       pointers to these structures, for each step
    steps           kernel, arguments, how many: what `run_steps` walks through

All of it is made once. A call sets where the inputs are, runs the steps, and copies the outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np

from ...errors import ModelError
from ...runtime.calls import Observer
from ...runtime.inputs import Array, check_memory
from ...runtime.open_size import Cut, in_even_steps
from ...runtime.parts import RunPart
from ...runtime.program import SizeProgram, State, Step, View, bits_of, bytes_of, offsets_of
from ...runtime.sizes import OPEN
from .compiled import CompiledProgram
from .memory import aligned_memory
from .run_steps import ENTRY_BYTES, function_of, run_steps_of

_TENSOR = np.dtype(
    [
        ("data", "u8"), ("device", "i4"), ("device_id", "i4"), ("dimensions", "i4"), ("code", "u1"), ("bits", "u1"),
        ("lanes", "u2"), ("shape", "u8"), ("strides", "u8"), ("offset", "u8"),
    ]
)  # fmt: skip
"""DLPack's DLTensor."""

_ARGUMENT = np.dtype([("type", "i4"), ("padding", "u4"), ("value", "u8")])
"""TVM's TVMFFIAny."""

_STEP = np.dtype([("kernel", "u8"), ("arguments", "u8"), ("count", "u8")])
assert _STEP.itemsize == ENTRY_BYTES

_CPU, _DLTENSOR = 1, 7
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


class Kernels:
    """The kernels of a program, found in its modules.

    Args:
        compiled: The program.

    Attributes:
        run_steps: The function that calls them.

    Raises:
        LookupError: No module has a kernel of this name.
    """

    def __init__(self, compiled: CompiledProgram) -> None:
        self.run_steps = run_steps_of(compiled.modules)
        self._functions = {name: function_of(compiled.modules, name) for name in compiled.kernels}
        self.addresses = {name: int(each.__chandle__()) for name, each in self._functions.items()}


class Execution:
    """One size of a program, ready to be executed by one caller at a time.

    Args:
        compiled: The program.
        kernels: Its kernels.
        size: The program of the size.
        cuts: The constants that it needs besides those of the model.
        run_part: Runs the parts that kernels do not compute.
        observer: Is told of each step.
        outside: The states whose outputs have the caller's memory.
    """

    def __init__(
        self,
        compiled: CompiledProgram,
        kernels: Kernels,
        size: SizeProgram,
        cuts: Sequence[Cut] = (),
        run_part: RunPart | None = None,
        observer: Observer | None = None,
        outside: Sequence[State] = (),
    ) -> None:
        self._size = size
        self._states, self._outside = outside, [state.output for state in outside]
        self._placed: Sequence[Array] = ()
        self._kernels, self._run_part, self._observer = kernels, run_part, observer
        outputs = [
            0 if index in self._outside else bytes_of(info.shape, info.dtype)
            for index, info in enumerate(self._size.outputs)
        ]
        blocks = [*self._size.storage, *outputs]
        *offsets, total = offsets_of(blocks)
        memory = aligned_memory(total)
        pieces = [memory[begin : begin + length] for begin, length in zip(offsets, blocks, strict=True)]
        self._pieces = {
            "storage": pieces[: len(self._size.storage)],
            "output": pieces[len(self._size.storage) :],
            "constant": [*compiled.constants, *(_cut(compiled, cut) for cut in cuts)],
        }
        self._arrays = [self._array(view) for view in self._size.views]
        self.outputs = [
            None if OPEN in info.shape or index in self._outside else _array_in(memory, bytes_, info.shape, info.dtype)
            for index, (memory, bytes_, info) in enumerate(
                zip(self._pieces["output"], outputs, self._size.outputs, strict=True)
            )
        ]
        self._prepare()

    def _array(self, view: View) -> Array | None:
        """The array of a view, if it is known before a call."""
        if view.memory == "input" or OPEN in view.shape or self._is_outside(view):
            return None
        return _array_in(self._pieces[view.memory][view.index][view.offset :], view.bytes, view.shape, view.dtype)

    def _is_outside(self, view: View) -> bool:
        return view.memory == "output" and view.index in self._outside

    def _prepare(self) -> None:
        """Makes the structures of tensors, arguments and steps."""
        views, steps = self._size.views, self._size.steps
        shapes = list(itertools.chain.from_iterable((*view.shape, *_strides(view.shape)) for view in views))
        self._shapes = np.array(shapes, np.int64)
        tensors, begin = [], _address(self._shapes)
        for view, array in zip(views, self._arrays, strict=True):
            rank, code = len(view.shape), _CODES[view.dtype.rstrip("0123456789")]
            address = 0 if array is None else _address(array)
            strides = begin + 8 * rank
            tensors.append((address, _CPU, 0, rank, code, bits_of(view.dtype), 1, begin, strides, 0))
            begin = strides + 8 * rank
        self._tensors = np.array(tensors, _TENSOR)
        self._data = self._tensors["data"]
        self._inputs: list[list[int]] = [[] for _ in self._size.inputs]
        for position, view in enumerate(views):
            if view.memory == "input":
                self._inputs[view.index].append(position)
        positions = [position for step in steps for position in step.arguments]
        self._arguments = np.zeros(len(positions), _ARGUMENT)
        self._arguments["type"] = _DLTENSOR
        self._arguments["value"] = _address(self._tensors) + np.array(positions, np.int64) * _TENSOR.itemsize
        entries, argument = [], _address(self._arguments)
        for step in steps:
            entries.append((self._kernels.addresses.get(step.name, 0), argument, len(step.arguments)))
            argument += len(step.arguments) * _ARGUMENT.itemsize
        self._steps = np.array(entries, _STEP)
        self._first = _address(self._steps)
        self._runs = _runs(steps)

    def place(self, arrays: Sequence[Array]) -> None:
        """Gives the outputs outside their memory, for the executions that follow.

        Args:
            arrays: An array for each of them: contiguous, and aligned as views are. Nothing else of them is kept than
                this object, so that whoever owns it can empty it.

        Raises:
            ValueError: One is of another shape, or begins where kernels cannot write it.
        """
        if arrays is self._placed:
            return
        addresses = dict(zip(self._outside, map(_address, arrays), strict=True))
        for state, array in zip(self._states, arrays, strict=True):
            check_memory(state, array, self._size.outputs[state.output].shape)
        for position, view in enumerate(self._size.views):
            if self._is_outside(view):
                self._data[position] = addresses[view.index]
        self._placed = arrays

    def run(self, addresses: Sequence[int], inputs: Sequence[Array]) -> Sequence[Array]:
        """Executes the program.

        Args:
            addresses: Where each input begins.
            inputs: The inputs as arrays.

        Returns:
            The outputs but for those outside. Their memory is that of the next execution, too.

        Raises:
            Exception: Whatever a kernel, a part or the observer raises.
        """
        data = self._data
        for positions, address in zip(self._inputs, addresses, strict=True):
            for position in positions:
                data[position] = address
        if self._observer is not None:
            return self._observed(inputs)
        run_steps = self._kernels.run_steps
        made: dict[int, Array] = {}
        for begin, count in self._runs:
            if count:
                run_steps(self._first + begin * ENTRY_BYTES, count)
            else:
                self._other(self._size.steps[begin], inputs, made)
        return self._results(made)

    def _observed(self, inputs: Sequence[Array]) -> Sequence[Array]:
        made: dict[int, Array] = {}
        assert self._observer is not None
        for position, step in enumerate(self._size.steps):

            def arguments(step: Step = step) -> list[Array]:
                return [each for view in step.arguments if (each := self._argument(view, inputs, made)) is not None]

            self._observer(step, True, arguments)
            if step.kind == "kernel":
                self._kernels.run_steps(self._first + position * ENTRY_BYTES, 1)
            else:
                self._other(step, inputs, made)
            self._observer(step, False, arguments)
        return self._results(made)

    def _other(self, step: Step, inputs: Sequence[Array], made: dict[int, Array]) -> None:
        """Runs a step that is no kernel."""
        read = [self._argument(view, inputs, made) for view in step.reads]
        assert all(array is not None for array in read)
        if step.kind == "copy":
            (target,) = step.writes
            written = self._argument(target, inputs, made)
            assert written is not None
            np.copyto(written, read[0].reshape(written.shape), casting="no")  # type: ignore[union-attr]
            return
        if self._run_part is None:
            raise RuntimeError(f"part {step.name} of a program needs somebody who runs it")
        memory = [self._argument(view, inputs, made) for view in step.writes]
        results = self._run_part(int(step.name), read, memory)  # type: ignore[arg-type]
        for view, array, result in zip(step.writes, memory, results, strict=True):
            if array is None:
                made[self._size.views[view].index] = result
            elif result is not array:
                if result.shape != array.shape:
                    raise ModelError(f"part {step.name} makes a result of shape {result.shape}, not {array.shape}")
                np.copyto(array, result, casting="no")

    def _argument(self, position: int, inputs: Sequence[Array], made: Mapping[int, Array]) -> Array | None:
        """A view as an array; None for an output whose part has not run yet."""
        view = self._size.views[position]
        if view.memory == "input":
            return inputs[view.index].reshape(view.shape)
        if self._is_outside(view):
            array: Array = self._placed[self._outside.index(view.index)].reshape(view.shape)
            return array
        return made.get(view.index) if OPEN in view.shape else self._arrays[position]

    def _results(self, made: Mapping[int, Array]) -> Sequence[Array]:
        outputs = enumerate(self.outputs)
        return [made[index] if array is None else array for index, array in outputs if index not in self._outside]


def _cut(compiled: CompiledProgram, cut: Cut) -> Array:
    """The bytes of the first part of a constant, or of one like it."""
    whole = compiled.program.constants[cut.constant]
    if cut.steps:
        part = in_even_steps(cut.shape, cut.steps, whole.dtype)
    else:
        array = _array_in(compiled.constants[cut.constant], whole.bytes, whole.shape, whole.dtype)
        part = array[tuple(slice(extent) for extent in cut.shape)]
    memory = aligned_memory(part.nbytes)
    memory[:] = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return memory


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _array_in(memory: Array, size: int, shape: tuple[int, ...], dtype: str) -> Array:
    return memory[:size].view(np.dtype(dtype)).reshape(shape)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements lie between neighbours along each axis."""
    strides = itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1) if shape else ()
    return tuple(reversed(tuple(strides)))


def _runs(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """The steps in groups: the first of several kernels and their number, or a step that is none, and 0."""
    runs: list[tuple[int, int]] = []
    for position, step in enumerate(steps):
        if step.kind != "kernel":
            runs.append((position, 0))
        elif runs and runs[-1][1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return runs
