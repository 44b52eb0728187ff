"""What a contender is: something that runs in a process of its own and is timed beside others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..machine.contract import CPU
from ..measure.timing import Call


class Unavailable(Exception):
    """A contender cannot take part on this machine or in this bench. The message is the reason."""


def require_float32(arguments: Mapping[str, Any]) -> None:
    """Checks that an operator is one of float32, which is what the peers of operators compute.

    Args:
        arguments: The arguments of its workload.

    Raises:
        Unavailable: It has another type.

    Example:
        >>> require_float32({"m": 4, "dtype": "float32"})
    """
    dtype = arguments.get("dtype", "float32")
    if dtype != "float32":
        raise Unavailable(f"it takes part in float32 only, not in {dtype}")


class Contender(Protocol):
    """What a contender's process holds: everything is prepared when it is made, then it is executed repeatedly.

    Attributes:
        settings: What a reader has to know to repeat the timing, such as threads and layouts.
        versions: The versions of its libraries, by name.
    """

    settings: Mapping[str, Any]
    versions: Mapping[str, str]

    def run(self) -> object:
        """Executes once, as a user of the library would do it."""

    def outputs(self) -> list[Any]:
        """Executes once and returns the output arrays, in the layout of the workload."""


@runtime_checkable
class TimedByDevice(Protocol):
    """What a contender on a GPU has besides. Its `run` then takes and returns arrays of this machine."""

    def seconds(self, executions: int) -> float:
        """The mean seconds of executions, one after the other, by the device's clock, without copies from and to it.

        Args:
            executions: Their number.
        """


@runtime_checkable
class Serves(Protocol):
    """What a contender has besides if it can serve several calls at a time."""

    def forms(self, at_a_time: int) -> Mapping[str, Sequence[Call]]:
        """Prepares for a number of calls at a time.

        Args:
            at_a_time: The number of calls, 2 or more.

        Returns:
            For each form in which it serves them, by a name such as "one session, 4 threads", what each of the callers
            calls from a thread of its own.

        Raises:
            Unavailable: It cannot serve so many.
        """


def forms_of(contender: Contender, at_a_time: int) -> Mapping[str, Sequence[Call]]:
    """The forms in which a contender serves calls; see `Serves.forms`. One call at a time has a single form.

    Args:
        contender: The contender.
        at_a_time: The number of calls.

    Raises:
        Unavailable: It serves fewer calls only.
    """
    if at_a_time == 1:
        return {"": [contender.run]}
    if not isinstance(contender, Serves):
        raise Unavailable("is timed with one call at a time only")
    return contender.forms(at_a_time)


@dataclass(frozen=True)
class ContenderSpec:
    """How to make a contender in its process.

    Attributes:
        name: The name under which its times are reported.
        maker: The class or function that makes the `Contender`, as "module:name". It is called with `arguments` and
            with the number of `threads`, and raises `Unavailable` if the contender cannot take part.
        arguments: Its keyword arguments, which are pickled.
        device: What it executes on, a constant of `machine.contract`.
    """

    name: str
    maker: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    device: str = CPU
