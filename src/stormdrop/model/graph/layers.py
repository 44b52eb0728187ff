"""Which layers of its model each kernel call of a graph computes; follows them through rewrites of Relax code.

Passes keep a variable where they replace what it is bound to. If its type changes, the new variable has the span of the
former one, so `numbered` numbers the variables in their spans. The fusion alone gives everything new variables: it is
run once more on marked calls, to see which of them it unites.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import tvm
from tvm import relax

from ..artifact.layers import KernelCall, Layer
from .expressions import VIEWS, bindings_of, calls_kernel, operator_name, variables_of
from .flow import Flow, Marks, Value, followed

T = TypeVar("T")

_MARK = "stormdrop.binding"
_CALLS = tuple(f"relax.{name}" for name in ("call_tir", "call_tir_inplace", "call_dps_packed", "call_pure_packed"))
"""The operators whose first argument is the function that is called."""
_SOURCE = tvm.ir.SourceName("stormdrop")
_NUMBERS = itertools.count(1)
"""Numbers of variables, which no two modules of a process share."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model, and which of them the calls of a graph compute.

    Attributes:
        all: The layers, in the order of the model.
        calls: For each call of a kernel or of an onnxruntime part in `main`, in order, the positions of its layers. A
            layer in no call was folded away: it computes a constant, or moves nothing.
    """

    all: tuple[Layer, ...] = ()
    calls: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, layers: Sequence[Layer], mod: tvm.IRModule, marks: Mapping[Hashable, frozenset[int]]) -> Layers:
        """The layers of a module whose variables are marked."""
        found = (marks.get(key_of(binding.var), frozenset()) for binding in computing(mod))
        return cls(tuple(layers), tuple(tuple(sorted(each)) for each in found))

    def marks(self, mod: tvm.IRModule) -> Marks:
        """The layers of each variable of the module that these calls are of."""
        bindings = computing(mod) if self.calls else []
        return {
            key_of(binding.var): frozenset(layers)
            for binding, layers in zip(bindings, self.calls, strict=bool(self.calls))
            if layers
        }

    def rewritten(
        self, before: tvm.IRModule, after: tvm.IRModule, stands_for: Mapping[Any, Collection[Any]] | None = None
    ) -> Layers:
        """The same layers in the calls of a rewritten module. The arguments are those of `followed`."""
        if not self.calls or before is after:
            return self
        (flow, known), marks = flow_of(before), self.marks(before)
        marks = followed(flow, marks, flow_of(after, known)[0], stands_for)
        return Layers.of(self.all, after, marks)

    def in_one_call(self) -> Layers:
        """All layers in the only call of a graph."""
        return replace(self, calls=(tuple(range(len(self.all))),))

    def among(self, layers: Sequence[Layer]) -> Layers:
        """The same layers, which are counted among more of them."""
        position = {layer: at for at, layer in enumerate(layers)}
        calls = (tuple(sorted(position[self.all[at]] for at in call)) for call in self.calls)
        return Layers(tuple(layers), tuple(calls))

    def names(self, position: int) -> tuple[str, ...]:
        """The names of the layers of a call."""
        return tuple(self.all[layer].name for layer in self.calls[position]) if self.calls else ()


class Traced(NamedTuple):
    """A module of kernel calls, and the layers of these."""

    mod: tvm.IRModule
    layers: Layers


class Trace:
    """Follows the layers of a module through passes.

    Args:
        mod: The module.
        marks: The layers of its variables, by `key_of`.

    Attributes:
        marks: Those of the module that was followed to last.
    """

    def __init__(self, mod: tvm.IRModule, marks: Mapping[Hashable, frozenset[int]]) -> None:
        self.marks: Marks = {}
        self._mod = mod
        self._flow, self._known = flow_of(mod)
        self.marks = followed(self._flow, marks, self._flow)

    def follow(self, mod: tvm.IRModule) -> None:
        """Follows to the module that a pass has made of the last one."""
        if mod["main"].same_as(self._mod["main"]):
            self._mod = mod
            return
        stands_for = _united(self._mod, mod) if _is_fused(mod) and not _is_fused(self._mod) else None
        before, self._mod = self._flow, mod
        self._flow, self._known = flow_of(mod, self._known)
        self.marks = followed(before, self.marks, self._flow, stands_for)


def key_of(variable: Any) -> Hashable:
    """What a variable is known by through passes: its number, or the variable itself if it has none."""
    return variable if variable.span is None else int(variable.span.line)


def numbered(mod: tvm.IRModule, known: Sequence[T | None]) -> tuple[tvm.IRModule, dict[Hashable, T]]:
    """The module with a number for each variable of `main`, by which it is known also if its type changes.

    Args:
        mod: The module.
        known: What is known of the variable of each binding of `main`; None if nothing is.

    Returns:
        The module, and what is known by `key_of`.
    """
    result = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    result["main"] = _Numbering(mod).visit_expr(mod["main"])
    bindings = bindings_of(result["main"])
    return result, {key_of(binding.var): value for binding, value in zip(bindings, known, strict=True) if value}


def renumbered(mod: tvm.IRModule, marks: Marks) -> tuple[tvm.IRModule, Marks]:
    """The module with a new number for each variable of `main`, and its marks by these numbers."""
    return numbered(mod, [marks.get(key_of(binding.var)) for binding in bindings_of(mod["main"])])


def copied(variable: relax.Var, call: relax.Call) -> relax.VarBinding:
    """The binding of a call, which is in normal form, that computes what a variable holds, too."""
    return relax.VarBinding(relax.DataflowVar(variable.name, call.ty, variable.span), call)


def computing(mod: tvm.IRModule, main: str = "main") -> list[relax.Binding]:
    """The bindings of `main` that call a kernel, a part that onnxruntime runs or another function, in order."""
    return [
        binding
        for binding in bindings_of(mod[main])
        if isinstance(binding.value, relax.Call) and operator_name(binding.value) not in VIEWS
    ]


def named_calls(mod: tvm.IRModule, layers: Layers) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name of the kernel of each call of `main`, with the names of the layers that it computes."""
    for position, binding in enumerate(computing(mod)):
        yield _callee(binding), layers.names(position)


def calls_of(mod: tvm.IRModule, main: str, marks: Mapping[Hashable, frozenset[int]]) -> tuple[KernelCall, ...]:
    """The calls of a function of a module, whose variables have these layers, in the order of an execution."""
    found = ((_callee(binding), marks.get(key_of(binding.var), frozenset())) for binding in computing(mod, main))
    return tuple(KernelCall(name, tuple(sorted(layers))) for name, layers in found)


def _callee(binding: relax.Binding) -> str:
    """The name of the function that a binding calls; that of the operator if nothing has made a function of it."""
    call = binding.value
    if operator_name(call) not in _CALLS:
        return operator_name(call)
    callee = call.args[0]
    return str(callee.global_symbol if isinstance(callee, relax.ExternFunc) else callee.name_hint)


def flow_of(mod: tvm.IRModule, known: Mapping[Any, Value] | None = None) -> tuple[Flow, dict[Any, Value]]:
    """What the bindings of `main` make and read, by `key_of`.

    Args:
        mod: The module.
        known: The values of bindings that are known already: passes leave most of them as they are.

    Returns:
        The flow, and the value of each binding.
    """
    main, known = mod["main"], known or {}
    found = {binding: known.get(binding) or _value_of(binding) for binding in bindings_of(main)}
    values, tuples = list[Value](), dict[Hashable, tuple[Hashable, ...]]()

    def elements(names: Iterable[Hashable]) -> tuple[Hashable, ...]:
        """The names, with the elements of a tuple in its place."""
        return tuple(element for name in names for element in tuples.get(name, (name,)))

    for binding, value in found.items():
        reads = elements(value.reads)
        if isinstance(binding.value, relax.Tuple):
            tuples[value.makes[0]] = reads
        else:
            values.append(value if reads == value.reads else replace(value, reads=reads))
    return Flow.of(values, elements(map(key_of, variables_of(main.body.body)))), found


def _value_of(binding: relax.Binding) -> Value:
    value = binding.value
    reads = tuple(map(key_of, variables_of(value)))
    is_call = isinstance(value, relax.Call)
    moves = is_call and operator_name(value) not in (*VIEWS, "relax.flatten")
    return Value((key_of(binding.var),), reads, not is_call and bool(reads), moves)


@relax.expr_functor.mutator
class _Numbering(relax.PyExprMutator):
    def visit_var_def_(self, variable: relax.Var) -> relax.Var:
        return relax.Var(variable.name, variable.ty, _new_span())

    def visit_dataflow_var_def_(self, variable: relax.DataflowVar) -> relax.DataflowVar:
        return relax.DataflowVar(variable.name, variable.ty, _new_span())


def _new_span() -> tvm.ir.Span:
    return tvm.ir.Span(_SOURCE, next(_NUMBERS), 0, 0, 0)


def _is_fused(mod: tvm.IRModule) -> bool:
    return sum(isinstance(function, relax.Function) for function in mod.functions.values()) > 1


def _united(before: tvm.IRModule, after: tvm.IRModule) -> dict[Hashable, tuple[Hashable, ...]]:
    """For each variable of a module after the fusion those before it that its function computes.

    The fusion knows equal functions and calls one of them, so that its bodies do not say where they come from. If every
    call has an attribute of its own, there are no equal functions.
    """
    bindings = bindings_of(before["main"])
    marked = tvm.IRModule(dict(before.functions.items()), attrs=before.attrs)
    marked["main"] = _Marking(before).visit_expr(before["main"])
    fused = relax.transform.FuseOps()(marked)
    united = {}
    for same, binding in zip(bindings_of(fused["main"]), bindings_of(after["main"]), strict=True):
        positions = _positions(fused, same.value)
        if positions:
            united[key_of(binding.var)] = tuple(key_of(bindings[position].var) for position in positions)
    return united


def _positions(mod: tvm.IRModule, value: Any) -> list[int]:
    """The positions that the marks of a call, or of the function that it calls, name."""
    if not isinstance(value, relax.Call):
        return []
    if isinstance(value.op, tvm.ir.GlobalVar):
        return [at for binding in bindings_of(mod[value.op]) for at in _positions(mod, binding.value)]
    return [int(value.attrs[_MARK])] if calls_kernel(value) and value.attrs and _MARK in value.attrs else []


@relax.expr_functor.mutator
class _Marking(relax.PyExprMutator):
    """Gives each call of a kernel the position of its binding as an attribute."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._position = -1

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._position += 1
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> Any:
        if not calls_kernel(call):
            return call
        attributes = tvm.ir.make_node("ir.DictAttrs", **{_MARK: self._position})
        marked = relax.Call(call.op, call.args, attributes, call.ty_args)
        relax.expr._update_type(marked, call.ty)
        return marked
