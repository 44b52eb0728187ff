"""What the workload's outputs must be, computed while the workers compile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..errors import MeasureError
from .jobs import Data

if TYPE_CHECKING:
    from ..ir.workload import Workload

Array = NDArray[Any]


class Expectation:
    """The expected outputs, computed in a thread of their own. `waited`: seconds that callers waited for them.

    The thread begins at `start`, so that who never measures never computes, and ends before `close` returns.
    """

    def __init__(self, workload: Workload, inputs: Sequence[Array]) -> None:
        self.waited = 0.0
        self._outcome: Data | Exception | None = None
        self._thread = threading.Thread(target=self._compute, args=(workload, inputs), daemon=True)
        self._started = False

    def start(self) -> None:
        """Begins to compute, unless that was done before."""
        if not self._started:
            self._started = True
            self._thread.start()

    def wait(self) -> None:
        """Returns when the thread is done: it must not compute beside a kernel that is timed."""
        self.start()
        start = time.perf_counter()
        self._thread.join()
        self.waited += time.perf_counter() - start

    def close(self) -> None:
        """Waits for the thread, where it was started: NumPy cannot be stopped, and must disturb nobody later."""
        if self._started:
            self._thread.join()

    def data(self) -> Data:
        """Raises MeasureError where the reference could not be computed."""
        self.wait()
        if isinstance(self._outcome, Data):
            return self._outcome
        raise MeasureError(f"the expected output cannot be computed: {self._outcome}") from self._outcome

    def _compute(self, workload: Workload, inputs: Sequence[Array]) -> None:
        try:
            outputs = workload.reference(inputs)
            self._outcome = Data(outputs=tuple(outputs), tolerance=workload.tolerance(outputs))
        except Exception as error:  # noqa: BLE001  raised in the thread that needs the result
            self._outcome = error
