"""The worker processes as their parent sees them: they are started, paused, replaced and ended here."""

from __future__ import annotations

import itertools

from ... import events
from ...errors import MeasureError
from ...machine.process.child_process import ChildProcess
from ...machine.process.memory import CHILD_SHARE, usable_memory
from ...machine.threads import usable_cores
from .jobs import Ready

START_SECONDS = 120.0
"""A worker that is not ready by then is given up. Loading TVM takes a second or two, longer on a busy machine."""

_LEAST_ADDRESS_SPACE = 4 << 30  # bytes
_MAX_WORKERS = 16  # no batch is larger


_WORKER = "stormdrop.measure.worker.worker"
_worker_numbers = itertools.count(1)


class Worker:
    """One worker, whose process may be replaced.

    Attributes:
        name: Its name in events, unique in this process.
        process: Its current process.
        ready: Whether the process has sent its first message and lives.
        session: The workload that the process holds; it belongs to the sender of jobs.
        knows_outputs: Whether the process has the expected outputs; it belongs to the sender of jobs.
        at_work: Whether it has a job that is not answered; it belongs to the sender of jobs.
        epoch: A number that grows whenever a process starts or drops its kernels.
    """

    process: ChildProcess

    def __init__(self, threads: int, memory: int, gpu: int | None = None) -> None:
        """Starts the process, without waiting for it.

        Args:
            threads: The threads that a kernel may use.
            memory: The most bytes of address space; 0 is no bound.
            gpu: The number of the only GPU that the process sees.

        Raises:
            MeasureError: The process cannot be started.
        """
        self.name = f"worker {next(_worker_numbers)}"
        self.epoch = 0
        self._memory = memory
        self._environment = _environment(threads, gpu)
        self._is_fresh = gpu is not None  # CUDA looks at its variables when it is loaded
        self._start()

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the current process has not ended, as far as is known."""
        return self.process.alive

    def send(self, message: object) -> bool:
        """Sends a message; False if the process has died."""
        return self.process.send(message)

    def kill(self) -> None:
        """Ends the process at once, whatever it is doing, and the compiler that it may have started."""
        self.process.kill()
        self.ready = False

    def wait(self) -> str:
        """Waits for the end of a process whose pipe is closed. Returns how it ended: "SIGSEGV", "exit code 3"."""
        self.ready = False
        return self.process.wait()

    def last_line(self) -> str:
        """The last line that the process wrote."""
        return self.process.last_line()

    def restart(self) -> None:
        """Starts another process in place of one that has ended. It can be used when it has sent `Ready`."""
        self.process.close()
        self._start()

    def close(self) -> None:
        """Ends the process. Closing twice is harmless."""
        self.process.close()
        self.ready = False

    def _start(self) -> None:
        self.ready = False
        self.session = 0
        self.knows_outputs = False
        self.at_work = False
        self.epoch += 1
        self.process = ChildProcess(
            f"{_WORKER}:serve", (self._memory,), self._environment, (_WORKER,), fresh=self._is_fresh
        )
        events.happened("start", self.name)


class WorkerPool:
    """Workers that outlive a workload, because the first one has to load TVM. A pool is for one thread at a time.

    Attributes:
        threads: The threads that a kernel may use.
        workers: The workers; as many candidates compile side by side.
        restarts: How many processes were replaced.
    """

    def __init__(
        self, threads: int, workers: int | None = None, memory: int | None = None, gpu: int | None = None
    ) -> None:
        """Starts the processes, without waiting for them.

        Args:
            threads: The threads that a kernel may use.
            workers: The number of workers; as many as usable cores by default.
            memory: The most bytes of address space of each worker; by default 0.75 of the usable memory, and at least
                4 GiB, because threads and libraries reserve much more than they use; 0 for no bound.
            gpu: The number of the only GPU that they see. There is then no bound on their memory, because CUDA
                reserves address space beyond any bound.

        Raises:
            MeasureError: No worker can be started.
        """
        count = min(usable_cores(), _MAX_WORKERS) if workers is None else workers
        if count < 1:
            raise MeasureError(f"a pool needs at least one worker, not {count}")
        self.threads = threads
        self.restarts = 0
        limit = 0 if gpu is not None else _address_space() if memory is None else memory
        self.workers: list[Worker] = []
        try:
            for _ in range(count):
                self.workers.append(Worker(threads, limit, gpu))
        except BaseException:
            self.close()
            raise

    def focus(self, worker: Worker) -> None:
        """Gives one worker the machine: pauses all others until `release`, or until one of them is focused on."""
        for other in self.workers:
            if other is not worker and other.ready:
                other.process.pause()
        worker.process.resume()

    def release(self) -> None:
        """Lets all workers go on."""
        for worker in self.workers:
            worker.process.resume()

    def revive(self, worker: Worker) -> None:
        """Starts another process for a worker that was killed, without waiting for it."""
        worker.restart()
        self.restarts += 1

    def greet(self, worker: Worker, message: object) -> None:
        """Takes the first message of a worker.

        Raises:
            MeasureError: It is not `Ready`, because TVM cannot be loaded.
        """
        if not isinstance(message, Ready):
            worker.wait()
            raise MeasureError(f"a worker process does not start: {worker.last_line()}")
        worker.ready = True
        events.happened("ready", worker.name, pid=worker.pid)

    def close(self) -> None:
        """Ends all processes at once."""
        for worker in self.workers:
            worker.close()
        self.workers = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _address_space() -> int:
    """The most bytes of address space of a worker, as `WorkerPool` says."""
    return max(int(CHILD_SHARE * usable_memory()), _LEAST_ADDRESS_SPACE)


def _environment(threads: int, gpu: int | None) -> dict[str, str]:
    environment = {"TVM_NUM_THREADS": str(threads)}
    if gpu is not None:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which nvidia-smi counts
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
    # NumPy works in a worker only beside kernels and compilations: one thread of it disturbs them least.
    for library in ("OMP", "OPENBLAS", "MKL"):
        environment[f"{library}_NUM_THREADS"] = "1"
    return environment
