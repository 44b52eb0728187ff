"""Workloads: what is tuned, one function with static shapes of which some inputs are constant."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir import Call, Range, TensorLoad, Var
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from ..errors import UnsupportedFunction
from . import reference
from .contractions.contraction import Contraction, find_contraction
from .dtypes import BFLOAT16, FLOAT16, is_float, limits
from .expressions import as_type, children, intrinsic, is_selection, rebuild, rewrite_loads, transform, walk
from .kept import kept
from .stages import Axis, Buffer, Stage, StageGraph, intermediate, shape_of, variable

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and element type of an input or an output."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """The size of the tensor in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, eq=False, repr=False)
class Workload:
    """A function to tune, in normal form: symbol "main", no tuning attributes, canonical names.

    Two workloads are the same if their `text` is. `Workload.create` brings a function into normal form.

    Attributes:
        name: What users call it.
        function: The function in normal form.
        constants: The positions of the inputs whose values are known when the kernel is built (weights). A sketch may
            lay them out anew ahead of time.
        arguments: The arguments of the operator that made the workload, by name; empty for other functions.
    """

    name: str
    function: PrimFunc
    constants: tuple[int, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Workload({self.name!r})"

    @classmethod
    def create(
        cls,
        name: str,
        function: PrimFunc,
        constants: Sequence[int] = (),
        arguments: dict[str, Any] | None = None,
    ) -> Workload:
        """Brings a TensorIR function into normal form.

        Args:
            name: What users call it.
            function: A function that is a sequence of loop nests, each around one plain block.
            constants: The positions of the inputs whose values are known when the kernel is built.
            arguments: The arguments of the operator that made the function, by name.

        Raises:
            UnsupportedFunction: The function has another form; it holds 64-bit integers; it holds an operation that
                the NumPy reference does not know; or there is no input at one of the positions in `constants`.
        """
        graph = StageGraph.parse(function)
        reference.check_supported(graph)
        wide = [str(stage.buffer.name) for stage in graph.stages if str(stage.buffer.dtype) == "int64"]
        if wide:
            raise UnsupportedFunction(f"{wide[0]} holds 64-bit integers: use 32 bits")
        workload = cls(name, canonical(graph).function(), tuple(sorted(constants)), dict(arguments or {}))
        bad = [index for index in workload.constants if not 0 <= index < len(workload.inputs)]
        if bad:
            raise UnsupportedFunction(f"constant inputs {bad} of a function with {len(workload.inputs)} inputs")
        return workload

    @cached_property
    def graph(self) -> StageGraph:
        """The function, parsed into its stages."""
        return StageGraph.parse(self.function)

    @property
    @kept
    def contraction(self) -> Contraction:
        """The contraction of the function, with all that sketches ask of it: found once.

        Raises:
            UnsupportedFunction: The function does not have exactly one, or it has one spatial axis only.
        """
        return find_contraction(self.graph, self.constants)

    @cached_property
    def text(self) -> str:
        """The canonical text of the function and its constants: equal texts are equal workloads."""
        return f"# constants: {list(self.constants)}\n{self.function.script()}"

    @cached_property
    def key(self) -> str:
        """A hexadecimal digest of `text`, stable across processes and machines."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:20]

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs, in the order of the function's parameters."""
        return tuple(_spec(buffer) for buffer in self.graph.inputs)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the order of the function's parameters."""
        return tuple(_spec(buffer) for buffer in self.graph.outputs)

    @cached_property
    def flops(self) -> float:
        """Floating-point operations of one execution: additions, multiplications, comparisons, intrinsics."""
        return float(sum(_operations(stage) for stage in self.graph.stages))

    @cached_property
    def bytes(self) -> float:
        """Bytes that one execution must move at least: every input and output once."""
        return float(sum(spec.bytes for spec in (*self.inputs, *self.outputs)))

    def placed(self, offset: int, total: int) -> Workload:
        """The same function, which writes its output into a slice of a wider tensor and leaves the rest alone.

        Before:     y[i, j] = ...            with j < 64
        After:      y[i, offset + j] = ...   with y's last axis of length `total`

        Args:
            offset: Where on the last axis of the wider tensor the slice begins.
            total: The length of that axis.

        Raises:
            UnsupportedFunction: The function has several outputs, or reads its output.
        """
        (output, *others) = self.graph.outputs
        if others or self.graph.readers(output):
            raise UnsupportedFunction(f"{self.name} cannot write into a slice of its output")
        wide = intermediate(str(output.name), (*shape_of(output)[:-1], total), str(output.dtype))
        parameters = tuple(wide if buffer.same_as(output) else buffer for buffer in self.graph.parameters)

        def shifted(stage: Stage) -> Stage:
            if not stage.buffer.same_as(output):
                return stage
            return replace(stage, buffer=wide, indices=(*stage.indices[:-1], stage.indices[-1] + offset))

        stages = tuple(shifted(stage) for stage in self.graph.stages)
        return Workload(self.name, StageGraph(parameters, stages).function(), self.constants, self.arguments)

    def random_inputs(self, seed: int) -> list[Array]:
        """Inputs from a seeded generator, in the order of `inputs`.

        Floats are small integers from -3 to 3, because sums of them are exact in float32 in any order. If the function
        itself rounds, they are real numbers from -1 to 1, or from 0.5 to 1.5 if an operation is not defined for all
        numbers. Integers are 0 to 3, booleans 0 or 1. Bytes that are summed up in integers have all values of their
        type. If the function rounds the sums, they have those up to 3 from their zero point, because larger sums would
        all be clipped. Codes of weight-only quantisation have all values of their type.
        """
        rng = np.random.default_rng(seed)
        kind = reference.input_kind(self.graph)
        points = reference.zero_points(self.graph)
        zero = {str(buffer.name): points.get(buffer, 0) for buffer in self.graph.inputs}
        codes = {str(buffer.name) for buffer in reference.codes(self.graph)}

        def values(spec: TensorSpec) -> Array:
            if spec.dtype == "bool":
                return rng.integers(0, 2, size=spec.shape, dtype=np.int8).astype(bool)
            if spec.name in codes:
                limits = np.iinfo(spec.dtype)
                return rng.integers(limits.min, limits.max, size=spec.shape, dtype=spec.dtype, endpoint=True)
            if spec.dtype in {"int8", "uint8"} and reference.sums_integers(self.graph):
                limits = np.iinfo(spec.dtype)
                least, most = limits.min, limits.max
                if kind != "integers":
                    middle = min(max(zero[spec.name], least), most)
                    least, most = max(least, middle - 3), min(most, middle + 3)
                return rng.integers(least, most, size=spec.shape, dtype=spec.dtype, endpoint=True)
            if not is_float(spec.dtype):
                return rng.integers(0, 4, size=spec.shape, dtype=np.int8).astype(spec.dtype)
            if kind == "integers":
                return rng.integers(-3, 4, size=spec.shape, dtype=np.int8).astype(spec.dtype)
            low, high = (0.5, 1.5) if kind == "positive" else (-1.0, 1.0)
            return rng.uniform(low, high, size=spec.shape).astype(spec.dtype)

        return [values(spec) for spec in self.inputs]

    def reference(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for some inputs, computed by NumPy.

        Raises:
            ValueError: An input has another shape than its parameter.
        """
        return reference.evaluate_graph(self.graph, inputs)

    def reference_with_ties(self, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """The outputs for some inputs, and what they may be instead where values are near a tie of a rounding.

        See `reference.evaluate_ties`.
        """
        return reference.evaluate_ties(self.graph, inputs)

    def tolerance(self, outputs: Sequence[Array]) -> float:
        """The greatest max|difference| / max|reference| of a right kernel.

        Args:
            outputs: The reference for inputs from `random_inputs`.

        Returns:
            0 (bit-identical) if the function computes with integers only, or if integers stay exact in float32; else
            1e-4, or one step of an output that was rounded to integers, or of a type with fewer digits to which the
            function rounds.
        """
        largest = [float(np.max(np.abs(output), initial=0.0)) for output in outputs]
        if reference.is_exact(self.graph) and (self._integer or all(value < 2**24 for value in largest)):
            return 0.0
        steps = [1 / value for value, spec in zip(largest, self.outputs, strict=True) if value and "int" in spec.dtype]
        return max([1e-4, self.step, *steps])

    def tolerance_of(self, max_error: float, otherwise: float) -> float:
        """The greatest max|difference| / max|reference| of a kernel that a sketch makes.

        Args:
            max_error: The error of the sketch; 0 if its schedules only reorder.
            otherwise: The tolerance of a schedule that only reorders. If one computes in another way, numbers that are
                nearly equal may also be rounded to neighbours.
        """
        return max(otherwise, max_error + self.step) if max_error else otherwise

    @property
    def step(self) -> float:
        """The distance from 1 to the next number, in the type with the fewest digits that the function rounds to.

        It is 0 without floats. An output of float32 may be a sum of what was rounded to 16 bits.
        """
        outputs = (float(limits(spec.dtype).eps) for spec in self.outputs if is_float(spec.dtype))
        return max(step_inside(self.graph), *outputs, 0.0)

    @property
    def _integer(self) -> bool:
        """Whether no stage computes with floats."""
        buffers = [*self.graph.inputs, *(stage.buffer for stage in self.graph.stages)]
        return not any(is_float(str(buffer.dtype)) for buffer in buffers)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "function": to_json_graph_str(self.function),
            "constants": self.constants,
            "arguments": self.arguments,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "function": from_json_graph_str(state["function"])})


def step_inside(graph: StageGraph) -> float:
    """The distance from 1 to the next number, in the type of 16 bits to which a function rounds what it computes with.

    Args:
        graph: The function.

    Returns:
        The distance of the type with the fewest digits; 0 if only results are rounded.

    Example:
        >>> from stormdrop import operators
        >>> step_inside(operators.matmul(8, 8, 8, dtype="bfloat16").graph)
        0.0
        >>> step_inside(operators.attention(1, 8, 8, 8, 8, dtype="bfloat16").graph)  # of the weights
        0.0078125
    """
    steps = [0.0]
    for stage in graph.stages:
        result = stage.value if stage.buffer in graph.outputs else None
        casts = (node for node in walk(stage.value) if isinstance(node, prim.Cast) and node is not result)
        steps += [float(limits(dtype).eps) for cast in casts if (dtype := str(cast.ty.dtype)) in (FLOAT16, BFLOAT16)]
    return max(steps)


def _spec(buffer: Buffer) -> TensorSpec:
    return TensorSpec(str(buffer.name), shape_of(buffer), str(buffer.dtype))


def _operations(stage: Stage) -> int:
    """Operations of a stage over all its axes. Index arithmetic is free, a combination counts as one."""
    per_element = 0 if stage.combine is None else 1
    pending = [stage.value]
    while pending:
        node = pending.pop()
        kind = type(node).__name__
        if kind == "TensorLoad":
            continue
        if kind in {"Add", "Sub", "Mul", "Div", "Max", "Min"} or (kind == "Call" and not is_selection(node)):
            per_element += 1
        operands = children(node)
        if is_selection(node):
            operands = operands[1:]  # the condition is free
        pending += operands
    return per_element * math.prod(axis.extent for axis in stage.axes)


def canonical_stages(function: PrimFunc) -> StageGraph | None:
    """The stages of a function in normal form; None if it is no sequence of plain loop nests."""
    try:
        return canonical(StageGraph.parse(function))
    except UnsupportedFunction:
        return None


def canonical(graph: StageGraph) -> StageGraph:
    """The same stages under names that depend on nothing but their order, with indices of 32 bits."""
    buffers: dict[Any, Buffer] = {}
    inputs, outputs = graph.inputs, graph.outputs
    for prefix, parameters in (("x", inputs), ("y", outputs)):
        for position, buffer in enumerate(parameters):
            buffers[buffer] = intermediate(f"{prefix}{position}", shape_of(buffer), str(buffer.dtype))
    for position, stage in enumerate(graph.stages):
        if stage.buffer not in buffers:
            buffers[stage.buffer] = intermediate(f"t{position}", shape_of(stage.buffer), str(stage.buffer.dtype))
    stages = []
    for position, stage in enumerate(graph.stages):
        axes = tuple(
            Axis(variable(f"{'r' if axis.reduce else 'i'}{number}"), axis.extent, axis.reduce)
            for number, axis in enumerate(stage.axes)
        )
        renamed = {old.var: new.var for old, new in zip(stage.axes, axes, strict=True)}

        def value(node: Any, renamed: dict[Any, Any] = renamed, axes: Sequence[Axis] = axes) -> Any:
            narrow = transform(_narrowed(node, renamed), lambda item: _without_width(item, axes))
            return rewrite_loads(narrow, lambda load: buffers[load.source][tuple(load.indices)])

        def index(node: Any, renamed: dict[Any, Any] = renamed) -> Any:
            return _as_index(_narrowed(node, renamed))

        stages.append(
            Stage(
                f"s{position}",
                axes,
                buffers[stage.buffer],
                tuple(index(node) for node in stage.indices),
                value(stage.value),
                stage.combine,
                None if stage.identity is None else value(stage.identity),
            )
        )
    return StageGraph(tuple(buffers[buffer] for buffer in (*inputs, *outputs)), tuple(stages))


def _narrowed(node: Any, renamed: dict[Any, Any]) -> Any:
    """The expression with its variables renamed, and with 64-bit index arithmetic (of Relax) in 32 bits.

    Only what is computed from variables and constants alone becomes narrower. Other values keep their width.
    """
    if isinstance(node, Var):
        return renamed[node]
    if isinstance(node, TensorLoad):
        return node.source[tuple(_as_index(_narrowed(index, renamed)) for index in node.indices)]
    if isinstance(node, prim.Cast) and str(node.ty.dtype) == "int64":
        inner = _narrowed(node.value, renamed)
        is_index = not any(isinstance(item, TensorLoad) for item in walk(inner))
        return inner if is_index and str(inner.ty.dtype) == "int32" else prim.Cast("int64", inner)
    operands = [_narrowed(operand, renamed) for operand in children(node)]
    if isinstance(node, prim.Select | Call):
        branches = slice(1, 3)
        operands[branches] = _same_width(operands[branches])
    elif len(operands) == 2:
        operands = _same_width(operands)
    if intrinsic(node) == "if_then_else":
        return Call(node.op, operands, attrs=node.attrs, ret_ty=operands[1].ty)
    return rebuild(node, operands) if operands else node


def _without_width(node: Any, axes: Sequence[Axis]) -> Any | None:
    """A float that is computed from codes in 64 bits, because Relax has indices of 64 bits, from codes in 32 bits.

    An index that shifts a code makes 64 bits of it, and of all that is computed from it.
    """
    if not isinstance(node, prim.Cast) or str(node.ty.dtype) != "float32" or str(node.value.ty.dtype) != "int64":
        return None
    analyzer = Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, Range(0, axis.extent))
    narrow = _in_32_bits(node.value, analyzer)
    return None if narrow is None else prim.Cast("float32", narrow)


def _in_32_bits(node: Any, analyzer: Analyzer) -> Any | None:
    """An integer of 64 bits in 32 bits; None unless all that it is computed from fits them."""
    if isinstance(node, IntImm):
        return IntImm("int32", int(node)) if abs(int(node)) < 2**31 else None
    if isinstance(node, prim.Cast):
        return node.value if str(node.value.ty.dtype) == "int32" else None
    if not isinstance(node, prim.RShift | prim.BitwiseAnd | prim.Add | prim.Sub):
        return None
    left, right = _in_32_bits(node.a, analyzer), _in_32_bits(node.b, analyzer)
    if left is None or right is None:
        return None
    if isinstance(node, prim.RShift):
        least, most = _bounds(right, analyzer)
        return left >> right if least >= 0 and most < 32 else None
    largest = max(abs(bound) for operand in (left, right) for bound in _bounds(operand, analyzer))
    return rebuild(node, [left, right]) if isinstance(node, prim.BitwiseAnd) or largest < 2**30 else None


def _bounds(node: Any, analyzer: Analyzer) -> tuple[int, int]:
    bound = analyzer.const_int_bound(node)
    return int(bound.min_value), int(bound.max_value)


def _same_width(operands: list[Any]) -> list[Any]:
    """Operands of the same integer type: 64-bit constants become narrower if they fit, else all have 64 bits."""
    if {str(operand.ty.dtype) for operand in operands} != {"int32", "int64"}:
        return operands
    wide = [operand for operand in operands if str(operand.ty.dtype) == "int64"]
    narrow = all(isinstance(operand, IntImm) and -(2**31) <= int(operand) < 2**31 for operand in wide)
    return [_as_index(operand) if narrow else as_type(operand, "int64") for operand in operands]


def _as_index(node: Any) -> Any:
    return IntImm("int32", int(node)) if isinstance(node, IntImm) else node
