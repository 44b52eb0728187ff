"""The contract of a measurer: requests in, measurements out; a failure is a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, runtime_checkable

from typing_extensions import Self

from ..trial import Candidate, Measurement, Request


@runtime_checkable
class Measurer(Protocol):
    """Measures candidates of one workload on one target. A context manager; not thread-safe.

    Raises `MeasureError` where no candidate could be measured at all (no worker starts), and nothing else.
    """

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        """One measurement per request, in order, each yielded as soon as it is known.

        A measurement that is OK holds `repeats` samples or fewer (a hopeless candidate may be cut after one), or
        more where one execution brings several.
        The caller may stop taking before the end: what was not taken is abandoned.
        """

    def race(self, candidates: Sequence[Candidate], rounds: int) -> list[Measurement]:
        """Measure a few candidates interleaved: every round takes one sample of each, in a changing order.

        Returns one measurement per candidate, in order. Those that are OK hold exactly `rounds` samples, and
        sample r of all of them was taken in round r, so that they can be compared in pairs.
        """

    def close(self) -> None:
        """Give back processes and locks. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
