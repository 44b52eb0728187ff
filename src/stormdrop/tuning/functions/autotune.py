"""`autotune`: a decorator that finds the block sizes and flags of a Python function when it is first called.

    call  ->  key of its arguments  ->  the configuration that is known for the key, else a tuning  ->  the call

The function may be compiled by Numba or Triton, or call something that takes options. `minimize` does the search.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time as time_module
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType, SimpleNamespace
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from ...errors import InputError, MeasureError, SpaceError, hint, quoted
from ...measure.timing import Call, TimingPlan, sample
from ...records import Store
from ...space import Categorical, Constraint, Knob, Ordinal, Space
from ..minimize import minimize
from ..options import DEFAULT_SEARCH, TuneOptions
from ..result import MinimizeResult
from .arrays import copy_of
from .configuration_check import ConfigurationCheck

P = ParamSpec("P")
R = TypeVar("R")

Configurations = Space | Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
"""What may vary: a space, the values of each parameter, or a list of configurations."""

Key = Callable[..., Hashable] | Sequence[str] | None
"""What a configuration is found for: a function of the arguments, or the names of some of them."""

Check = Callable[..., Any] | Literal["default"] | None
"""What says whether a configuration computes what it should: a reference, or the default configuration."""

clock = SimpleNamespace(perf_counter=time_module.perf_counter)  # whatever a function that is tuned makes of the module

DEFAULT_SECONDS = 10.0
"""Wall time of the tuning of one key that is given neither trials nor time."""


def autotune(
    configurations: Configurations,
    *,
    key: Key = None,
    trials: int | None = None,
    time: float | str | None = None,
    search: str = DEFAULT_SEARCH,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    restore: Sequence[str] = (),
    synchronize: Callable[[], object] | None = None,
    check: Check = None,
    tolerance: float | None = None,
    store: Store | None = None,
) -> Callable[[Callable[P, R]], Autotuned[P, R]]:
    """Decorates a function so that its first call with arguments of a kind finds its fastest configuration.

    Parameters that are tuned are parameters of the function; their defaults, if there are any, are the default
    configuration. The first call for a key runs the function many times with the arguments that it got, and returns
    what the fastest configuration computes. Later calls for this key use that configuration. A call that gives one of
    the parameters itself is not tuned.

    A configuration that raises an exception fails alone. With `check`, so does one that computes something else; it
    never wins. Without it nothing checks that all configurations compute the same: list only those that do.

    Args:
        configurations: The values of each parameter, by name; or a list of configurations; or a `Space`. Values are
            numbers, truth values or text. Numbers have an order, others have none.
        key: What a configuration is found for: a function of the arguments (without the tuned ones) that returns
            something hashable; or the names of the arguments that matter. By default all matter: an array by its shape
            and type, a number, a text or a truth value by itself, anything else by its type.
        trials: The most configurations that are measured for a key.
        time: The most wall time for a key, in seconds or as text ("30s"). Without `trials` and `time` it is 10 seconds.
        search: As in `tune`.
        options: As in `tune`.
        seed: As in `tune`.
        restore: The names of arguments that the function changes and reads. They get their contents back before
            each run: arrays of NumPy, CuPy or torch.
        synchronize: Waits until what the function has started is done, such as `torch.cuda.synchronize`.
        check: A function that is called like this one, without the parameters that are tuned, and that returns, or
            writes to its arguments, what is right; or "default": what the default configuration computes. Types,
            shapes and memory layouts have to be the same. Each configuration gets copies of the arguments: with the
            caller's values in its timed calls, and with others before and after them. Checking is no part of the times
            of configurations; `Autotuned.check_seconds` says how long it took.
        tolerance: The greatest max|difference| / max|reference| of floats. By default it is 1e-9 for float64, 2e-5 for
            float32 and four times the distance of two numbers for types with fewer digits. The type of the output or
            of an argument with the fewest digits decides.
        store: Where results are kept. A key that was tuned before, by the same code on the same kind of machine, is
            then not tuned again. By default they last as long as the process.

    Returns:
        A decorator. What it returns is called like the function; see `Autotuned`.

    Raises:
        InputError: A setting is bad, or the function has no parameter of a name that is to be tuned. In a call:
            `key` returns something that is not hashable, or the reference something that cannot be compared.
        MeasureError: In a call: no configuration works; the message says why the last one failed.

    Example:
        >>> import numpy as np
        >>> import stormdrop as sd
        >>> @sd.autotune({"block": [64, 256, 1024]}, trials=3)
        ... def total(values, block=256):
        ...     return sum(float(values[i : i + block].sum()) for i in range(0, len(values), block))
        >>> total(np.ones(4096))
        4096.0
        >>> list(total.results)
        [(((4096,), 'float64'),)]
    """
    if key is not None and not callable(key) and not isinstance(key, Sequence):
        raise InputError(f"autotune: key={quoted(key)} is neither a function nor a sequence of names")
    if isinstance(restore, str) or not isinstance(restore, Sequence):
        raise InputError(f"autotune: restore={quoted(restore)} is no sequence of names")
    if isinstance(key, str):
        raise InputError(f"autotune: key={key!r} is text; give a sequence of names, such as ({key!r},)")
    if check is not None and check != "default" and not callable(check):
        raise InputError(f"autotune: check={quoted(check)} is neither a function nor 'default'")
    if tolerance is not None and (check is None or not 0 <= tolerance < 1):
        raise InputError(f"autotune: tolerance={quoted(tolerance)} must be from 0 to 1, and needs check=...")
    tune_options = TuneOptions.of(search=search, options=options, trials=trials, time=time, seed=seed)

    def decorate(function: Callable[P, R]) -> Autotuned[P, R]:
        return Autotuned(function, configurations, key, tune_options, restore, synchronize, check, tolerance, store)

    return decorate


class Autotuned(Generic[P, R]):
    """A function whose configuration is found when it is called; `autotune` makes it.

    Several threads may call it: the first one tunes, and others with arguments of the same kind wait for it. A call
    that the function makes to itself while it is tuned uses the default configuration.

    Attributes:
        function: The function.
        space: What may vary. Its origin is the default configuration.
        results: The result of the tuning of each key.
        check_seconds: Wall time of the checks of each key; empty without `check`.
    """

    def __init__(
        self,
        function: Callable[P, R],
        configurations: Configurations,
        key: Key,
        options: TuneOptions,
        restore: Sequence[str],
        synchronize: Callable[[], object] | None,
        check: Check,
        tolerance: float | None,
        store: Store | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.results: dict[Hashable, MinimizeResult] = {}
        self.check_seconds: dict[Hashable, float] = {}
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise InputError(f"autotune: {quoted(function)} is no function whose parameters are known") from None
        self.space = _space(_name(function), configurations, self._signature)
        self._tuned = {knob.name for knob in self.space.knobs}
        self._key, self._options, self._restore = key, options, tuple(restore)
        self._synchronize, self._store = synchronize, store
        self._check, self._tolerance = check, tolerance
        self._lock = threading.RLock()
        self._configs: dict[Hashable, dict[str, Any]] = {}
        self._tuning = False
        for name in (*self._restore, *(key if key is not None and not callable(key) else ())):
            if name not in self._signature.parameters or name in self._tuned:
                others = [parameter for parameter in self._signature.parameters if parameter not in self._tuned]
                raise InputError(f"autotune: {_name(function)} has no argument {name!r}; {hint(name, others)}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        given = self._signature.bind_partial(*args, **kwargs).arguments
        if self._tuned & given.keys():
            return self.function(*args, **kwargs)
        call: Callable[..., R] = self.function
        return call(*args, **{**kwargs, **self.config(*args, **kwargs)})

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def config(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The configuration for these arguments, which is found now if it is not known yet."""
        key = self.key_of(*args, **kwargs)
        known = self._configs.get(key)
        if known is not None:
            return known
        with self._lock:
            if self._tuning:
                return dict(self.space.config(self.space.origin))
            if key not in self._configs:
                self._tuning = True
                try:
                    self._configs[key] = self._tune(key, args, kwargs)
                finally:
                    self._tuning = False
            return self._configs[key]

    def key_of(self, *args: Any, **kwargs: Any) -> Hashable:
        """The key of a call with these arguments."""
        if callable(self._key):
            key = self._key(*args, **kwargs)
        else:
            arguments = self._signature.bind_partial(*args, **kwargs)
            arguments.apply_defaults()
            names = self._key if self._key is not None else [n for n in arguments.arguments if n not in self._tuned]
            key = tuple(_kind(arguments.arguments[name]) for name in names if name in arguments.arguments)
        try:
            hash(key)
        except TypeError as error:
            raise InputError(f"autotune: the key of {_name(self.function)} is not hashable: {error}") from error
        return key

    def _tune(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        warm: set[tuple[Any, ...]] = set()
        bound = self._signature.bind_partial(*args, **kwargs)
        check = self._checked(bound)
        if check is not None:
            bound, args, kwargs = check.timed.bound, check.timed.args, check.timed.kwargs
        restored = [bound.arguments[name] for name in self._restore if name in bound.arguments]
        with self._restored(restored, self._synchronize if check is None else check.wait) as timer:

            def seconds(config: dict[str, Any]) -> list[float]:
                returned: list[object] = [None]

                def given(*args: Any, **kwargs: Any) -> object:
                    return self.function(*args, **{**kwargs, **config})

                def call() -> None:
                    returned[0] = self.function(*args, **{**kwargs, **config})

                is_new = tuple(config.values()) not in warm
                if check is not None:
                    if is_new:
                        check.check_fresh(given)
                    check.begin_timed()
                if is_new:
                    timer(call, 1)  # it may be compiled now
                    warm.add(tuple(config.values()))
                samples = sample(call, TimingPlan(), timer=timer)
                if check is not None:
                    check.check_timed(given, returned[0])
                return samples

            result = minimize(
                self.space,
                seconds,
                search=self._options.search,
                options=self._options.search_options,
                trials=self._options.trials,
                time=self._options.budget(DEFAULT_SECONDS),
                seed=self._options.seed,
                store=self._store,
                resume=self._store is not None,
                name=f"{_name(self.function)} {key!r}{', checked' if check is not None else ''}",
            )
        if check is not None:
            self.check_seconds[key] = check.seconds
        if result.interrupted:
            raise KeyboardInterrupt
        if result.best is None:
            raise MeasureError(f"autotune: no configuration of {_name(self.function)} works: {result.error}")
        self.results[key] = result
        return dict(result.best.config)

    def _checked(self, bound: inspect.BoundArguments) -> ConfigurationCheck | None:
        if self._check is None:
            return None

        def default(*args: Any, **kwargs: Any) -> Any:
            return self.function(*args, **{**kwargs, **self.space.config(self.space.origin)})

        reference = self._check if callable(self._check) else default
        seed = self._options.seed
        return ConfigurationCheck(reference, bound, self._restore, self._tolerance, seed, self._synchronize)

    @contextmanager
    def _restored(
        self, arrays: Sequence[Any], synchronize: Callable[[], object] | None
    ) -> Iterator[Callable[[Call, int], float]]:
        """A timer of calls, before each of which the arrays get their contents back; and once more in the end."""
        contents = [copy_of(array) for array in arrays]
        wait = synchronize or (lambda: None)

        def restore() -> None:
            for array, content in zip(arrays, contents, strict=True):
                array[...] = content

        def timer(call: Call, number: int) -> float:
            seconds = 0.0
            for _ in range(number if arrays else 1):
                restore()
                wait()
                begin = clock.perf_counter()
                for _ in range(1 if arrays else number):
                    call()
                wait()
                seconds += clock.perf_counter() - begin
            return seconds / number

        try:
            yield timer
        finally:
            restore()


def _space(name: str, configurations: Configurations, signature: inspect.Signature) -> Space:
    """The space of the configurations; its origin are the function's defaults where it has them."""
    constraints: list[Constraint] = []
    if isinstance(configurations, Space):
        values: dict[str, list[Any]] = {knob.name: [] for knob in configurations.knobs}
    elif isinstance(configurations, Mapping):
        values = {parameter: _list(name, choices) for parameter, choices in configurations.items()}
    else:
        values, constraints = _listed(name, _list(name, configurations))
    if not values:
        raise InputError(f"autotune: nothing of {name} may vary")
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for parameter in values:
        if parameter not in signature.parameters and not takes_any:
            raise InputError(
                f"autotune: {name} has no parameter {parameter!r}; {hint(parameter, signature.parameters)}"
            )
    if isinstance(configurations, Space):
        return configurations
    try:
        knobs = [_knob(name, parameter, choices) for parameter, choices in values.items()]
        space = Space(name, knobs, constraints)
        defaults = {
            parameter: signature.parameters[parameter].default
            for parameter in values
            if parameter in signature.parameters
        }
        config = {
            **space.config(space.origin),
            **{p: d for p, d in defaults.items() if isinstance(d, int | float | str) and d in values[p]},
        }
        if not space.contains(_coordinates(space, config)):
            return space
        return Space(name, knobs, constraints, origin=config)
    except SpaceError as error:
        raise InputError(f"autotune: {error}") from error


def _list(name: str, given: Any) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise InputError(f"autotune: what may vary of {name} is a list, not {quoted(given)}") from None


def _coordinates(space: Space, config: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(index for knob in space.knobs for index in knob.coordinates(config[knob.name]))


def _listed(name: str, configs: list[Mapping[str, Any]]) -> tuple[dict[str, list[Any]], list[Constraint]]:
    """The values of each parameter in a list of configurations, and the constraint that one of the list is taken."""
    if not configs:
        raise InputError(f"autotune: the list of configurations of {name} is empty")
    for config in configs:
        if not isinstance(config, Mapping):
            raise InputError(f"autotune: a configuration of {name} is a value per parameter, not {quoted(config)}")
        for parameter, value in config.items():
            _require_value(name, parameter, value)
    names = list(configs[0])
    for config in configs:
        if config.keys() != configs[0].keys():
            raise InputError(f"autotune: configurations of {name} set different parameters: {names} and {list(config)}")
    values = {parameter: list(dict.fromkeys(config[parameter] for config in configs)) for parameter in names}
    members = [tuple(config[parameter] for parameter in names) for config in configs]
    return values, [Constraint.one_of(names, members)] if names else []


def _knob(name: str, parameter: str, values: Sequence[Any]) -> Knob:
    for value in values:
        _require_value(name, parameter, value)
    if any(isinstance(value, bool | str) for value in values):
        return Categorical(parameter, values)
    return Ordinal(parameter, sorted(values))


def _require_value(name: str, parameter: str, value: Any) -> None:
    if not isinstance(value, int | float | str):
        raise InputError(
            f"autotune: {parameter!r} of {name} is a number, a truth value or text, not {type(value).__name__}"
        )


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '')}.{name}"


def _kind(argument: Any) -> Hashable:
    """What of an argument matters by default."""
    if hasattr(argument, "shape") and hasattr(argument, "dtype"):
        return tuple(argument.shape), str(argument.dtype)
    if argument is None or isinstance(argument, bool | int | float | complex | str | bytes):
        return argument
    return f"{type(argument).__module__}.{type(argument).__qualname__}"
