"""Imports a Relax module: its function `main` is the model, its constants and bound parameters are the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from ...errors import ModelError, one_line, shown
from ...runtime.sizes import TensorInfo
from ..artifact.layers import layers_of
from ..graph.expressions import bindings_of, operator_name
from ..graph.flow import Marks
from ..graph.graph import Graph
from ..graph.layers import Trace, numbered
from ..graph.origin import Origin, Outputs
from ..inputs.combinations import Shapes
from ..inputs.ranges import Range, Ranges, as_places
from ..inputs.samples import Feeds
from ..passes.views import as_reshapes
from .import_onnx import graph_of

_DIVIDES = ("divide", "floor_divide", "floor_mod", "mod")
_KEEPS_ALL = ("astype", "broadcast_to", "expand_dims", "flatten", "permute_dims", "reshape", "squeeze")
"""Relax operators whose output holds every element of their first input, and no others."""


def import_relax(mod: tvm.IRModule, shapes: Shapes | None = None) -> Graph:
    """Imports a Relax module, which is not changed.

    Its inputs are the parameters of `main`, by their names. Its outputs are called "output", or "output_0" and so on.

    Args:
        mod: The module. Parameters that `main` has as the attribute "params", as frontends of TVM leave them, are its
            weights.
        shapes: The shapes of inputs with symbolic sizes, by input name.

    Raises:
        ModelError: There is no `main`, it takes or returns something else than tensors, a size is symbolic, or an
            operator is not supported.
    """
    name = "the Relax module"
    main = mod.functions.get(mod.get_global_var("main")) if "main" in [var.name_hint for var in mod.functions] else None
    if not isinstance(main, relax.Function):
        functions = ", ".join(sorted(var.name_hint for var in mod.functions)) or "nothing"
        raise ModelError(f"{name} has no Relax function main; it has {functions}")
    bound = _with_sizes(_with_parameters(mod), shapes or {})
    try:
        normal = tvm.transform.Sequential(
            [
                relax.transform.InlinePrivateFunctions(),
                relax.transform.ConvertToDataflow(1),
                relax.transform.CanonicalizeBindings(),
            ]
        )(bound)
    except Exception as error:
        # Passes raise ValueError, TVM's InternalError and others for a module that is not well formed.
        raise ModelError(f"{name} is not well formed: {one_line(error)}") from error
    inputs = tuple(_input(variable) for variable in normal["main"].params)
    names = [info.name for info in inputs]
    for twice in sorted({key for key in names if names.count(key) > 1}):
        raise ModelError(f"{name}: has two inputs {shown(twice)!r}")
    kind = normal["main"].ret_ty
    count = len(kind.fields) if isinstance(kind, relax.TupleType) else 1
    outputs = tuple(f"output_{position}" for position in range(count)) if count > 1 else ("output",)
    origin = RelaxOrigin(bound, names, outputs, index_ranges(normal, names))
    bindings = bindings_of(normal["main"])
    operators = [at for at, binding in enumerate(bindings) if isinstance(binding.value, relax.Call)]
    layers = layers_of([_layer(bindings[at]) for at in operators])
    known = {at: frozenset([position]) for position, at in enumerate(operators)}
    counted = numbered(normal, [known.get(at) for at in range(len(bindings))])
    return graph_of(*simplified(*counted), "main", inputs, outputs, origin, layers)


def dimension_names(mod: tvm.IRModule) -> dict[str, list[Any]]:
    """The symbolic size of each dimension of the inputs, by input; None for a size that is known."""
    names: dict[str, list[Any]] = {}
    main = next((function for variable, function in mod.functions.items() if variable.name_hint == "main"), None)
    for parameter in getattr(main, "params", ()):
        extents = getattr(getattr(parameter.ty, "shape", None), "values", ())
        names[parameter.name] = [None if hasattr(extent, "value") else extent for extent in extents]
    return names


def simplified(mod: tvm.IRModule, marks: Marks) -> tuple[tvm.IRModule, Marks]:
    """A module with its squeezes as reshapes. If it returns a tuple of one tensor, it returns that tensor.

    Args:
        mod: The module.
        marks: The layers of its variables.

    Returns:
        The new module, and the layers of its variables.
    """
    trace, main = Trace(mod, marks), mod["main"]
    if isinstance(main.ret_ty, relax.TupleType) and len(main.ret_ty.fields) == 1:
        mod = tvm.IRModule(dict(mod.functions.items()))
        body = relax.SeqExpr(main.body.blocks, relax.TupleGetItem(main.body.body, 0))
        mod["main"] = relax.Function(main.params, body, main.ret_ty.fields[0], main.is_pure, main.attrs)
        normal = [relax.transform.Normalize(), relax.transform.ConvertToDataflow(1)]
        mod = tvm.transform.Sequential([*normal, relax.transform.CanonicalizeBindings()])(mod)
    mod = as_reshapes(mod)
    trace.follow(mod)
    return mod, trace.marks


def index_ranges(mod: tvm.IRModule, names: Sequence[str]) -> dict[str, Range]:
    """Finds the inputs all of whose elements index a constant table, as words do a vocabulary, and those that divide.

    Elements may also be the places of an axis that `scatter_elements` writes to.

    Args:
        mod: The module; its tables are constants.
        names: The names of the parameters of `main`.

    Returns:
        The length of the table by the name of the input, the shortest one if there are several; for an input that
        something is divided by, the first value that it may have and the first that it may not; for places what
        `as_places` returns.
    """
    main = mod["main"]
    origin: dict[Any, str] = dict(zip(main.params, names, strict=True))
    lengths: dict[str, int] = {}
    divisors: dict[str, tuple[int, int]] = {}
    places: dict[str, int] = {}
    plain: set[str] = set()  # the inputs whose places are all different
    for binding in bindings_of(main):
        call = binding.value
        if isinstance(call, relax.Var) and call in origin:
            origin[binding.var] = origin[call]
        if not isinstance(call, relax.Call):
            continue
        operator = operator_name(call).removeprefix("relax.")
        if operator in _KEEPS_ALL and call.args[0] in origin:
            origin[binding.var] = origin[call.args[0]]
        if operator == "take" and isinstance(call.args[0], GenericConst) and call.args[1] in origin:
            length = int(call.args[0].value.shape[int(call.attrs.axis or 0)])
            name = origin[call.args[1]]
            lengths[name] = min(length, lengths.get(name, length))
        if operator in _DIVIDES and call.args[1] in origin:
            divisors[origin[call.args[1]]] = (1, 3)
        if operator == "scatter_elements" and call.args[1] in origin:
            length, name = int(call.args[0].ty.shape[int(call.attrs.axis)]), origin[call.args[1]]
            places[name] = min(length, places.get(name, length))
            plain |= {name} if call.attrs.reduction == "update" else set()
    found: dict[str, Range] = {**divisors, **lengths}
    return {
        **found,
        **{name: as_places(found.get(name), 0, length, name not in plain) for name, length in places.items()},
    }


@dataclass(eq=False)
class RelaxOrigin(Origin):
    """A Relax module, which TVM compiles with its default pipeline and default schedules. See `Origin`."""

    mod: tvm.IRModule
    names: Sequence[str]
    output_names: Sequence[str]
    ranges: Ranges
    _machine: Any = field(default=None, init=False)

    def index_ranges(self) -> Ranges:
        return self.ranges

    def outputs(self, feeds: Sequence[Feeds], names: Sequence[str]) -> tuple[list[Outputs], str]:
        try:
            if self._machine is None:
                self._machine = relax.VirtualMachine(tvm.compile(self.mod, "llvm"), tvm.cpu())
            runs = [self._run(given) for given in feeds]
        except Exception as error:
            # Lowering, code generation and the virtual machine raise anything.
            raise ModelError(f"TVM's default pipeline does not run the Relax module: {one_line(error)}") from error
        return [{name: run[name] for name in names} for run in runs], f"TVM {tvm.__version__} with default schedules"

    def _run(self, feeds: Feeds) -> Outputs:
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(feeds[name])) for name in self.names]
        result = self._machine["main"](*tensors)
        values = [result] if len(self.output_names) == 1 and hasattr(result, "numpy") else list(result)
        return {name: value.numpy() for name, value in zip(self.output_names, values, strict=True)}


def _layer(binding: relax.Binding) -> tuple[str, str, str, str]:
    """What `layers_of` takes of an operator: it is called after its variable."""
    operator = operator_name(binding.value).removeprefix("relax.").removeprefix("nn.") or "call"
    return binding.var.name, operator, operator, binding.var.name


def _with_parameters(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the parameters that are its attribute "params" as constants."""
    main = mod["main"]
    if not main.attrs or "params" not in main.attrs:
        return mod
    values = list(main.attrs["params"])
    variables = list(main.params)[-len(values) :] if values else []
    result = tvm.IRModule(dict(mod.functions.items()))
    result["main"] = main.bind_params(dict(zip(variables, values, strict=True))).without_attr("params")
    return result


def _with_sizes(mod: tvm.IRModule, shapes: Shapes) -> tvm.IRModule:
    """The module with the symbolic sizes of its inputs replaced. Raises `ModelError` if one is missing or wrong."""
    parameters = {parameter.name: parameter for parameter in mod["main"].params}
    for unknown in sorted(set(shapes) - set(parameters)):
        raise ModelError(
            f"the Relax module has no input {shown(unknown)!r}; its inputs are {', '.join(map(repr, parameters))}"
        )
    sizes: dict[Any, int] = {}
    for key, parameter in parameters.items():
        if not isinstance(parameter.ty, relax.TensorType) or not hasattr(parameter.ty.shape, "values"):
            raise ModelError(f"the Relax module: input {shown(key)!r} is no tensor of known rank")
        extents = list(parameter.ty.shape.values)
        shape = shapes.get(key)
        if shape is not None and len(shape) != len(extents):
            raise ModelError(f"the Relax module: input {key!r} has {len(extents)} dimensions, not {len(shape)}")
        for axis, extent in enumerate(extents):
            wanted = None if shape is None else shape[axis]
            known = extent.value if hasattr(extent, "value") else sizes.get(extent)
            if known is not None and wanted is not None and wanted != known:
                raise ModelError(f"the Relax module: dimension {axis} of input {key!r} is {known}, not {wanted}")
            if known is None and wanted is not None:
                sizes[extent] = wanted
    for key, parameter in parameters.items():
        extents = list(parameter.ty.shape.values)
        for axis, extent in enumerate(extents):
            if not hasattr(extent, "value") and extent not in sizes:
                example = ", ".join(str(each.value) if hasattr(each, "value") else "N" for each in extents)
                raise ModelError(
                    f"the Relax module: dimension {axis} ({extent}) of input {key!r} has no size; give the shape of "
                    f"that input, as in shapes={{{key!r}: ({example})}}"
                )
    if not sizes:
        return mod
    return relax.transform.BindSymbolicVars(sizes, "main")(mod)


def _input(variable: Any) -> TensorInfo:
    shape = tuple(int(extent) for extent in variable.ty.shape.values)
    return TensorInfo(variable.name, shape, str(variable.ty.dtype))
