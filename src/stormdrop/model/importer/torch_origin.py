"""A torch module as the origin of a graph: torch computes it in float32 and in float64."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from ...errors import ModelError, one_line
from ..graph.onnx_origin import origin_of
from ..graph.origin import Origin, Outputs
from ..inputs.ranges import Ranges
from ..inputs.samples import Feeds

if TYPE_CHECKING:
    from ..graph.graph import Graph


class TorchOrigin(Origin):
    """A torch module with the program that was exported of it. See `Origin`.

    Attributes:
        input_names: The tensors that it takes, as in the exported program.
        output_names: The tensors that it returns, in the order of torch's pytree: by the names of a dictionary's or a
            dataclass's fields, else as in the exported program.
        ranges: What `index_ranges` returns.
        places: What `written_places` finds.
        onnx: The program as an ONNX model, if it was imported as one: it computes the tensors that are no outputs.
        other_import: Imports the module in another way, in case that the first one is wrong; None if there is none.
    """

    def __init__(self, name: str, module: Any, program: Any) -> None:
        self.name, self._module = name, module
        signature = program.graph_signature
        arguments = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
        self._arguments, self._in_spec = arguments, program.call_spec.in_spec
        self.input_names = tuple(arg.name for arg in arguments if not isinstance(arg, ConstantArgument))
        results = [spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
        self._returned = [not isinstance(result, ConstantArgument) for result in results]
        self.output_names = _unique(
            [
                field or result.name
                for field, result in zip(_fields(program.call_spec.out_spec), results, strict=True)
                if not isinstance(result, ConstantArgument)
            ]
        )
        # An import may drop inputs that nothing uses; the module takes them all the same.
        examples = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        self._unused = {
            name: torch.zeros(examples[name].shape, dtype=examples[name].dtype) for name in self.input_names
        }
        self.ranges: Ranges = {}
        self.places: Mapping[str, tuple[int, int, bool]] = {}
        self.onnx: Any = None
        self.other_import: Callable[[], Graph] | None = None
        self._double: Any = None

    def index_ranges(self) -> Ranges:
        return self.ranges

    def outputs(self, feeds: Sequence[Feeds], names: Sequence[str]) -> tuple[list[Outputs], str]:
        try:
            runs = [self._run(self._module, given, None) for given in feeds]
        except Exception as error:
            # The module's own code runs here, and raises whatever it raises.
            raise ModelError(f"{self.name}: torch does not run it: {one_line(error)}") from error
        against = f"torch {torch.__version__}"
        inside = [name for name in names if name not in self.output_names]
        if inside:
            others, by = origin_of(self.onnx).outputs(feeds, inside)
            runs, against = (
                [{**ours, **other} for ours, other in zip(runs, others, strict=False)],
                f"{against} and {by}",
            )
        return [{name: run[name] for name in names} for run in runs], against

    def exact(self, feeds: Feeds) -> Outputs | None:
        try:
            if self._double is None:
                self._double = copy.deepcopy(self._module).double()
            with silenced():  # a graph of torch.fx prints what it raises
                outputs = self._run(self._double, feeds, torch.float64)
        except Exception:  # noqa: BLE001  a module whose code names float32 raises anything when its weights are float64
            return None
        exact = all(value.dtype != np.float32 for value in outputs.values())
        return outputs if exact else None  # its code rounds to float32

    def _run(self, module: Any, feeds: Feeds, floating: Any) -> Outputs:
        leaves = [
            argument.value
            if isinstance(argument, ConstantArgument)
            else _tensor(feeds.get(argument.name, self._unused[argument.name]), floating)
            for argument in self._arguments
        ]
        arguments, named = pytree.tree_unflatten(leaves, self._in_spec)
        with inference(module), torch.no_grad():
            results = pytree.tree_leaves(module(*arguments, **named))
        tensors = [result for result, wanted in zip(results, self._returned, strict=True) if wanted]
        return {
            name: np.array(tensor.detach().numpy()) for name, tensor in zip(self.output_names, tensors, strict=True)
        }


_silencing = threading.Lock()


class _Others:
    """Standard error for all threads but one, whose lines are dropped."""

    def __init__(self, stream: Any, silent: int) -> None:
        self._stream, self._silent = stream, silent

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._silent else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """A context in which this thread writes nothing to standard error; other threads do, such as one that counts."""
    with _silencing, contextlib.redirect_stderr(cast(Any, _Others(sys.stderr, threading.get_ident()))):
        yield


@contextlib.contextmanager
def inference(module: Any) -> Iterator[None]:
    """While active, a module and its parts are in inference mode; afterwards each is in its own mode again."""
    modes = {part: part.training for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def _tensor(value: Any, floating: Any) -> Any:
    tensor = torch.from_numpy(np.ascontiguousarray(value).reshape(np.shape(value)))
    return tensor.to(floating) if floating is not None and tensor.is_floating_point() else tensor


def _fields(spec: Any) -> list[str]:
    """For each leaf of a structure the keys and fields on the way to it, joined by dots; positions alone give ""."""
    structure = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths, _ = pytree.tree_flatten_with_path(structure)
    return [_path_name(path) for path, _ in paths]


def _path_name(path: Sequence[Any]) -> str:
    parts = [getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", None))) for entry in path]
    return ".".join(map(str, parts)) if any(isinstance(part, str) for part in parts) else ""


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with a number at the end of each that was there before: one tensor may be returned twice."""
    unique: list[str] = []
    for name in names:
        number, free = 1, name
        while free in unique:
            free = f"{name}_{number}"
            number += 1
        unique.append(free)
    return tuple(unique)
