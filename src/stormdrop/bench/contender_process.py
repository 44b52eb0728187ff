"""The process of a contender: the handle that the bench holds, and the loop that runs inside the process.

Thread pools spin: a pool that has just finished keeps its cores busy for a while, waiting for more work, and takes time
from whatever runs next. So every contender, ours too, has a process of its own, which is stopped (SIGSTOP) except while
it answers a request.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from ..errors import MeasureError, one_line
from ..machine.process.child_process import ChildProcess
from ..machine.sharing.foreign_load import LoadThresholds, LoadWatch, read_counters, spent_since
from ..measure.timing import Call, Timer, TimingPlan, sample, time_calls
from ..tuning.options import TF32
from .closed_loop import MOST_CALLS, LoopTimes, closed_loop
from .contender import Contender, ContenderSpec, TimedByDevice, Unavailable, forms_of

LIMITS = LoadThresholds(foreign_cores=0.4, stolen_fraction=0.1)
"""When a turn counts as disturbed. A median of five samples survives a short disturbance, not a steady competitor."""

_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Gives every contender huge pages. NumPy asks for them, allocators do not, and streams without took a third longer."""


class ContenderProcess:
    """A contender's process, seen from outside. It is stopped except during calls of the methods.

    Use it as a context, or call `close`.

    Attributes:
        name: The name of the contender.
        device: What it executes on.
        settings: What the contender says about how it runs.
        versions: The versions of the contender's libraries.
    """

    def __init__(self, spec: ContenderSpec, threads: int, patience: float = 600.0) -> None:
        """Starts the process and waits until the contender is prepared.

        Args:
            spec: How to make the contender.
            threads: The number of threads that it may use.
            patience: Seconds after which the process is killed if it does not answer.

        Raises:
            Unavailable: The contender cannot take part.
            MeasureError: The process died, or did not answer in time.
        """
        self.name, self.device = spec.name, spec.device
        self._patience = patience
        environment = environment_of(spec, threads)
        self._child = ChildProcess(f"{__name__}:serve", (spec, threads), environment, fresh=True, die_with_thread=True)
        try:
            kind, answer = self._answer()
            if kind == "unavailable":
                raise Unavailable(answer)
            self.settings: dict[str, Any] = answer["settings"]
            self.versions: dict[str, str] = answer["versions"]
            self._child.pause()
        except BaseException:
            self.close()
            raise

    def take_turn(self, plan: TimingPlan, whole_calls: bool = False) -> tuple[list[float], bool]:
        """Times the contender after a warm-up.

        Args:
            plan: How many samples to take, and how long each is.
            whole_calls: On a GPU: whether its copies from and to this machine are timed, too.

        Returns:
            The samples in seconds per execution, and whether something else used the machine in the meantime.

        Raises:
            MeasureError: The contender failed, or its process died.
        """
        samples, disturbed = self._request_awake(("time", (plan, whole_calls)))
        return samples, disturbed

    def outputs(self) -> list[Any]:
        """The output arrays of one execution. Raises `MeasureError` as `take_turn` does."""
        arrays: list[Any] = self._request_awake(("outputs", None))
        return arrays

    def forms(self, at_a_time: int) -> list[str]:
        """Prepares the contender for a number of calls at a time. What was prepared for another number is given up.

        Returns:
            The names of the forms in which it serves them.

        Raises:
            Unavailable: It cannot serve so many.
            MeasureError: As `take_turn`.
        """
        names: list[str] = self._request_awake(("forms", at_a_time))
        return names

    def serve_calls(self, form: str, seconds: float) -> tuple[LoopTimes, bool]:
        """Lets callers call the contender in one of its forms.

        Args:
            form: The name of the form, of those for which it was prepared last.
            seconds: How long new calls begin.

        Returns:
            What the callers have seen, and whether something else used the machine in the meantime.

        Raises:
            MeasureError: As `take_turn`.
        """
        times, disturbed = self._request_awake(("serve", (form, seconds)))
        return times, disturbed

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._child.close()

    def __enter__(self) -> ContenderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request_awake(self, request: object) -> Any:
        """The answer to a request, for which the process runs until it has answered."""
        self._child.resume()
        try:
            self._child.send(request)
            kind, answer = self._answer()
        finally:
            self._child.pause()
        if kind == "unavailable":
            raise Unavailable(answer)
        if kind == "failed":
            raise MeasureError(f"{self.name} failed: {answer}")
        return answer

    def _answer(self) -> tuple[str, Any]:
        try:
            answer = self._child.answer(self._patience)
        except TimeoutError as error:
            raise MeasureError(f"{self.name}: {error}; its process was ended") from error
        if answer is None:
            raise MeasureError(f"{self.name}: its process ended ({self._child.wait()}): {self._child.last_line()}")
        kind, value = answer
        return kind, value


# Inside the contender's process


def environment_of(spec: ContenderSpec, threads: int) -> dict[str, str]:
    """What is set in the environment of a contender's process.

    NVIDIA's libraries multiply in TF32, as TensorRT does unasked, only for a contender that is to do so.

    Args:
        spec: How to make the contender.
        threads: The number of threads that it may use.
    """
    tunables = ":".join(filter(None, [os.environ.get("GLIBC_TUNABLES"), _HUGE_PAGES]))
    override = {} if spec.arguments.get("precision") == TF32 else {"NVIDIA_TF32_OVERRIDE": "0"}
    return {"TVM_NUM_THREADS": str(threads), "GLIBC_TUNABLES": tunables, **override}


def serve(connection: Connection, spec: ContenderSpec, threads: int) -> None:
    """Runs a contender's process: makes the contender, then answers requests until the pipe is closed."""

    def answer(kind: str, value: object) -> None:
        connection.send((kind, value))

    try:
        contender = _maker(spec.maker)(threads=threads, **spec.arguments)
        contender.run()
    except Unavailable as error:
        answer("unavailable", str(error))
        return
    except ImportError as error:
        answer("unavailable", f"{error.name or error} is not installed")
        return
    except Exception as error:  # noqa: BLE001  (whatever a peer raises is the reason that is reported)
        answer("unavailable", one_line(error))
        return
    watch = LoadWatch(threads, LIMITS)
    callers = ThreadPoolExecutor(MOST_CALLS, "caller")  # threads are kept from turn to turn, as those of a server
    forms: Mapping[str, Sequence[Call]] = {}
    answer("ready", {"settings": dict(contender.settings), "versions": dict(contender.versions)})
    while True:
        try:
            kind, plan = connection.recv()
        except EOFError:
            return
        try:
            if kind == "time":
                timing, whole_calls = plan
                before = read_counters()
                samples = sample(contender.run, timing, timer=time_calls if whole_calls else _timer(contender))
                answer("times", (samples, watch.suspect(spent_since(before, spec.device))))
            elif kind == "forms":
                forms = {}
                forms = forms_of(contender, plan)
                answer("forms", list(forms))
            elif kind == "serve":
                form, seconds = plan
                before = read_counters()
                times = closed_loop(forms[form], seconds, callers)
                answer("served", (times, watch.suspect(spent_since(before, spec.device))))
            else:
                answer("outputs", contender.outputs())
        except Unavailable as error:
            answer("unavailable", str(error))
        except Exception as error:  # noqa: BLE001  (reported to the parent)
            answer("failed", one_line(error))


def _timer(contender: Contender) -> Timer:
    """What times executions of a contender."""
    return (lambda _, number: contender.seconds(number)) if isinstance(contender, TimedByDevice) else time_calls


def _maker(name: str) -> Callable[..., Contender]:
    """The class or function that a `ContenderSpec.maker` names."""
    module, _, attribute = name.partition(":")
    maker: Callable[..., Contender] = getattr(importlib.import_module(module), attribute)
    return maker
