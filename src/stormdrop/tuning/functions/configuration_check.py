"""The check of what configurations compute, which finds those that are fast because they do something else.

    fresh inputs       other values at other addresses, of both signs and several magnitudes   before the timed calls
    timed call         the outputs of the last one
    the same arrays    other values at the addresses of the timed calls                        after them

The reference says what is right: what it returns, and what it changes of its arguments. Everything else has to stay as
it is. The caller's arrays are never given to a configuration: copies are.

What cheats do is known from evaluations of generated kernels: they return memory that holds the reference's outputs,
keep results by address, work in another stream, or change what they are judged by (METR, "Recent frontier models are
reward hacking", 2025; Lange et al., "The AI CUDA Engineer", 2025; Ouyang et al., "KernelBench", 2025).
"""

from __future__ import annotations

import inspect
import sys
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...ir.dtypes import is_float, limits
from ...measure.callable import WrongAnswer
from ...measure.worker.output_check import difference, fill
from .arrays import (
    contents_of,
    copy_of,
    dtype_of,
    is_array,
    same_bytes,
    shared_with,
    strides_of,
    wait_for_devices,
    write,
)

Array = NDArray[Any]

_TOLERANCES = {"float64": 1e-9, "float32": 2e-5}
"""Of max|reference|. Sums of float32 in another order pass; TF32 and float16 inside, from 1e-4 on, do not."""

_STEPS = 4  # tolerance of types with fewer digits, in distances between two numbers
_DECOYS = 8  # blocks of memory of each output's size that are filled with other values before a call
_LATER_SECONDS = 2e-3  # after a call: outputs still are what they were
_LATE_SECONDS = 0.05  # for outputs that are wrong: are they right later?
_DECADES = (-2.0, 0.5)  # decimal logarithms of the least and the largest magnitude, in units of the caller's largest
_ZEROS = 0.05  # the share of elements that are zero
_WATCHED = ("time", "numpy", "torch", "torch.cuda", "cupy", "cupy.cuda")
_perf_counter, _sleep = clock.perf_counter, clock.sleep  # whatever a function makes of the module


class ConfigurationCheck:
    """Says of each configuration whether it computes what a reference computes.

    Args:
        reference: Is called like the function, without the parameters that are tuned.
        bound: The arguments of the call.
        kept: The names of arguments whose contents matter although they are changed.
        tolerance: The greatest max|difference| / max|reference|; None for one that fits the types.
        seed: The seed of the inputs.
        synchronize: Waits until what was started is done; None for the device of the arguments.

    Attributes:
        seconds: Wall time of the checks so far.
        timed: The arguments of timed calls.
        wait: Waits until what was started is done.

    Raises:
        InputError: The reference returns something that cannot be compared.
    """

    def __init__(
        self,
        reference: Callable[..., Any],
        bound: inspect.BoundArguments,
        kept: Sequence[str],
        tolerance: float | None,
        seed: int,
        synchronize: Callable[[], object] | None,
    ) -> None:
        begin = _perf_counter()
        self._kept, self._tolerance, self._reference = kept, tolerance, reference
        self._public = _public_functions()
        self._device = wait_for_devices([array for _, array in _arrays(bound.arguments)])
        self.wait = synchronize or self._device
        self._bound, self.timed = bound, _Arguments(bound)
        self._decoys: list[Any] = []
        own, rng = self.timed.read(), np.random.default_rng(seed)
        self._own = self._case(own)
        self._fresh = [self._drawn(own, rng, kind) for kind in (_normal, _decades)]
        self._same = self._drawn(own, rng, _normal)
        self.seconds = _perf_counter() - begin

    def check_fresh(self, call: Callable[..., object]) -> None:
        """Raises `WrongAnswer` if a call with new arrays of other values computes something else."""
        for case in self._fresh:
            self._run(call, _Arguments(self._bound), case, "")

    def begin_timed(self) -> None:
        """Gives the arguments of timed calls the caller's values, and outputs other ones."""
        self.timed.write(self._own.before)

    def check_timed(self, call: Callable[..., object], returned: object) -> None:
        """Raises `WrongAnswer` if the last timed call, or one after it with other values, computes something else."""
        begin = _perf_counter()
        try:
            self._judge(self.timed, self._own, returned, " in a timed call")
        finally:
            self.seconds += _perf_counter() - begin
        self._run(call, self.timed, self._same, " when its arrays hold other values than before")

    def _run(self, call: Callable[..., object], arguments: _Arguments, case: _Case, when: str) -> None:
        begin = _perf_counter()
        try:
            arguments.write(case.before)
            for poisoned in [copy_of(decoy) for decoy in self._decoys for _ in range(_DECOYS)]:
                del poisoned
            self._device()
            returned = call(*arguments.args, **arguments.kwargs)
            self.wait()
            self._judge(arguments, case, returned, when)
        finally:
            self.seconds += _perf_counter() - begin

    def _judge(self, arguments: _Arguments, case: _Case, returned: object, when: str) -> None:
        try:
            wrong = self._wrong(arguments, case, returned)  # at once: what works in another thread is not done yet
        finally:
            replaced = _replaced(self._public)
        self._device()
        _sleep(_LATE_SECONDS if wrong else _LATER_SECONDS)
        later = self._wrong(arguments, case, returned)
        if replaced:
            raise WrongAnswer(f"it replaces {replaced}{when}")
        if wrong != later:
            raise WrongAnswer(f"it still works after it has returned{when}: {wrong or later}")
        if wrong:
            raise WrongAnswer(wrong + when)

    def _wrong(self, arguments: _Arguments, case: _Case, returned: object) -> str:
        """One line about the first thing that is not as in a case; empty if all is."""
        outputs = _outputs(returned)
        names = [name for name in case.outputs if name not in outputs] or [n for n in outputs if n not in case.outputs]
        if names:
            return f"it returns {', '.join(outputs) or 'nothing'}, not {', '.join(case.outputs) or 'nothing'}"
        for name, expected in case.outputs.items():
            wrong = _kind(name, outputs[name], expected.kind) or self._different(name, outputs[name], expected)
            shared = shared_with(outputs[name], arguments.arrays)
            if shared - expected.shared:
                wrong = f"{name} is memory of its argument {min(shared - expected.shared)}"
            if wrong:
                return wrong
        for (name, array), before, after in zip(arguments.arrays, case.before, case.after, strict=True):
            if after is not None:
                wrong = self._different(name, array, after)
            else:
                wrong = "" if same_bytes(array, before) else f"it changes its argument {name}"
            if wrong:
                return wrong
        return ""

    def _different(self, name: str, value: Any, expected: _Expected) -> str:
        if not isinstance(expected.value, np.ndarray):
            return "" if value == expected.value else f"{name} is {value!r}, not {expected.value!r}"
        return difference(name, contents_of(value), expected.value, expected.tolerance)

    def _drawn(self, own: list[Array], rng: np.random.Generator, draw: _Draw) -> _Case:
        """A case of other floats: positive ones if both signs make NaN, the caller's in another order if these do.

        Integers may be positions, so they stay.
        """
        drawn = [draw(array, rng) if array.dtype.kind == "f" else array for array in own]
        case = self._case(drawn)
        if case.has_nan:
            case = self._case([np.abs(array) if array.dtype.kind == "f" else array for array in drawn])
        if case.has_nan:
            case = self._case([_shuffled(array, rng) if array.dtype.kind == "f" else array for array in own])
        return case

    def _case(self, before: list[Array]) -> _Case:
        """What the reference makes of values."""
        arguments = _Arguments(self._bound)
        arguments.write(before)
        before = arguments.read()  # in the precision of the arrays
        returned = self._reference(*arguments.args, **arguments.kwargs)
        self.wait()
        self._device()
        floats = [dtype for _, array in arguments.arrays if is_float(dtype := dtype_of(array))]

        def expected(value: Any) -> _Expected:
            return _Expected(
                contents_of(value).copy() if is_array(value) or isinstance(value, float | complex) else value,
                _description(value),
                frozenset(shared_with(value, arguments.arrays)),
                _tolerance([*floats, dtype_of(value)], self._tolerance),
            )

        outputs = {name: expected(value) for name, value in _outputs(returned).items()}
        for name, output in outputs.items():
            if not isinstance(output.value, np.ndarray | int | str | bytes | None):
                raise InputError(
                    f"autotune: check= compares arrays, numbers and text; {name} is a {output.kind['type']}"
                )
        after = [
            None if same_bytes(array, value) else expected(array)
            for (_, array), value in zip(arguments.arrays, before, strict=True)
        ]
        for index, (name, _) in enumerate(arguments.arrays):
            if (changed := after[index]) is not None and name.partition("[")[0] not in self._kept:
                before[index] = _other_than(changed.value)
        if not self._decoys:
            self._decoys = [_poisoned(value) for value in _outputs(returned).values() if is_array(value)]
        return _Case(before, outputs, after)


class _Arguments:
    """Copies of the arguments of a call. An array that is given twice stays one array."""

    def __init__(self, bound: inspect.BoundArguments) -> None:
        copies: dict[int, Any] = {}

        def copied(array: Any) -> Any:
            if id(array) not in copies:
                copies[id(array)] = copy_of(array)
            return copies[id(array)]

        self.bound = inspect.BoundArguments(
            bound.signature,
            {name: _mapped(value, copied) for name, value in bound.arguments.items()},
        )
        self.args, self.kwargs = self.bound.args, self.bound.kwargs
        self.arrays = list({id(array): (name, array) for name, array in _arrays(self.bound.arguments)}.values())

    def read(self) -> list[Array]:
        """The contents of all arrays."""
        return [contents_of(array).copy() for _, array in self.arrays]

    def write(self, values: Sequence[Array]) -> None:
        """Overwrites all arrays in place."""
        for (_, array), value in zip(self.arrays, values, strict=True):
            write(array, value)


@dataclass(frozen=True)
class _Expected:
    """A value that is right: its contents, what it is, the arguments that it shares memory with, its tolerance."""

    value: Any
    kind: dict[str, Any]
    shared: frozenset[str]
    tolerance: float


@dataclass(frozen=True)
class _Case:
    """Values of all arrays before a call, what it returns, and what it makes of the arrays that it may change."""

    before: list[Array]
    outputs: dict[str, _Expected]
    after: list[_Expected | None]

    @property
    def has_nan(self) -> bool:
        found = [*self.outputs.values(), *(each for each in self.after if each is not None)]
        return any(
            isinstance(each.value, np.ndarray) and each.value.dtype.kind == "f" and bool(np.isnan(each.value).any())
            for each in found
        )


_Draw = Callable[[Array, np.random.Generator], Array]


def _normal(array: Array, rng: np.random.Generator) -> Array:
    return np.asarray(rng.standard_normal(array.shape) * _scale(array) / 3).astype(array.dtype)


def _decades(array: Array, rng: np.random.Generator) -> Array:
    """Magnitudes of several decades, with zeros among them."""
    values = np.power(10.0, rng.uniform(*_DECADES, array.shape)) * rng.choice((-1.0, 1.0), array.shape)
    return np.where(rng.random(array.shape) < _ZEROS, 0.0, values * _scale(array)).astype(array.dtype)


def _shuffled(array: Array, rng: np.random.Generator) -> Array:
    return rng.permutation(array.reshape(-1)).reshape(array.shape)


def _scale(array: Array) -> float:
    """The caller's largest number, in bounds that products of two such numbers keep to."""
    largest = float(np.max(np.abs(array), where=np.isfinite(array), initial=0.0))
    return min(largest, float(np.finfo(array.dtype).max) ** 0.25) or 1.0


def _other_than(expected: Array) -> Array:
    """Contents for an output before a call, of which no element is right."""
    if expected.dtype.kind in "iub":
        return np.invert(expected)
    other = np.empty_like(expected)
    if expected.dtype.kind == "f":
        fill(other)
    else:
        other.fill(1e30)
    return other


def _tolerance(dtypes: list[str], given: float | None) -> float:
    if not dtypes or not is_float(dtypes[-1]):
        return 0.0  # the output's own type
    if given is not None:
        return given
    return max(_TOLERANCES.get(dtype) or _STEPS * float(limits(dtype).eps) for dtype in dtypes)


def _outputs(returned: Any, name: str = "the output") -> dict[str, Any]:
    """The values in what a function has returned, by name."""
    if type(returned) in (tuple, list):
        parts = dict(enumerate(returned))
    elif type(returned) is dict:
        parts = returned
    else:
        return {} if returned is None else {name: returned}
    return {path: leaf for key, part in parts.items() for path, leaf in _outputs(part, f"{name}[{key!r}]").items()}


def _arrays(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in arguments.items():
        yield from ((path, leaf) for path, leaf in _outputs(value, name).items() if is_array(leaf))


def _mapped(value: Any, copied: Callable[[Any], Any]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_mapped(part, copied) for part in value)
    if type(value) is dict:
        return {key: _mapped(part, copied) for key, part in value.items()}
    return copied(value) if is_array(value) else value


def _kind(name: str, value: Any, expected: dict[str, Any]) -> str:
    """One line about the first property of a value that is not as expected."""
    for what, found in _description(value).items():
        if found != expected.get(what):
            return f"the {what} of {name} is {found}, not {expected.get(what)}"
    return ""


def _description(value: Any) -> dict[str, Any]:
    kind = {"type": f"{type(value).__module__}.{type(value).__qualname__}"}
    if not is_array(value) or isinstance(value, np.generic):
        return kind
    shape = tuple(value.shape)
    strides = tuple(stride for stride, extent in zip(strides_of(value), shape, strict=True) if extent > 1)
    return {
        **kind,
        "shape": shape,
        "dtype": dtype_of(value),
        "device": str(getattr(value, "device", "")),
        "strides": strides,
    }


def _poisoned(value: Any) -> Any:
    copy = copy_of(value)
    write(copy, _other_than(contents_of(copy)))
    return copy


def _public_functions() -> dict[str, dict[str, Any]]:
    """The functions that times and outputs are judged by."""
    return {
        name: {key: value for key, value in vars(sys.modules[name]).items() if callable(value) and key[0] != "_"}
        for name in _WATCHED
        if name in sys.modules
    }


def _replaced(public: dict[str, dict[str, Any]]) -> str:
    """The first of these functions that is another one now; all get back what they were."""
    found = [
        (module, key, value)
        for module, functions in public.items()
        for key, value in functions.items()
        if vars(sys.modules[module]).get(key) is not value
    ]
    for module, key, value in found:
        setattr(sys.modules[module], key, value)
    return ".".join(found[0][:2]) if found else ""
