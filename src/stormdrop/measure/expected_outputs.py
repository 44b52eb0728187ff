"""The expected outputs of a workload, which NumPy computes while the workers compile.

There are two sets of inputs. Small integers find every wrong index, because sums of them are exact. Real numbers of
very different magnitudes find what integers hide: a loss of precision, and what is wrong only for large values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..errors import MeasureError, UnsupportedFunction
from ..ir.error_bounds import rounding_bounds, varied_inputs
from .pool.jobs import Data, Reals

if TYPE_CHECKING:
    from ..ir.workload import Workload

Array = NDArray[Any]

_MOST_REAL_OPERATIONS = 4e9  # NumPy takes some 0.3 s for each of the two references
_MOST_REAL_BYTES = 128 << 20  # of all inputs and outputs: a worker holds real numbers besides the integers


class ExpectedOutputs:
    """The outputs of the reference for some inputs, computed in a thread of their own.

    The thread begins at `start`, so that a measurer that never measures never computes. It has ended when `close`
    returns.

    Attributes:
        waited: Wall seconds that callers have waited for the thread.
    """

    def __init__(self, workload: Workload, inputs: Sequence[Array], seed: int) -> None:
        """Expected outputs that are not computed yet.

        Args:
            workload: The function.
            inputs: One array per input.
            seed: The seed of the real numbers.
        """
        self.waited = 0.0
        self._outcome: tuple[Data, Reals | None] | Exception | None = None
        self._thread = threading.Thread(target=self._compute, args=(workload, inputs, seed), daemon=True)

    def start(self) -> None:
        """Begins to compute, unless that has begun before."""
        if self._thread.ident is None:
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
            MeasureError: The reference cannot be computed.
        """
        return self._computed()[0]

    def reals(self) -> Reals | None:
        """Waits for the real numbers and what is expected of them.

        Returns:
            None if the function has no bound for its rounding (`rounding_bounds`), or if they would take too much
            memory or time.

        Raises:
            MeasureError: The reference cannot be computed.
        """
        return self._computed()[1]

    def close(self) -> None:
        """Waits for the thread if it was started: NumPy cannot be stopped, and it must not disturb a later kernel."""
        if self._thread.ident is not None:
            self._thread.join()

    def _computed(self) -> tuple[Data, Reals | None]:
        self.wait()
        if isinstance(self._outcome, tuple):
            return self._outcome
        raise MeasureError(f"the expected output cannot be computed: {self._outcome}") from self._outcome

    def _compute(self, workload: Workload, inputs: Sequence[Array], seed: int) -> None:
        try:
            outputs, ties = workload.reference_with_ties(inputs)
            data = Data(outputs=tuple(outputs), ties=tuple(ties), tolerance=workload.tolerance(outputs))
            self._outcome = data, _reals(workload, seed)
        except Exception as error:  # noqa: BLE001  raised in the thread that needs the outputs
            self._outcome = error


def _reals(workload: Workload, seed: int) -> Reals | None:
    """None if they would cost too much, or if the function has no bound for its rounding."""
    if workload.bytes > _MOST_REAL_BYTES or workload.flops > _MOST_REAL_OPERATIONS:
        return None
    inputs = varied_inputs(workload, seed)
    try:
        return Reals(tuple(inputs), tuple(workload.reference(inputs)), tuple(rounding_bounds(workload, inputs)))
    except (UnsupportedFunction, MemoryError):  # the integers are checked without them
        return None
