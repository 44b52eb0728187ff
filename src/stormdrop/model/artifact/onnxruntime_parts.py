"""The parts of a model that onnxruntime runs, because the importer cannot take their operators.

Each part is an ONNX model. In Relax code it is a call of a packed function, `stormdrop.onnxruntime.INDEX`:

    shapes are static      y = call_dps_packed("stormdrop.onnxruntime.0", (x,))     writes into memory of the program
    a shape depends on     y = call_pure_packed("stormdrop.onnxruntime.0", x)       makes new tensors
    data

In a program it is a step. onnxruntime is an optional package: this module imports it when it is needed first.
"""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import ModelError, one_line, shown
from ...machine.cpu_flags import missing_features
from ...machine.denormals import denormals, restore_mode, set_mode
from ...machine.detect import cpu_family
from ...optional_packages import load
from ...runtime import parts
from ...runtime.device.parts import ModelParts
from ...runtime.inputs import Array
from ...runtime.parts import RunPart
from ...runtime.sizes import OPEN
from .metadata import Metadata, OnnxruntimePart

EXACT_SUMS = "session.x64quantprecision"
"""onnxruntime's option, "1", for sums of products of bytes that do not saturate; see `sums_saturate`."""

CHOOSING = 0.5
"""Seconds that the choice of the parts' numbers of threads may take."""

_SPIN_MICROSECONDS = 400  # that onnxruntime's threads look for work before they sleep, as ours do
_SPINS_BRIEFLY = (1, 26)  # the first version of onnxruntime whose threads can be told so
_TURNS = 200  # runs with each number of threads, at most
_PACKED = 1 << 28  # bytes of weights that onnxruntime may pack, which takes the memory of all of them once more
_COPIED = 1 << 17  # bytes of outputs that are copied: where they are written in place, a call takes 20 us longer


class OnnxruntimeParts:
    """The parts of one model.

    All compiled forms of the model share one object, and so the sessions. Sessions may run in several threads at once.

    Attributes:
        reports: What each part consists of.
        models: The ONNX model of each part, in the order of `reports`.
        examples: Inputs that parts had in the verification, by the index of the part; None if nobody wants them.
    """

    def __init__(self, reports: Sequence[OnnxruntimePart] = (), models: Sequence[bytes] = ()) -> None:
        self.reports = tuple(reports)
        self.models = tuple(models)
        self.examples: dict[int, list[Array]] | None = None
        self._sessions: dict[tuple[int, bool], list[PartSession]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.models)

    def sessions(self, name: str, threads: int, keep_denormals: bool = False) -> list[PartSession]:
        """The sessions of all parts, which are made at the first call.

        Args:
            name: The name of the model, for messages.
            threads: How many threads a session uses at most.
            keep_denormals: Its threads compute with denormals. Otherwise they flush them, as our kernels do.

        Raises:
            ModelError: onnxruntime is not installed, or it does not take a part.
        """
        with self._lock:
            key = (threads, keep_denormals)
            if key not in self._sessions:
                operators = dict.fromkeys(operator for part in self.reports for operator in part.operators)
                load("onnxruntime", f"{name}: a part ({', '.join(operators)})", ModelError)
                self._sessions[key] = [
                    _session(name, part, model, min(threads, part.threads or threads), keep_denormals)
                    for part, model in zip(self.reports, self.models, strict=True)
                ]
            return self._sessions[key]

    def choose_threads(
        self, name: str, threads: int, keep_denormals: bool, within: float = CHOOSING
    ) -> dict[int, float]:
        """Finds out which parts are faster with one thread, on their `examples`. The caller keeps the machine idle.

        Args:
            name: The name of the model, for messages.
            threads: The threads of a session otherwise.
            keep_denormals: As for `sessions`.
            within: The seconds that this may take, unless two runs of each part take longer.

        Returns:
            The seconds that one run of each of these parts takes, by the index of the part.

        Raises:
            ModelError: As `sessions`.
        """
        chosen, examples, seconds = list(self.reports), self.examples or {}, dict[int, float]()
        for index, inputs in examples.items():
            part, model = self.reports[index], self.models[index]
            many = self.sessions(name, threads, keep_denormals)[index]
            one = _session(name, part, model, 1, keep_denormals)
            with denormals(flushed=not keep_denormals):
                seconds_of_many, seconds_of_one = _in_turns([many, one], inputs, within / len(examples))
            if seconds_of_one < seconds_of_many and threads > 1:
                chosen[index] = replace(part, threads=1)
            seconds[index] = min(seconds_of_many, seconds_of_one)
        self.reports = tuple(chosen)
        with self._lock:
            self._sessions.clear()
        return seconds

    def sessions_of(self, metadata: Metadata, threads: int) -> list[PartSession]:
        """The sessions of a compiled model, which treat denormals as its kernels do. See `sessions`."""
        return self.sessions(metadata.name, threads, _keeps_denormals(metadata))

    def alone(self, metadata: Metadata, threads: int) -> Callable[[Mapping[str, Array]], list[Array]] | None:
        """A function that runs the only part without the program, if that part is all of the model at its only size.

        The program, its machine and the copies of what onnxruntime has made take some 40 us a call, this function 3 us.

        Args:
            metadata: What the model says about itself.
            threads: How many threads a session uses.

        Returns:
            The function. It takes the inputs as arrays by name, wherever they begin, and gives the outputs in
            order, in arrays of the caller's own. None for any other model.

        Raises:
            ModelError: As `sessions`.
        """
        if len(metadata.all_sizes) > 1 or len(self.reports) != 1 or not self.reports[0].whole:
            return None
        (session,), flushed = self.sessions_of(metadata, threads), not _keeps_denormals(metadata)
        outputs = [info.name for info in metadata.outputs]
        shapes = [None if OPEN in info.shape else info.shape for info in metadata.outputs]

        def call(feeds: Mapping[str, Array]) -> list[Array]:
            before = set_mode(flushed)
            try:
                return session.run_by_name(feeds, outputs, shapes)
            finally:
                restore_mode(before)

        return call

    def on_device(self, metadata: Metadata, threads: int) -> ModelParts | None:
        """The parts of this model for a device that executes it; None if there are none.

        Args:
            metadata: What the model says about itself.
            threads: How many threads a session uses.
        """
        if not self.models:
            return None
        on_host = partial(self._runner, metadata, threads)
        return ModelParts(self.models, threads, _keeps_denormals(metadata), on_host)

    def runner(self, metadata: Metadata, threads: int) -> RunPart | None:
        """What runs the parts for the program of this model; None if there are none.

        Args:
            metadata: What the model says about itself.
            threads: How many threads a session uses.

        Raises:
            ModelError: As `sessions`.
        """
        return self._runner(metadata, threads) if self.models else None

    def _runner(self, metadata: Metadata, threads: int) -> RunPart:
        sessions, flushed = self.sessions_of(metadata, threads), not _keeps_denormals(metadata)

        def run(index: int, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> Sequence[Array]:
            with denormals(flushed):  # a session computes in the calling thread, too
                planned = [output for output in outputs if output is not None]
                if len(planned) < len(outputs):
                    return [np.asarray(value, order="C") for value in sessions[index].run(inputs)]
                sessions[index].run_into(inputs, planned)
                return planned

        return run


def _in_turns(sessions: Sequence[PartSession], inputs: Sequence[Array], seconds: float) -> list[float]:
    """The median seconds of a run of each session, after one that warms up."""
    times: list[list[float]] = [[] for _ in sessions]
    end = time.perf_counter() + seconds
    for turn in range(_TURNS + 1):
        for session, taken in zip(sessions, times, strict=True):
            begin = time.perf_counter()
            session.run(inputs)
            taken.append(time.perf_counter() - begin)
        if turn and time.perf_counter() > end:
            break
    return [statistics.median(taken[1:]) for taken in times]


def _keeps_denormals(metadata: Metadata) -> bool:
    return bool(metadata.target.get("keep_denormals", False))


def session_options(threads: int, alone: bool = False) -> Any:
    """Options of a session: quiet, with `threads` threads, which spin while it runs, and sleep between two runs.

    Threads that never spin sleep inside of a run, too, between two operators. Threads that spin as long as onnxruntime
    lets them keep 0.42 cores busy in a process that calls a network ten times a second.

    Args:
        threads: The number of threads; 0 for that of all cores.
        alone: Whether nothing else computes between two runs. The threads then spin for a moment after a run, so that
            they need not be woken for the next one. Otherwise they would take time from the kernels behind it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors only: it warns about whatever it finds odd in a model
    brief = _version(onnxruntime.__version__) >= _SPINS_BRIEFLY
    if brief:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))
    if not (brief and alone):
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version, as of "1.26rc1"."""
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


class PartSession:
    """A session of onnxruntime for a part.

    Args:
        session: The session.
        title: What messages call the part.

    Attributes:
        inputs: The names of its inputs.
        outputs: The names of its outputs.
    """

    def __init__(self, session: Any, title: str) -> None:
        self._session, self._title = session, title
        self.inputs = [node.name for node in session.get_inputs()]
        self.outputs = [node.name for node in session.get_outputs()]
        self._shapes = [_fixed(node.shape) for node in session.get_outputs()]

    def run(self, inputs: Sequence[Array], shapes: Sequence[tuple[int, ...]] | None = None) -> list[Array]:
        """The outputs for inputs in order.

        Args:
            inputs: The inputs.
            shapes: The shapes that the outputs must have; by default those that are fixed in the part.

        Raises:
            ModelError: onnxruntime does not take the values of these inputs, such as an index outside of a table; or it
                makes an output of another shape.
        """
        feeds = dict(zip(self.inputs, inputs, strict=True))
        return self.run_by_name(feeds, self.outputs, shapes or self._shapes)

    def run_by_name(
        self, feeds: Mapping[str, Array], outputs: Sequence[str], shapes: Sequence[tuple[int, ...] | None]
    ) -> list[Array]:
        """Some outputs for inputs by name.

        Args:
            feeds: The inputs.
            outputs: The names of the outputs.
            shapes: The shapes that they must have; None for one that may have any.

        Raises:
            ModelError: As `run`.
        """
        try:
            values: list[Array] = self._session.run(outputs, feeds)
        except Exception as error:
            raise self._refused(error) from error
        for name, value, shape in zip(outputs, values, shapes, strict=True):
            if shape is not None and value.shape != shape:
                raise ModelError(f"{self._title} makes {shown(name)!r} of shape {value.shape}, which should be {shape}")
        return values

    def run_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Writes the outputs for inputs in order. All arrays are contiguous.

        Raises:
            ModelError: As `run`.
        """
        if sum(output.nbytes for output in outputs) <= _COPIED:
            values = self.run(inputs, [output.shape for output in outputs])
            for output, value in zip(outputs, values, strict=True):
                np.copyto(output, value, casting="no")
            return
        binding = self._session.io_binding()
        for bind, names, arrays in (
            (binding.bind_input, self.inputs, inputs),
            (binding.bind_output, self.outputs, outputs),
        ):
            for name, array in zip(names, arrays, strict=True):
                bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ModelError:
        """What onnxruntime has raised: its exceptions have no base class, and a program of users knows none of them."""
        return ModelError(f"{self._title} does not take its inputs: {one_line(error)}")


def _fixed(shape: Sequence[Any]) -> tuple[int, ...] | None:
    """A shape as onnxruntime says it; None if a size is open. It says "no dimensions" of an unknown rank, too."""
    return tuple(shape) if shape and all(isinstance(size, int) and size >= 0 for size in shape) else None


def sums_saturate() -> bool:
    """Whether onnxruntime adds up products of uint8 and int8 in 16 bits: on x86 CPUs without VNNI, by default."""
    return cpu_family() == "x86" and len(missing_features(["avx512vnni", "avxvnni"])) == 2


def ask_for_exact_sums(options: Any) -> None:
    """Tells onnxruntime to add up products of bytes exactly where it does not do so by default.

    It also rounds floats to bytes before it multiplies them by dequantised codes of 4 bits, unless it is told not to.

    Args:
        options: Its options of a session. They are changed.
    """
    if sums_saturate():
        options.add_session_config_entry(EXACT_SUMS, "1")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # sums of float32


def session_of(model: bytes, options: Any, weights: Mapping[str, Array] | None = None) -> Any:
    """A session of an ONNX model on the CPU. One that onnxruntime refuses to optimise is not optimised.

    Its sums of products of bytes are exact on every CPU, as far as it optimises the model and the weights are constant;
    see `sums_saturate`.

    Args:
        model: The model.
        options: onnxruntime's options of a session. They are changed.
        weights: The initializers that stand in files, by name. onnxruntime reads them where they are, and holds them no
            longer than the options: the session keeps them. If they are many, it does not pack those of products.

    Raises:
        Exception: Whatever onnxruntime raises for a model that it does not take.
    """
    import onnxruntime

    ask_for_exact_sums(options)
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in weights.values()]
        options.add_external_initializers(list(weights), values)
        if sum(value.nbytes for value in weights.values()) > _PACKED:
            options.add_session_config_entry("session.disable_prepacking", "1")
    session = parts.session_of(model, options, ["CPUExecutionProvider"])
    session.weights = weights
    return session


def _session(name: str, part: OnnxruntimePart, model: bytes, threads: int, keep_denormals: bool) -> PartSession:
    options = session_options(threads, part.whole)
    options.add_session_config_entry("session.set_denormal_as_zero", "0" if keep_denormals else "1")
    try:
        # The first session of a process sets the mode of the thread that makes it, and leaves it so.
        with denormals(flushed=not keep_denormals):
            return PartSession(session_of(model, options), f"{name}: onnxruntime's part ({', '.join(part.operators)})")
    except Exception as error:
        # onnxruntime's exceptions have no base class of their own.
        raise ModelError(f"{name}: onnxruntime does not take {', '.join(part.operators)}: {one_line(error)}") from error
