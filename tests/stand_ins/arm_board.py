"""An emulated ARM board: TVM's RPC server under QEMU's user mode, on an x86-64 machine.

    with ArmBoard(folder, cpu="cortex-a72") as board:
        sd.tune(workload, target=sd.parse_machine("cpu/cortex-a72").with_runner(board.address))

`benchmarks/emulation/make_arm_board.py` makes the folder. Results are those of an ARM processor, but times are the
emulator's: they rank nothing. With `counted` the board's clock tells executed instructions instead, each as
`SECONDS_PER_INSTRUCTION`. Such a board repeats its times to 0.1%. Instructions are not cycles: a count likes wide
vectors and unrolled loops, and knows nothing of caches.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from stormdrop.errors import MeasureError, TargetError
from stormdrop.machine.remote.rpc import connect

SECONDS_PER_INSTRUCTION = 128e-9
"""What a counting board's clock tells for an executed instruction."""

START_SECONDS = 120.0
"""Python on the board loads TVM in half a minute; a machine that is busy takes longer."""

_PARTS = ("root.done", "site.done", "programs.done")
_LINKER = "aarch64-linux-gnu-g++"  # this machine's own: what an emulated program executes is not emulated


def missing(folder: Path) -> str:
    """Why no board can be started from a folder: one line; empty if one can.

    Args:
        folder: What `benchmarks/emulation/make_arm_board.py` has made.

    Example:
        >>> from pathlib import Path
        >>> bool(missing(Path("nowhere")))
        True
    """
    for tool in ("qemu-aarch64", _LINKER):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not all((folder / part).exists() for part in _PARTS):
        return f"{folder} holds no complete board: benchmarks/emulation/make_arm_board.py makes one"
    return ""


class ArmBoard:
    """A running board. It is a context manager, and it can be started again after it has ended.

    Attributes:
        address: HOST:PORT of its RPC server; empty while it does not run.
    """

    def __init__(self, folder: Path, cpu: str, threads: int = 1, counted: bool = False) -> None:
        """A board that is not started yet.

        Args:
            folder: What `benchmarks/emulation/make_arm_board.py` has made.
            cpu: The processor, by QEMU's name: `qemu-aarch64 -cpu help` lists them.
            threads: The threads that a kernel uses on it.
            counted: Its clock tells executed instructions. The board then has one thread.

        Raises:
            MeasureError: The folder holds no board, or QEMU is not installed, or several threads are to be counted.
        """
        if reason := missing(folder):
            raise MeasureError(f"no emulated board: {reason}")
        if counted and threads != 1:
            raise MeasureError(f"a board that counts instructions has one thread, not {threads}")
        self.address = ""
        self._folder, self._cpu, self._threads, self._counted = folder.resolve(), cpu, threads, counted
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the board, and waits until it serves.

        Raises:
            MeasureError: It ends, or does not serve within `START_SECONDS`.
        """
        self.stop()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._scratch = tempfile.TemporaryDirectory(prefix="stormdrop-board-")
        log = Path(self._scratch.name) / "log"
        words = f"-m tvm.exec.rpc_server --host 127.0.0.1 --port {port} --port-end {port + 1}".split()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self._folder / "python", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self._scratch.name,
                start_new_session=True,  # the server starts other processes, which do not end with it
            )
        deadline = time.perf_counter() + START_SECONDS
        while not _serves(port):
            ended = self._process.poll() is not None
            if ended or time.perf_counter() > deadline:
                last = (log.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
                self.stop()
                raise MeasureError(f"the emulated board {'ended' if ended else 'does not start'}: {last}")
            time.sleep(0.2)
        self.address = f"127.0.0.1:{port}"

    def stop(self) -> None:
        """Ends the board and everything that it has started. Stopping twice is harmless."""
        self.address = ""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # everything in its group has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        self._scratch.cleanup()

    def __enter__(self) -> ArmBoard:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _environment(self) -> dict[str, str]:
        counting = {}
        if self._counted:
            plugin = f"-plugin {self._folder / 'count.so'} -E LD_PRELOAD={self._folder / 'clock.so'}"
            counting = {"BOARD_COUNT": str(Path(self._scratch.name) / "count"), "BOARD_OPTIONS": plugin}
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "BOARD": str(self._folder),
            "BOARD_CPU": self._cpu,
            "BOARD_PYTHON": str(self._folder / "python"),
            "BOARD_OPTIONS": "",
            "PYTHONPATH": str(self._folder / "site"),
            "TVM_NUM_THREADS": str(self._threads),
            "CXX": _LINKER,
            "TMPDIR": self._scratch.name,
            **counting,
        }


def _serves(port: int) -> bool:
    """Whether the server answers. It listens some seconds before it does, and longer before on a busy machine."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
    try:
        connect(f"127.0.0.1:{port}")
    except TargetError:
        return False
    return True
