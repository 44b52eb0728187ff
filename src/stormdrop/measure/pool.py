"""The worker processes, seen from the parent: starting, talking, killing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import psutil

from ..errors import MeasureError
from ..machine.threads import usable_cores
from .messages import Ready

START_SECONDS = 120.0  # loading TVM takes under a second; on a busy machine with cold disks, longer
_MEMORY_SHARE = 0.75  # of the memory that this process may use at all
_MAX_WORKERS = 16  # a batch is no larger


class Worker:
    """One worker process.

    `ready` after its first message, `alive` until it is killed or buried. `session` and `expects` belong to whoever
    sends: which workload the process holds, and whether it knows the outputs. `epoch` grows whenever a process
    starts or forgets its kernels.
    """

    connection: Connection
    _process: subprocess.Popen[bytes]
    _lifeline: int
    _noise: IO[bytes]

    def __init__(self, threads: int, memory: int, gpu: int | None = None) -> None:
        self.epoch = 0
        self._threads = threads
        self._memory = memory
        self._gpu = gpu
        self._start()

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._process.pid

    def send(self, message: object) -> bool:
        """Sends a message; False where the worker has died."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """The next message, which must have arrived; None where the worker has died instead."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def kill(self) -> None:
        """Ends the process at once, whatever it is doing, and the compiler that it may have started."""
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        self._process.kill()
        self._bury(0.0)

    def pause(self) -> None:
        """Takes the process off the cores: TVM's threads spin for a while after a run, in wait for the next."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process go on; harmless where it is not paused."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and self._process.poll() is None:
            self._process.send_signal(number)

    def bury(self) -> str:
        """How a process ended whose pipe is closed: "SIGSEGV", "exit code 3"."""
        return describe_exit(self._bury(5.0))

    def complaint(self) -> str:
        """The last line that the process wrote to its standard error."""
        self._noise.seek(0)
        lines = self._noise.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"

    def restart(self) -> None:
        """Another process in place of a killed one; it says `Ready` when it can be used."""
        self._noise.close()
        self._start()

    def close(self) -> None:
        """Ends the process; twice is harmless."""
        if self.alive:
            self.kill()
        self._noise.close()

    def _bury(self, patience: float) -> int:
        try:
            self._process.wait(timeout=patience)  # its pipe closes a moment before it has ended
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self.connection.close()
        os.close(self._lifeline)
        self.alive = self.ready = False
        return code

    def _start(self) -> None:
        self.ready = False
        self.alive = True
        self.session = 0
        self.expects = False
        self.epoch += 1
        self.started = time.perf_counter()
        self.connection, theirs = Pipe(duplex=True)
        lifeline, self._lifeline = os.pipe()
        # In a file, not on the terminal: a crashing candidate prints pages.
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        main = threading.current_thread() is threading.main_thread()
        arguments = (theirs.fileno(), lifeline, os.getpid() if main else 0, self._memory)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from stormdrop.measure.worker import main; main()", *map(str, arguments)],
                pass_fds=(theirs.fileno(), lifeline),
                env=_environment(self._threads, self._gpu),
                stdin=subprocess.DEVNULL,
                stdout=self._noise,
                stderr=self._noise,
            )
        except OSError as error:
            raise MeasureError(f"no worker process can be started: {error}") from error
        finally:
            theirs.close()
            os.close(lifeline)


class WorkerPool:
    """Workers that outlive a workload: starting one takes 0.7 s. Not for several threads at a time.

    `threads` is what a kernel may use; `workers` is how many compile side by side. `restarts` counts the
    processes that were replaced.
    """

    def __init__(
        self, threads: int, workers: int | None = None, memory: int | None = None, gpu: int | None = None
    ) -> None:
        """Starts the processes, without waiting for them. `memory` bounds each one's address space in bytes.

        `gpu` is the only GPU that they see, by its number; CUDA reserves address space beyond any bound.
        """
        count = min(usable_cores(), _MAX_WORKERS) if workers is None else workers
        if count < 1:
            raise MeasureError(f"a pool needs at least one worker, not {count}")
        self.threads = threads
        self.restarts = 0
        limit = 0 if gpu is not None else int(_MEMORY_SHARE * _usable_memory()) if memory is None else memory
        self.workers = []
        try:
            for _ in range(count):
                self.workers.append(Worker(threads, limit, gpu))
        except BaseException:
            self.close()
            raise

    def focus(self, worker: Worker) -> None:
        """Gives one worker the machine: all others are paused until `release`, or until one of them is focused on."""
        for other in self.workers:
            if other is not worker and other.ready:
                other.pause()
        worker.resume()

    def release(self) -> None:
        """Lets all workers go on."""
        for worker in self.workers:
            worker.resume()

    def revive(self, worker: Worker) -> None:
        """Starts another process for a worker that was killed, without waiting for it."""
        worker.restart()
        self.restarts += 1

    def started(self, worker: Worker, message: object) -> None:
        """Notes the first message of a worker. Raises MeasureError where it is not the right one: TVM does not load."""
        if not isinstance(message, Ready):
            worker.bury()
            raise MeasureError(f"a worker process does not start: {worker.complaint()}")
        worker.ready = True

    def close(self) -> None:
        """Ends all processes at once."""
        for worker in self.workers:
            worker.close()
        self.workers = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe_exit(code: int) -> str:
    """How a process with this return code ended: "SIGSEGV", "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _environment(threads: int, gpu: int | None) -> dict[str, str]:
    environment = dict(os.environ)
    environment["TVM_NUM_THREADS"] = str(threads)
    if gpu is not None:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # in which nvidia-smi counts
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
    # NumPy works in a worker only beside kernels and compilations: one thread of it disturbs them least.
    for library in ("OMP", "OPENBLAS", "MKL"):
        environment[f"{library}_NUM_THREADS"] = "1"
    # The parent's search path, so that sketches of the user's own modules are found.
    environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return environment


def _usable_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its control group's if that is less."""
    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
