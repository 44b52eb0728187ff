"""`torch.compile(model, backend="stormdrop")`: inference by compiled kernels.

torch's Dynamo cuts a model into graphs and calls the backend with each. A graph is compiled at its first call, for the
very sizes that it is called with, and once more for further sets of sizes:

    graph, inputs   ->  parameters and buffers become constants  ->  torch.export  ->  compile_model or tune_model

What was compiled is kept for later processes (`graph_key`, `model/kept_models`). What a graph writes to its inputs,
such as a static cache of keys and values, is copied there after the call (`closed_graph`).

A graph whose tensors lie on an NVIDIA GPU is compiled for it (`graph_device`), and called in torch's current stream, by
which nothing leaves the GPU.

What cannot be compiled runs eagerly, with one warning that says why: a graph with an operator that is not supported, a
graph that has to compute gradients, a graph whose weights have changed since it was compiled, a graph that writes to
memory that two of its inputs share, one that reads inputs by strides (`as_strided`) that are not contiguous, and one
whose tensors lie on several devices.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from ..errors import InputError, ModelError, StormdropError, hint
from ..tuning.options import DEFAULT_SEARCH, TuneOptions
from .closed_graph import (
    ClosedGraph,
    WrittenMemory,
    closed,
    lies_plain,
    name_of,
    reads_by_strides,
    written_inputs,
)
from .compile_progress import compiling, said
from .graph_device import CPU, device_of, machine_of, on_cpu
from .graph_key import NoKey, key_of, nvcc_version

if TYPE_CHECKING:
    from ..machine.contract import Machine
    from ..model import CompiledModel
    from ..model.tuning.result import CompileResult
    from ..records import Store

_logger = logging.getLogger(__name__)

_MOST_SIZES = 8
"""A graph that is called with more sets of sizes runs eagerly for the others, as Dynamo itself gives up after eight."""

_AT_ONCE = 3
"""Sets of sizes that are compiled when they come first. Another one is when it comes again: a decoder whose cache grows
with each word calls each once."""

_REMEDY = (
    "sizes that stay the same make it fast: a static cache in place of one that grows "
    '(generate(cache_implementation="static")), inputs padded to a few lengths (docs/how-to/use-pytorch.md)'
)


_SHARES = "it writes to an input whose memory another input shares; x.clone() has memory of its own"


def stormdrop(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo. `torch.compile(model, backend="stormdrop", options=...)` calls this.

    Args:
        graph: The graph.
        example_inputs: Its inputs. They are not used, because the graph is compiled at its first call.
        options: Without `time` and `trials` nothing is measured: kernels that were tuned before have the schedules that
            were found, all others default schedules. The options are

            - `time`, `trials`: tune each graph, with this budget for each set of sizes, as `sd.tune_model` does
            - `search`, `seed`, `fresh`, `keep_denormals`: as in `sd.tune_model`
            - `db`: the database of records, a file or a URL; the user's own by default
            - `cache`: whether compiled graphs are kept for later processes, and taken from earlier ones: True by
              default

    Returns:
        A function that computes what the graph computes.

    Raises:
        InputError: An option is unknown or bad.

    Example:
        ```python
        import torch

        model = torch.nn.Linear(64, 10).eval()
        fast = torch.compile(model, backend="stormdrop", options={"time": "30s"})
        with torch.no_grad():
            y = fast(torch.zeros(8, 64))
        ```
    """
    return _Graph(graph, _Settings.of(options or {}))


@dataclass(frozen=True)
class _Settings:
    """How graphs are compiled.

    Attributes:
        options: The options of a tuning.
        db: The database of records; None for the default one.
        tunes: Whether anything is measured.
        keep_denormals: Whether kernels compute with denormals.
        cache: Whether compiled graphs are kept, and taken from what earlier processes have kept.
    """

    options: TuneOptions
    db: str | None
    tunes: bool
    keep_denormals: bool
    cache: bool

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> _Settings:
        known = ("time", "trials", "search", "seed", "fresh", "keep_denormals", "db", "cache")
        for name in given:
            if name not in known:
                raise InputError(f"backend stormdrop has no option {name!r}; {hint(name, known)}")
        others = {name: value for name, value in given.items() if name not in ("keep_denormals", "db", "cache")}
        options = TuneOptions.of(**{"search": DEFAULT_SEARCH, **others})
        tunes, keep_denormals = "time" in given or "trials" in given, bool(given.get("keep_denormals", False))
        # What is tuned as if nothing were known is tuned again each time.
        cache = bool(given.get("cache", True)) and not (tunes and options.fresh)
        return cls(options, given.get("db"), tunes, keep_denormals, cache)


class _Graph:
    """A graph of Dynamo that is compiled for the sets of sizes that it is called with."""

    def __init__(self, graph: torch.fx.GraphModule, settings: _Settings) -> None:
        self._graph, self._settings = graph, settings
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._constant = [_is_weight(node) for node in placeholders]
        self._by_strides = reads_by_strides(graph)
        # The first call finds out where its tensors lie, or why it cannot be compiled, and what it writes to.
        self._device: torch.device | ModelError | None = None
        self._written: tuple[int, ...] | None = None
        self._compiled: dict[Any, _Compiled | None] = {}
        self._once: set[Any] = set()  # sets of sizes that came once, and were not compiled
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        if torch.is_grad_enabled() and any(_requires_grad(argument) for argument in arguments):
            self._say("it has to compute gradients; call it inside torch.no_grad(), or set requires_grad to False")
            return self._graph(*arguments)
        if self._by_strides and not all(lies_plain(one) for one in arguments if isinstance(one, torch.Tensor)):
            self._say("it reads an input by strides (as_strided) that is not contiguous or begins inside its storage")
            return self._graph(*arguments)
        if self._written is None:
            self._look_at(arguments)
        if isinstance(self._device, ModelError):
            self._say(str(self._device))
            return self._graph(*arguments)
        if self._device != CPU and torch.cuda.is_current_stream_capturing():  # which what a model does would end
            self._say("a CUDA graph is being captured")
            return self._graph(*arguments)
        key = tuple(
            _size_of(argument) for argument, constant in zip(arguments, self._constant, strict=True) if not constant
        )
        if key not in self._compiled:
            with self._lock:
                if key not in self._compiled and self._is_due(key):
                    self._compile(key, arguments)
        compiled = self._compiled.get(key)
        if compiled is None:
            return self._graph(*arguments)
        if not compiled.roles.is_current(arguments):
            self._say("its weights have changed since it was compiled; torch.compiler.reset() compiles it anew")
            return self._graph(*arguments)
        if compiled.roles.shares_what_it_writes(arguments):
            self._say(_SHARES)
            return self._graph(*arguments)
        try:
            return compiled(arguments)
        except StormdropError as error:  # for example in a process that was forked after the first call
            self._say(str(error))
            return self._graph(*arguments)

    def _look_at(self, arguments: Sequence[Any]) -> None:
        """Finds out where the tensors lie, and which inputs the graph writes to.

        Those are no constants, such as a static cache, even if marked.
        """
        with self._lock:
            if self._written is not None:
                return
            try:
                self._device = device_of(self._graph, arguments)
            except ModelError as error:
                self._device = error
            written = written_inputs(self._graph, arguments)
            self._constant = [fixed and place not in written for place, fixed in enumerate(self._constant)]
            self._written = written

    def _is_due(self, key: Any) -> bool:
        """Whether a set of sizes that is not compiled yet is to be compiled now."""
        if len(self._compiled) >= _MOST_SIZES:
            self._say(f"it was compiled for {_MOST_SIZES} sets of sizes already; the others run eagerly; {_REMEDY}")
            return False
        if len(self._compiled) < _AT_ONCE or key in self._once:
            return True
        self._once.add(key)
        self._say(
            f"it was compiled for {len(self._compiled)} sets of sizes, and this is another one, which is compiled if "
            f"it comes again; {_REMEDY}"
        )
        return False

    def _compile(self, key: Any, arguments: Sequence[Any]) -> None:
        """Compiles the graph for these inputs. If that fails, it runs eagerly for their sizes from now on."""
        roles = _Roles(arguments, self._constant, self._written or ())
        if roles.shares_what_it_writes(arguments):  # it would be compiled in vain, unless other inputs of them come
            self._say(_SHARES)
            return
        try:
            assert isinstance(self._device, torch.device)
            self._compiled[key] = _Compiled(self._graph, arguments, self._constant, roles, self._settings, self._device)
        except StormdropError as error:
            self._say(str(error))
            self._compiled[key] = None

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(f"stormdrop: a graph runs eagerly: {reason}", RuntimeWarning, stacklevel=3)


class _Roles:
    """Which of a graph's inputs are weights, which it reads, and which it writes to.

    Attributes:
        inputs: The positions of the tensors that a call gives.
        written: Those of them that the graph writes to.
    """

    def __init__(self, arguments: Sequence[Any], constant: Sequence[bool], written: tuple[int, ...]) -> None:
        """Takes the weights as they are in a call.

        Args:
            arguments: The inputs in this call.
            constant: Which of them are weights.
            written: The positions of those that the graph writes to.
        """
        self.written = written
        self.inputs = [
            position
            for position, argument in enumerate(arguments)
            if isinstance(argument, torch.Tensor) and not constant[position]
        ]
        self._weights = [
            (position, argument, _state(argument)) for position, argument in enumerate(arguments) if constant[position]
        ]
        weights = [argument for _, argument, _ in self._weights if isinstance(argument, torch.Tensor)]
        self._memory = WrittenMemory(weights if written else [])
        self._read = [position for position in self.inputs if position not in written]

    def is_current(self, arguments: Sequence[Any]) -> bool:
        """Whether the weights are those that were compiled."""
        return all(
            arguments[position] is weight and _state(weight) == state for position, weight, state in self._weights
        )

    def shares_what_it_writes(self, arguments: Sequence[Any]) -> bool:
        """Whether a tensor that it writes to shares memory with another one: each input is a copy of its own here.

        The weights have to be current.
        """
        written, read = ([arguments[position] for position in each] for each in (self.written, self._read))
        return bool(written) and self._memory.is_shared(written, read)


class _Compiled:
    """A graph that is compiled for one set of sizes.

    Attributes:
        roles: What its inputs are.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Sequence[Any],
        constant: Sequence[bool],
        roles: _Roles,
        settings: _Settings,
        device: torch.device,
    ) -> None:
        self.roles, inputs = roles, roles.inputs
        self._device, name = device, name_of(graph)
        (returned,) = [node.args[0] for node in graph.graph.nodes if node.op == "output"]
        if device.type == "cuda":
            graph = on_cpu(graph)
            arguments = [one.detach().cpu() if isinstance(one, torch.Tensor) else one for one in arguments]
        module = closed(name, graph, arguments, inputs, roles.written)
        examples = tuple(arguments[position] for position in inputs)
        with CPU if device.type == "cuda" else nullcontext():  # torch.set_default_device may name the GPU
            self._model = _model_of(_Work(name, graph, arguments, constant, module, examples, settings, device))
        # torch.export calls them tensors_0, tensors_1 and so on. The import may have dropped some that nothing uses.
        self._positions = {info.name: inputs[int(info.name.rpartition("_")[2])] for info in self._model.inputs}
        self._returned = len(returned)
        if len(self._model.outputs) != self._returned + len(roles.written):
            raise ModelError("it returns something else than tensors")

    def __call__(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        feeds = {name: arguments[position].detach() for name, position in self._positions.items()}
        results = self._on_gpu(feeds) if self._device.type == "cuda" else self._on_cpu(feeds)
        for position, result in zip(self.roles.written, results[self._returned :], strict=True):
            arguments[position].copy_(result)
        return results[: self._returned]

    def _on_cpu(self, feeds: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.from_numpy, self._model.run(feeds).values()))

    def _on_gpu(self, feeds: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Runs the model in torch's current stream. torch allocates the outputs: it waits for nothing if they go."""
        with torch.cuda.device(self._device):
            given = {name: one.to(self._device).resolve_neg().contiguous() for name, one in feeds.items()}
            outputs = {
                info.name: torch.empty(info.shape, dtype=getattr(torch, info.dtype), device=self._device)
                for info in self._model.outputs
            }
            self._model.run_on_device(given, torch.cuda.current_stream(), outputs)
        return tuple(outputs.values())


@dataclass(frozen=True)
class _Work:
    """What is compiled: a graph, its inputs and which of them are constants, and the same as a module of the others.

    All of it is on the CPU; `device` is what it is compiled for.
    """

    name: str
    graph: torch.fx.GraphModule
    arguments: Sequence[Any]
    constant: Sequence[bool]
    module: ClosedGraph
    examples: tuple[Any, ...]
    settings: _Settings
    device: torch.device

    def __str__(self) -> str:
        shapes = ["x".join(map(str, example.shape)) or "one value" for example in self.examples]
        more = f" and {len(shapes) - _SHOWN} more" if len(shapes) > _SHOWN else ""
        return f"{self.name} for {', '.join(shapes[:_SHOWN])}{more}" if shapes else self.name


_SHOWN = 3  # inputs of a graph that messages name

_libraries: WeakValueDictionary[Any, Any] = WeakValueDictionary()
"""The kernels of the graphs of this process, by their target: graphs and sets of sizes have some in common."""

_users: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The library of each graph that was compiled: it is there as long as one of its graphs is."""


def _model_of(work: _Work) -> CompiledModel:
    """The compiled form of a graph: of an earlier process if one has kept it."""
    from ..machine import threads

    threads.configure()
    from ..machine.cpu import keeping_denormals
    from ..model.kept_models import KeptModels
    from ..records import open_store

    settings, begin = work.settings, time.perf_counter()
    target = machine_of(work.device)
    if settings.keep_denormals:
        target = keeping_denormals(target)
    kept = KeptModels.of_user() if settings.cache else None
    key = None if kept is None else _key_of(work, target)
    with open_store(settings.db) as store:
        asked: Store | None = None if settings.options.fresh else store
        model = kept.load(key, asked) if kept is not None and key is not None else None
        if model is not None:
            said(f"loaded {work}, which was compiled before", begin)
        else:
            with compiling(str(work)):
                result = _compiled(work, target, store)
            model = result.model
            if work.device.type == "cuda" and model.metadata.foreign:
                operators = ", ".join(name for part in model.metadata.foreign for name in part.operators)
                raise ModelError(f"onnxruntime would run a part of it ({operators})")
            if kept is not None and key is not None and not getattr(result, "interrupted", False):
                kept.keep(key, result, asked)
    if work.device.type == "cuda":
        model, library = model.on_gpu(work.device.index), _users.get(model)
        _users[model] = library
    for part in model.metadata.foreign:
        operators = ", ".join(f"{count} {name}" for name, count in part.operators.items())
        _logger.info("onnxruntime runs %s of a graph (%s)", operators, part.reason)
    return model


def _compiled(work: _Work, target: Machine, store: Store) -> CompileResult:
    # A process that finds its graphs needs none of this.
    from ..model.building.kernel_library import KernelLibrary
    from ..model.tuning.tune import tune_model_with
    from ..model.untuned import compile_model_with

    options, examples = work.settings.options, work.examples
    if work.settings.tunes:
        return tune_model_with(work.module, target, options, example_inputs=examples, store=store)
    # A graph that is kept holds no kernels of others, and a module of its own costs a kernel next to nothing.
    library: KernelLibrary = _libraries.setdefault(target, KernelLibrary(target, apart=True))
    result = compile_model_with(work.module, target, options, example_inputs=examples, store=store, library=library)
    _users[result.model] = library
    return result


def _key_of(work: _Work, target: Machine) -> str | None:
    """The key under which a graph is kept; None if it has none."""
    from ..machine.cpu import Cpu
    from ..machine.limits.memory_rates import cached_bytes

    settings = work.settings
    of_target = cached_bytes(target) if isinstance(target, Cpu) else nvcc_version()
    others = (settings.options, settings.tunes, target, of_target)
    try:
        return key_of(work.graph, work.arguments, work.constant, *others)
    except NoKey as error:
        _logger.info("%s is not kept for the next process: %s", work.name, error)
        return None


def _is_weight(node: torch.fx.Node) -> bool:
    """Whether an input of a graph is a parameter or a buffer of the user's module, which Dynamo passes as an input."""
    example = getattr(node.meta.get("grapharg"), "_example", None)
    marked = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") is not None
    return marked or isinstance(example, torch.nn.Parameter)


def _requires_grad(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.requires_grad


def _size_of(argument: Any) -> Any:
    """What a graph is compiled for: the shape and type of a tensor; anything else as it is."""
    return (tuple(argument.shape), argument.dtype) if isinstance(argument, torch.Tensor) else argument


def _state(weight: Any) -> tuple[int, int]:
    """Where the elements of a tensor are, and how often they were written to, as far as torch counts it."""
    return int(weight.data_ptr()), 0 if weight.is_inference() else int(weight._version)
