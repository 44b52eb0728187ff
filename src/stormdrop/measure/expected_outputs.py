"""The expected outputs of a workload, which NumPy computes while the workers compile."""

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


class ExpectedOutputs:
    """The outputs of the reference for some inputs, computed in a thread of their own.

    The thread begins at `start`, so that a measurer that never measures never computes. It has ended when `close`
    returns.

    Attributes:
        waited: wall seconds that callers have waited for the thread.
    """

    def __init__(self, workload: Workload, inputs: Sequence[Array]) -> None:
        """Expected outputs that are not computed yet.

        Args:
            workload: the function.
            inputs: one array per input.
        """
        self.waited = 0.0
        self._outcome: Data | Exception | None = None
        self._thread = threading.Thread(target=self._compute, args=(workload, inputs), daemon=True)
        self._started = False

    def start(self) -> None:
        """Begins to compute, unless that has begun before."""
        if not self._started:
            self._started = True
            self._thread.start()

    def wait(self) -> None:
        """Waits for the thread, which must not compute beside a kernel that is timed."""
        self.start()
        start = time.perf_counter()
        self._thread.join()
        self.waited += time.perf_counter() - start

    def data(self) -> Data:
        """Waits for the outputs and returns them with their tolerance.

        Raises:
            MeasureError: the reference cannot be computed.
        """
        self.wait()
        if isinstance(self._outcome, Data):
            return self._outcome
        raise MeasureError(f"the expected output cannot be computed: {self._outcome}") from self._outcome

    def close(self) -> None:
        """Waits for the thread if it was started: NumPy cannot be stopped, and it must not disturb a later kernel."""
        if self._started:
            self._thread.join()

    def _compute(self, workload: Workload, inputs: Sequence[Array]) -> None:
        try:
            outputs = workload.reference(inputs)
            self._outcome = Data(outputs=tuple(outputs), tolerance=workload.tolerance(outputs))
        except Exception as error:  # noqa: BLE001  raised in the thread that needs the outputs
            self._outcome = error
