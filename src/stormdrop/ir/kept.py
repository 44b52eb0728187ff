"""What is found out about a value once, and kept with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..errors import UnsupportedFunction

Owner = TypeVar("Owner")
P = ParamSpec("P")
R = TypeVar("R")

_KEPT = "_kept"


def kept(find: Callable[Concatenate[Owner, P], R]) -> Callable[Concatenate[Owner, P], R]:
    """Makes a function keep what it finds with its first argument, for as long as that lives.

    It also keeps that there is nothing to find: an `UnsupportedFunction` is raised again with the same words. Unlike a
    cache of the function's own it keeps no first argument alive, and what was found of one value displaces nothing that
    was found of another.

    Args:
        find: A function whose result depends on its arguments only. The first one has a `__dict__` and does not
            change, such as a `Workload`. The others are hashable.
    """

    @wraps(find)
    def keeping(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        results: dict[Any, Any] = owner.__dict__.setdefault(_KEPT, _Results())
        key = (find, args, *kwargs.items())
        if key not in results:
            results.setdefault(key, found(owner, *args, **kwargs))  # the first one, if threads find several
        result = results[key]
        if isinstance(result, _Nothing):
            raise UnsupportedFunction(result.reason)
        return result  # type: ignore[no-any-return]

    def found(owner: Owner, /, *args: P.args, **kwargs: P.kwargs) -> R | _Nothing:
        try:
            return find(owner, *args, **kwargs)
        except UnsupportedFunction as error:
            return _Nothing(str(error))

    return keeping


class _Results(dict[Any, Any]):
    """What was found of one value. It does not go along to another process, which finds it again."""

    def __reduce__(self) -> tuple[type[_Results], tuple[()]]:
        return _Results, ()


@dataclass(frozen=True)
class _Nothing:
    """Why there is nothing to find."""

    reason: str
