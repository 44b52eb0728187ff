"""Derives the program of a model from its Relax code, in which all memory is planned.

    main(x):                                          storage 0: 4096 bytes
        s = alloc_storage(4096)
        t = alloc_tensor(s, 0, (1, 1024))
        kernel(x, weights, t)                  ->     kernel(x, c0) -> s0
        r = reshape(t, (32, 32))
        y = alloc_tensor(...)
        kernel2(r, y)                                 kernel2(s0) -> y
        return y

A reshape is another view. What `main` returns is written where the caller wants it. Storage that holds an output only
disappears.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax import backend, transform

from ...errors import ModelError
from ...runtime.program import FUNCTION, Constant, Program, SizeProgram, Step, View, bytes_of
from ...runtime.sizes import OPEN, TensorInfo
from ..artifact.constants_file import begin_of, likeness
from ..graph.expressions import VIEWS, bindings_of, operator_name
from ..passes.legalize import Rule
from ..program.check import check_program
from ..tensors import array_of

_UNKNOWN = -1  # the index of an output that is open, before it is known which one it is


def to_kernels(forms: Mapping[str, Rule] | None = None) -> tvm.transform.Pass:
    """The first part of Relax's own pipeline, after which `main` calls all kernels in the order of an execution.

    Args:
        forms: How operators become kernels that TVM would make for the target itself, as `GPU_FORMS` are for GPUs: in
            their place `main` would call functions of TVM's runtime, or kernels that are scheduled already.
    """
    dispatch = [backend.DispatchSampling(), backend.DispatchSortScan()] if forms is None else []
    return tvm.transform.Sequential([*dispatch, transform.LegalizeOps(forms), transform.RewriteDataflowReshape()])


def with_memory() -> tvm.transform.Pass:
    """The second part, which plans the memory between kernels."""
    return tvm.transform.Sequential(
        [
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            transform.CallTIRRewrite(),
            transform.StaticPlanBlockMemory(),
            transform.LowerAllocTensor(),
        ]
    )


class Main(NamedTuple):
    """A function of a module: a size of a model.

    Attributes:
        name: The name of the function.
        inputs: What it takes.
        outputs: What it gives.
    """

    name: str
    inputs: Sequence[TensorInfo]
    outputs: Sequence[TensorInfo]


def derive_program(mod: tvm.IRModule, mains: Sequence[Main]) -> tuple[Program, list[NDArray[np.uint8]]]:
    """The program of a module, checked.

    Args:
        mod: The module, as `to_kernels` leaves it.
        mains: Its functions, one for each size.

    Returns:
        The program, and the bytes of each of its constants.

    Raises:
        ModelError: A function does something that is no step.
    """
    written = {main.name: _counts_of_outputs(mod[main.name]) for main in mains}
    planned = with_memory()(mod)
    constants = _Constants()
    programs = [_Deriving(planned[main.name], main, written[main.name], constants).program() for main in mains]
    program = Program(constants.places(), tuple(programs))
    check_program(program)
    return program, constants.values


def _counts_of_outputs(main: relax.Function) -> dict[str, int]:
    """How many of its last arguments each kernel, and each part with planned memory, writes."""
    counts = {}
    for binding in bindings_of(main):
        call = binding.value
        if operator_name(call) in ("relax.call_tir", "relax.call_tir_inplace", "relax.call_dps_packed"):
            (result,) = call.ty_args
            counts[_callee(call.args[0])] = len(result.fields) if isinstance(result, relax.TupleType) else 1
    return counts


def _callee(function: Any) -> str:
    return str(function.global_symbol if isinstance(function, relax.ExternFunc) else function.name_hint)


class _Constants:
    """The constants of all sizes, of equal ones one.

    Attributes:
        values: The bytes of each.
    """

    def __init__(self) -> None:
        self.values: list[NDArray[np.uint8]] = []
        self._types: list[tuple[tuple[int, ...], str]] = []
        self._alike: dict[tuple[Any, ...], list[int]] = {}
        self._known: dict[tuple[Any, ...], int] = {}

    def add(self, constant: Any) -> int:
        """The position of a constant."""
        shape, dtype = tuple(map(int, constant.value.shape)), str(constant.value.dtype)
        address = (int(constant.value.data_ptr()), shape, dtype)
        if address not in self._known:
            self._known[address] = self._added(shape, dtype, array_of(constant).reshape(-1).view(np.uint8))
        return self._known[address]

    def _added(self, shape: tuple[int, ...], dtype: str, data: NDArray[np.uint8]) -> int:
        alike = self._alike.setdefault(likeness(shape, dtype, data), [])
        for position in alike:
            if np.array_equal(self.values[position], data):
                return position
        alike.append(len(self.values))
        self.values.append(data)
        self._types.append((shape, dtype))
        return alike[-1]

    def places(self) -> tuple[Constant, ...]:
        """Where each one lies."""
        end, places = 0, []
        for (shape, dtype), value in zip(self._types, self.values, strict=True):
            begin = begin_of(end, value.nbytes)
            places.append(Constant(begin, shape, dtype))
            end = begin + value.nbytes
        return tuple(places)


@dataclass
class _Deriving:
    """What is known while the program of a function is derived."""

    function: relax.Function
    main: Main
    counts: Mapping[str, int]
    constants: _Constants
    storage: list[int] = field(default_factory=list)
    steps: list[tuple[str, str, list[View], list[View]]] = field(default_factory=list)
    values: dict[Any, Any] = field(default_factory=dict)  # of variables: a view, a tuple of them, the index of a block
    tensors: Any = field(default_factory=itertools.count)

    def program(self) -> SizeProgram:
        for index, (variable, info) in enumerate(zip(self.function.params, self.main.inputs, strict=True)):
            self.values[variable] = View("input", index, 0, info.shape, info.dtype, next(self.tensors))
        for binding in bindings_of(self.function):
            if not isinstance(binding, relax.VarBinding):
                raise ModelError(f"{type(binding).__name__} is no step of a program")
            self.values[binding.var] = self._value(binding.value)
        result = self._value(self.function.body.body)
        self._return(list(result) if isinstance(result, tuple) else [result])
        return self._numbered()

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(each) for each in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[expr.index]
        if isinstance(expr, tvm.ir.GenericConst):
            index = self.constants.add(expr)
            shape, dtype = tuple(map(int, expr.value.shape)), str(expr.value.dtype)
            return View("constant", index, 0, shape, dtype, -1 - index)
        if isinstance(expr, relax.Call):
            return self._call(expr)
        raise ModelError(f"{type(expr).__name__} is no step of a program")

    def _call(self, call: relax.Call) -> Any:
        operator = operator_name(call)
        if operator == "relax.memory.alloc_storage":
            self.storage.append(_extents(call.args[0])[0])
            return len(self.storage) - 1
        if operator == "relax.memory.alloc_tensor":
            block, offset, shape = self.values[call.args[0]], int(call.args[1].value), _extents(call.args[2])
            return View("storage", block, offset, shape, str(call.args[3].value), next(self.tensors))
        if operator in VIEWS:
            view: View = self._value(call.args[0])
            return replace(view, shape=_extents(call.ty.shape))
        if operator == "relax.call_packed" or operator == "":
            return self._step(call)
        raise ModelError(f"{operator} is no step of a program")

    def _step(self, call: relax.Call) -> Any:
        packed = operator_name(call) == "relax.call_packed"
        name = _callee(call.args[0] if packed else call.op)
        views = [self._value(argument) for argument in (call.args[1:] if packed else call.args)]
        count = self.counts.get(name, 0)
        read, written = (views[: len(views) - count], views[len(views) - count :])
        if not name.startswith(FUNCTION):
            if packed:
                raise ModelError(f"a call of {name} is no step of a program")
            self.steps.append(("kernel", name, read, written))
            return None
        results = () if count else self._made(call)
        self.steps.append(("part", name.removeprefix(FUNCTION), read, [*written, *results]))
        return results[0] if len(results) == 1 else results

    def _made(self, call: relax.Call) -> tuple[View, ...]:
        """What a part makes one of whose outputs depends on data, so that TVM plans no memory for any of them.

        `_return` says which output of the model an open one is.
        """
        types = [each for result in call.ty_args for each in getattr(result, "fields", [result])]
        return tuple(self._result(_sizes(each), str(each.dtype)) for each in types)

    def _result(self, shape: tuple[int, ...], dtype: str) -> View:
        if OPEN in shape:
            return View("output", _UNKNOWN, 0, shape, dtype, next(self.tensors))
        self.storage.append(bytes_of(shape, dtype))
        return View("storage", len(self.storage) - 1, 0, shape, dtype, next(self.tensors))

    def _return(self, results: Sequence[View]) -> None:
        """Puts tensors that are returned into the memory of outputs; what cannot be there is copied."""
        claimed: dict[int, int] = {}
        for index, view in enumerate(results):
            info = self.main.outputs[index]
            whole = view.offset == 0 or view.memory == "storage"
            if view.memory in ("storage", "output") and view.tensor not in claimed and whole:
                claimed[view.tensor] = index
            else:
                target = View("output", index, 0, info.shape, info.dtype, next(self.tensors))
                self.steps.append(("copy", "", [view], [target]))

        def moved(view: View) -> View:
            if view.tensor not in claimed:
                if view.index == _UNKNOWN:
                    raise ModelError("a tensor whose shape depends on data is no output, and nothing else may read it")
                return view
            return replace(view, memory="output", index=claimed[view.tensor], offset=0)

        self.steps = [
            (kind, name, [*map(moved, read)], [*map(moved, written)]) for kind, name, read, written in self.steps
        ]

    def _numbered(self) -> SizeProgram:
        """The program with views as positions, of the blocks that are used."""
        everything = [view for _, _, read, written in self.steps for view in (*read, *written)]
        used = sorted({view.index for view in everything if view.memory == "storage"})
        block = {old: new for new, old in enumerate(used)}
        views: dict[View, int] = {}

        def position(view: View) -> int:
            if view.memory == "storage":
                view = replace(view, index=block[view.index])
            return views.setdefault(view, len(views))

        steps = tuple(
            Step(kind, name, tuple(map(position, read)), tuple(map(position, written)))  # type: ignore[arg-type]
            for kind, name, read, written in self.steps
        )
        storage = tuple(self.storage[old] for old in used)
        return SizeProgram(tuple(self.main.inputs), tuple(self.main.outputs), storage, tuple(views), steps)


def _extents(shape: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in getattr(shape, "values", shape))


def _sizes(kind: Any) -> tuple[int, ...]:
    """The sizes of a tensor's type; -1 for those that depend on data."""
    values = getattr(kind.shape, "values", None)
    if values is None:
        return (OPEN,) * int(kind.ndim)
    return tuple(int(extent) if hasattr(extent, "value") else OPEN for extent in values)
