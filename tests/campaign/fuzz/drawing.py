"""A graph while it is drawn: onnxruntime runs each node at once, so every value is known and every node is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from fuzz.chance import Chance
from fuzz.reference import session
from fuzz.telling import MOST_ELEMENTS, Rejected, require_telling, varies

Array = NDArray[Any]

FLOATS = ("float32",)
INTEGERS = ("int32", "int64")
BYTES = ("int8", "uint8")

_INPUTS = 4
_MARGIN = 2e-3
"""How far from a jump a value must be that rounding may move, relative to the largest one."""

_IR = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10}


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph.

    Attributes:
        name: Its name.
        array: What onnxruntime makes of it on the inputs that were drawn.
        exact: Whether every runtime computes these very bits, so that what jumps at a value may meet a tie.
        constant: Whether it is an initializer or the result of a Constant.
    """

    name: str
    array: Array
    exact: bool
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    @property
    def onnx_type(self) -> int:
        return int(helper.np_dtype_to_tensor_dtype(self.array.dtype))


@dataclass(frozen=True, eq=False)
class Case:
    """A graph and inputs for it.

    Attributes:
        model: The graph.
        feeds: The inputs by name.
    """

    model: onnx.ModelProto
    feeds: dict[str, Array]


class Drawing(Chance):
    """The graph so far.

    Attributes:
        opset: The version of the standard's operators.
        refused: How many nodes onnxruntime did not take.
        tried: How many nodes it was asked for.
    """

    def __init__(self, rng: np.random.Generator, opset: int) -> None:
        super().__init__(rng)
        self.opset = opset
        self.refused = self.tried = 0
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[Value] = []
        self._initializers: list[Value] = []
        self._values: list[Value] = []
        self._read: set[str] = set()
        self._names = 0
        self._domains: set[str] = set()
        self._anything = False

    # Values

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(self._values)

    def given(self, array: Array) -> Value:
        """A new input of the graph."""
        if len(self._inputs) >= _INPUTS:
            raise Rejected("enough inputs")
        value = Value(self._name("input"), array, exact=True)
        self._inputs.append(value)
        self._values.append(value)
        return value

    def constant(self, array: Array | Sequence[Any] | int | float, dtype: str | None = None) -> Value:
        """An initializer; at times the result of a Constant instead."""
        value = Value(self._name("constant"), np.asarray(array, dtype), exact=True, constant=True)
        if self.chance(0.8):
            self._initializers.append(value)
        else:
            tensor = numpy_helper.from_array(value.array, value.name)
            self._nodes.append(helper.make_node("Constant", [], [value.name], value=tensor))
        return value

    def tensor(
        self,
        dtypes: Sequence[str] = FLOATS,
        ranks: Sequence[int] = (0, 1, 2, 3, 4),
        where: Callable[[Value], bool] = lambda _: True,
    ) -> Value:
        """A value of one of these types and ranks: one that is there, reshaped if need be, or a new input."""

        def fits(value: Value) -> bool:
            return value.dtype in dtypes and value.rank in ranks and where(value)

        fitting = [value for value in self._values if fits(value)]
        if fitting and self.chance(0.85):
            # The last ones, and those that nothing has read, make graphs deep.
            weights = np.array([1.0 + 3.0 * (value.name not in self._read) for value in fitting])
            return fitting[int(self.rng.choice(len(fitting), p=weights / weights.sum()))]
        typed = [value for value in self._values if value.dtype in dtypes and value.array.size > 1]
        if typed and self.chance(0.5):
            source = self.choice(typed)
            reshaped = self.reshaped(source, self.factors(source.array.size, self.choice(ranks)))
            if fits(reshaped):
                return reshaped
        for _ in range(10):
            kinds = [kind for kind in dtypes if kind in ("float32", "int32", "int64", "bool", "uint8", "int8")]
            shape = self.shape(self.choice(ranks))
            value = Value("", self.array(shape, self.choice(kinds or dtypes), self.chance(0.9)), exact=True)
            if fits(value):
                return self.given(value.array)
        raise Rejected("no value fits")

    def partner(self, value: Value, dtype: str | None = None, constant: float = 0.4) -> Value:
        """A value that is broadcast with another one."""
        dtype = dtype or value.dtype

        def fits(other: Value) -> bool:
            return other.dtype == dtype and _broadcast(value.shape, other.shape)

        fitting = [other for other in self._values if fits(other) and other is not value]
        if fitting and self.chance(0.4):
            return self.choice(fitting)
        shape = [1 if self.chance(0.3) else extent for extent in value.shape]
        if self.chance(0.3):
            shape = shape[self.integer(0, len(shape)) :]
        elif self.chance(0.1) and len(shape) < 5:
            shape = [self.choice((1, 2, 3)), *shape]
        array = self.array(shape, dtype)
        if self.chance(constant) or len(self._inputs) >= _INPUTS:
            return self.constant(array)
        return self.given(array)

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        return self.add("Reshape", value, self.constant(list(shape), "int64"), exact=value.exact)

    # Nodes

    def add(
        self, operator: str, *inputs: Value | None, exact: bool = False, domain: str = "", **attributes: Any
    ) -> Value:
        """Adds a node of one output; see `add_all`."""
        return self.add_all(operator, inputs, 1, exact=exact, domain=domain, **attributes)[0]

    def add_all(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        outputs: int | Sequence[bool],
        *,
        exact: bool = False,
        domain: str = "",
        captured: Sequence[Value] = (),
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """Adds a node, if onnxruntime takes it.

        Args:
            operator: The operator.
            inputs: Its inputs; None for one that is left out.
            outputs: How many outputs it has, or which of them are wanted.
            exact: Whether it computes the same bits everywhere from inputs that are exact.
            domain: The domain of the operator.
            captured: What its branches and bodies read besides the inputs.
            attributes: None for one that is left out.

        Returns:
            The outputs that are wanted.

        Raises:
            Rejected: onnxruntime does not take it, or a result is not finite, too large, or one value everywhere.
        """
        wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
        names = [self._name(operator.lower()) if want else "" for want in wanted]
        kept = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(
            operator,
            [value.name if value is not None else "" for value in inputs],
            names,
            name=self._names_of_node(operator),
            domain=domain,
            **kept,
        )
        if domain:
            self._domains.add(domain)
        read = [value for value in (*inputs, *captured) if value is not None]
        return self.adopt([node], read, [name for name in names if name], exact=exact)

    def adopt(
        self, nodes: Sequence[onnx.NodeProto], read: Sequence[Value], names: Sequence[str], *, exact: bool = False
    ) -> tuple[Value, ...]:
        """Adds nodes that were made elsewhere, if onnxruntime takes them.

        Args:
            nodes: The nodes.
            read: The values that they read.
            names: The tensors that they make and that others may read.
            exact: As in `add_all`.

        Raises:
            Rejected: As `add_all`.
        """
        unique = {value.name: value for value in read}
        self.tried += 1
        try:
            arrays = self._run(nodes, list(unique.values()), names)
        except Exception as error:
            self.refused += 1
            raise Rejected(f"{nodes[0].op_type}: {str(error)[:300]}") from error
        for array in arrays:
            if not self._anything:
                require_telling(array)
        same = all(value.exact for value in unique.values())
        made = tuple(
            Value(name, array, array.dtype.kind in "iub" or (exact and same))
            for name, array in zip(names, arrays, strict=True)
        )
        self._nodes += nodes
        self._read.update(unique)
        self._values += made
        return made

    @contextmanager
    def anything(self) -> Iterator[None]:
        """Takes results that are not finite, or one value everywhere: something behind them reads them."""
        self._anything = True
        try:
            yield
        finally:
            self._anything = False

    def hide(self, *values: Value) -> None:
        """Nothing further reads these values, which are not useful alone, as the steps inside a pattern."""
        for value in values:
            if value in self._values:
                self._values.remove(value)
                self._read.add(value.name)

    def _run(self, nodes: Sequence[onnx.NodeProto], read: Sequence[Value], names: Sequence[str]) -> list[Array]:
        graph = helper.make_graph(
            nodes,
            "node",
            [self._info(v) for v in read if not v.constant or self.opset < 9],
            [onnx.ValueInfoProto(name=name) for name in names],
            [numpy_helper.from_array(value.array, value.name) for value in read if value.constant],
        )
        running = session(self._model(graph))
        feeds = {value.name: value.array for value in read if not value.constant}
        return [np.asarray(array) for array in running.run(list(names), feeds)]

    # Jumps

    def far(self, value: Value, distance: Array) -> Value:
        """The value, if none of it is near a place where what follows jumps; rounding may move what is not exact.

        Args:
            value: What is read.
            distance: How far each element is from the nearest jump, in its own unit.
        """
        largest = max(1.0, float(np.abs(value.array.astype(np.float64)).max(initial=0.0)))
        if not value.exact and distance.size and float(distance.min()) < _MARGIN * largest:
            raise Rejected("a value that is rounded is near a jump")
        return value

    def without_ties(self, value: Value, axis: int | None = None) -> Value:
        """The value, if what orders its elements does not depend on rounding."""
        if value.exact or value.array.size < 2:
            return value
        ordered = np.sort(value.array.astype(np.float64), axis=axis)
        return self.far(value, np.diff(ordered, axis=-1 if axis is None else axis))

    # The end

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Forgets what was added if it is rejected."""
        lists = (self._nodes, self._inputs, self._initializers, self._values)
        lengths, read, values = [len(each) for each in lists], set(self._read), list(self._values)
        try:
            yield
        except Rejected:
            for each, length in zip(lists, lengths, strict=True):
                del each[length:]
            self._values[:] = values
            self._read = read
            raise

    def finish(self) -> Case:
        """The graph, whose outputs are what nothing reads, and at times something else."""
        made = [value for value in self._values if not any(value is given for given in self._inputs)]
        leaves = [value for value in made if value.name not in self._read]
        others = [value for value in made if value.name in self._read]
        outputs = leaves[-4:]
        if others and self.chance(0.3):
            outputs.insert(self.integer(0, len(outputs)), self.choice(others))
        if not any(varies(value.array) for value in outputs):
            raise Rejected("all outputs are constant")
        initializers = [numpy_helper.from_array(value.array, value.name) for value in self._initializers]
        inputs = [*self._inputs]
        if self.opset < 9 or self.chance(0.05):  # as older versions of the format had to
            inputs += self._initializers
        graph = helper.make_graph(
            self._nodes,
            "fuzz",
            [self._info(value) for value in inputs],
            [self._info(value) for value in outputs],
            initializers,
        )
        return Case(self._model(graph), {value.name: value.array for value in self._inputs})

    @staticmethod
    def _info(value: Value) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(value.name, value.onnx_type, value.shape)

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        domains = [
            helper.make_opsetid("", self.opset),
            *(helper.make_opsetid(name, 1) for name in sorted(self._domains)),
        ]
        return helper.make_model(graph, opset_imports=domains, ir_version=_IR.get(self.opset, 11))

    def inner_name(self, stem: str) -> str:
        """A name for something inside a branch or a body."""
        return self._name(stem)

    def _name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}_{self._names}"

    def _names_of_node(self, operator: str) -> str:
        return self._name(f"node/{operator}") if self.chance(0.5) else ""


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    pairs = zip(reversed(one), reversed(other), strict=False)
    if not all(a == b or 1 in (a, b) for a, b in pairs):
        return False
    return int(np.prod(np.broadcast_shapes(one, other))) <= MOST_ELEMENTS
