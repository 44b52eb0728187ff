"""Where kernels are measured if no fleet does it: on this machine, on a rack of boards, or by a given measurer."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext

from ..errors import InputError
from ..machine.contract import CPU, Machine
from ..machine.limits.kept_measurements import granted
from ..machine.limits.peak import peak_within
from ..machine.remote import tracker
from .boards import BoardsMeasurer, HeldBoards
from .contract import KernelSetup, Measurer, Site
from .gpus import GpusMeasurer, share
from .local import LocalMeasurer, pool_for
from .pool.pool import WorkerPool


class ThisMachine(Site):
    """This machine: its CPU, its GPUs, or one machine behind a runner.

    Args:
        pool: The worker processes to measure with; they stay open. By default each kernel has workers of its own.
    """

    def __init__(self, pool: WorkerPool | None = None) -> None:
        self._pool = pool

    def check(self, target: Machine) -> None:
        """See `Site.check`."""
        if self._pool is not None and target.device != CPU:
            raise InputError(f"target {target.name} is a GPU: each has workers of its own, pool cannot be given")
        if self._pool is not None and tracker.is_rack(target.runner):
            raise InputError(
                f"target {target.name} is a rack: each board has a worker of its own, pool cannot be given"
            )

    def prepare(self, target: Machine, seconds: float | None) -> None:
        """Measures the peak."""
        peak_within(target, granted(seconds))

    def measurer(self, setup: KernelSetup) -> AbstractContextManager[Measurer]:
        """See `Site.measurer`."""
        gpus = setup.target.gpus
        if len(gpus) > 1:
            return GpusMeasurer.of(setup)
        return LocalMeasurer(setup, pool=self._pool, gpu=gpus[0] if gpus else None)


class OwnWorkers(ThisMachine):
    """This machine with workers that serve all kernels of a model, one after the other; each of its GPUs has its own.

    Args:
        target: The machine that the kernels are made for.

    Raises:
        MeasureError: No worker can be started.
    """

    def __init__(self, target: Machine) -> None:
        super().__init__()
        gpus: list[int | None] = [*target.gpus] or [None]
        workers = share(target) if len(gpus) > 1 else None
        with ExitStack() as started:
            self._pools = {gpu: started.enter_context(pool_for(target, workers, gpu)) for gpu in gpus}
            self._open = started.pop_all()

    def measurer(self, setup: KernelSetup) -> AbstractContextManager[Measurer]:
        """See `Site.measurer`. One measurer at a time measures."""
        if len(self._pools) > 1:
            return GpusMeasurer.of(setup, self._pools)
        ((gpu, pool),) = self._pools.items()
        return LocalMeasurer(setup, pool=pool, gpu=gpu)

    def close(self) -> None:
        """Ends the workers."""
        self._open.close()


class Rack(Site):
    """The boards of a rack, each of which is asked for anew for each kernel.

    Args:
        address: The address of the boards.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    @property
    def width(self) -> int:
        """How many boards the tracker knows."""
        return tracker.boards(self._address).known

    def measurer(self, setup: KernelSetup) -> AbstractContextManager[Measurer]:
        """See `Site.measurer`. It waits until a board is free."""
        boards, stop = tracker.wait_for_boards(self._address), threading.Event()
        places = [LocalMeasurer(setup, workers=1, elsewhere=True, stop=stop) for _ in range(boards)]
        return BoardsMeasurer(self._address, places, stop)


class Given(Site):
    """A measurer that somebody gives, whatever it measures. It stays open.

    Args:
        given: The measurer.

    Raises:
        InputError: It is no measurer.
    """

    def __init__(self, given: Measurer) -> None:
        if not isinstance(given, Measurer):
            raise InputError(
                f"{type(given).__name__} is no measurer: derive it from stormdrop.measure.contract.Measurer"
            )
        self._given = given

    def measurer(self, setup: KernelSetup) -> AbstractContextManager[Measurer]:
        """See `Site.measurer`. It has been told what it measures."""
        return nullcontext(self._given)


def site_of(target: Machine) -> Site:
    """Where one kernel of a target is measured.

    Args:
        target: The machine that it is made for.
    """
    return Rack(str(target.runner)) if tracker.is_rack(target.runner) else ThisMachine()


def site_of_model(target: Machine) -> Site:
    """Where all kernels of a model are measured. What it holds is given back when it is closed.

    Args:
        target: The machine that they are made for.

    Raises:
        TargetError: No board of a rack becomes free.
        MeasureError: No worker can be started.
    """
    return HeldBoards(str(target.runner), target.cores) if tracker.is_rack(target.runner) else OwnWorkers(target)
