"""The time that a job has taken, without the time in which its worker could not work.

A process that is stopped, a machine that stands still, and cores that others use say nothing about a candidate. So
these seconds do not count towards the limit of its job:

    this process stood still       a wait of half a second took much longer: the machine or the group was stopped
    the worker was stopped         by a signal (Linux)
    the worker waited for a core   its threads were ready to run and others ran (Linux)

The readings are taken every half a second, and only while a job is waited for. A job that is short costs none.
"""

from __future__ import annotations

from pathlib import Path

INTERVAL = 0.5
"""Seconds between two readings."""

_GAP = 0.25  # seconds by which a wait may be late before this process counts as having stood still


class JobClock:
    """Counts the seconds of one job of one worker. Only waits count, so that a slow caller costs the job nothing.

    Attributes:
        used: The seconds that the job has taken so far.
        late: Whether the job has used up its limit.
    """

    def __init__(self, pid: int, limit: float, most_granted: float) -> None:
        """Begins to count.

        Args:
            pid: The process of the worker.
            limit: The seconds that the job may take.
            most_granted: The most seconds in which the worker is held back that do not count.
        """
        self._pid = pid
        self._limit = limit
        self.used = 0.0
        self._grantable = most_granted
        self._since_reading = 0.0
        self._delays: dict[str, float] = {}

    @property
    def left(self) -> float:
        """Seconds until the next call of `add` is due: the limit or the next reading."""
        return max(0.0, min(self._limit - self.used, INTERVAL - self._since_reading))

    @property
    def late(self) -> bool:
        return self.used >= self._limit

    def add(self, asked: float, waited: float) -> None:
        """Counts a wait.

        Args:
            asked: The seconds that the wait should have taken at most.
            waited: The seconds that it took.
        """
        if waited > asked + _GAP:  # what the worker did meanwhile is unknown
            waited = asked
        self.used += waited
        self._since_reading += waited
        if self._since_reading >= INTERVAL or self.late:
            held_back = min(self._since_reading, self._held_back(), self._grantable)
            self.used -= held_back
            self._grantable -= held_back
            self._since_reading = 0.0

    def _held_back(self) -> float:
        """Seconds since the last reading in which the worker could not work, as far as the platform says."""
        before, self._delays = self._delays, _run_delays(self._pid)
        if _is_stopped(self._pid):
            return self._since_reading
        # The largest and not the sum: the threads of a kernel wait for the one that waits for a core.
        return max((delay - before.get(thread, delay) for thread, delay in self._delays.items()), default=0.0)


def _run_delays(pid: int) -> dict[str, float]:
    """Seconds that each thread of a process has waited for a core so far; empty if the platform does not say."""
    delays = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            delays[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # another platform, or a process that has just ended
        pass
    return delays


def _is_stopped(pid: int) -> bool:
    try:
        # The name of the program, in parentheses, may hold spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False
