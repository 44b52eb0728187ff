"""What a contender is: something that runs in a process of its own and is timed beside others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Unavailable(Exception):
    """A contender cannot take part on this machine or in this bench. The message is the reason."""


class Contender(Protocol):
    """What a contender's process holds: everything is prepared when it is made, then it is executed repeatedly.

    Attributes:
        settings: What a reader has to know to repeat the timing, such as threads and layouts.
        versions: The versions of its libraries, by name.
    """

    settings: Mapping[str, Any]
    versions: Mapping[str, str]

    def run(self) -> object:
        """Execute once, as a user of the library would do it."""

    def outputs(self) -> list[Any]:
        """Execute once and return the output arrays, in the layout of the workload."""


@dataclass(frozen=True)
class ContenderSpec:
    """How to make a contender in its process.

    Attributes:
        name: The name under which its times are reported.
        maker: The class or function that makes the `Contender`, as "module:name". It is called with `arguments` and
            with the number of `threads`, and raises `Unavailable` if the contender cannot take part.
        arguments: Its keyword arguments, which are pickled.
    """

    name: str
    maker: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
