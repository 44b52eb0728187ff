"""A folder of its own for each run: home, records, caches, temporary files, and the processes that use them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from contract import Kind, Outcome

INSIDE = Path(__file__).parent / "inside"
"""The programs that run inside of the processes under test."""

LAUNCHER = INSIDE / "launcher.py"

LIMIT = 240.0
"""Seconds that a process of a run may take. It takes some five, and more on a machine that others use."""

PATIENCE = 5.0
"""Seconds that other processes of a run may take to end after the main one."""

_MARK = "STORMDROP_CAMPAIGN_RUN"
"""The environment variable by which a process is known as one of a run, even after its parent has ended."""

_ONNXRUNTIME = "/.onnxruntime/"
"""A folder of that library, which keeps its files open."""

_INTERPRETER = ("Traceback (most recent call last)", "Fatal Python error", "Exception ignored", "Segmentation fault")


@dataclass(frozen=True)
class End:
    """How a process ended.

    Args:
        code: The exit code; negative after a signal. None if it ran into the hard limit.
        output: What it wrote to standard output.
        errors: What it wrote to standard error.
    """

    code: int | None
    output: str
    errors: str

    @property
    def complete(self) -> bool:
        """Whether a whole JSON document is on standard output."""
        with contextlib.suppress(ValueError):
            return bool(self.document)
        return False

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on standard output."""
        document: dict[str, Any] = json.loads(self.output)
        return document


class Process:
    """A process of a sandbox, in a process group of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], folder: Path, name: str, limit: float) -> None:
        self.popen, self._folder, self._name = popen, folder, name
        self._deadline = time.monotonic() + limit

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines that the launcher has written in this process."""
        return [line for line in read_log(self._folder / "log") if line["pid"] == self.popen.pid]

    def reached(self, instant: str, count: int = 1) -> bool:
        """Waits until the process reaches an instant for the so-many-th time. False if it ends before."""
        log, offset, seen = self._folder / "log", 0, 0
        while True:
            running = self.running
            with contextlib.suppress(FileNotFoundError), log.open("rb") as lines:
                lines.seek(offset)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    event = json.loads(line)
                    seen += event["pid"] == self.popen.pid and event.get("instant") == instant
                    if seen == count:
                        return True
            if not running or time.monotonic() > self._deadline:
                return False
            time.sleep(0.002)

    @property
    def workers(self) -> list[psutil.Process]:
        """Its worker processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.popen.pid).children()
            forked = [child for server in children if _runs(server, "fork_server") for child in server.children()]
            return [*forked, *(child for child in children if _runs(child, "child_side"))]
        return []

    def wait(self) -> End:
        """Waits for the end. A process that runs into its limit is killed with its group."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, self._deadline - time.monotonic()))
        code = self.popen.poll()
        if code is None:
            self.kill_group()
        return End(code, self._text("out"), self._text("err"))

    def kill_group(self) -> None:
        """Ends its whole group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def _text(self, kind: str) -> str:
        return (self._folder / f"{self._name}.{kind}").read_text(errors="replace")


class Sandbox:
    """A folder with everything that a run writes.

    Attributes:
        folder: The folder.
        database: The records.
        artifact: Where models are saved.
        environment: The variables of its processes.
    """

    def __init__(self, folder: Path, machine: Path | None = None) -> None:
        """Makes the folder's parts.

        Args:
            folder: An empty folder.
            machine: A folder with what was measured of this machine, which is copied: measuring takes seconds.
        """
        self.folder = folder
        self.database, self.artifact = folder / "records.db", folder / "model.sd"
        self.temporary = folder / "tmp"
        self._count = 0
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "CAMPAIGN_"))},
            "HOME": str(folder / "home"),
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(self.temporary),
            "CAMPAIGN_LOG": str(folder / "log"),
            "PYTHONUNBUFFERED": "1",
            _MARK: str(folder),
        }
        for name in ("home", "data", "cache", "tmp"):
            (folder / name).mkdir(parents=True)
        if machine is not None:
            shutil.copytree(machine, folder / "cache" / "stormdrop")

    def start(
        self,
        program: Sequence[str | Path],
        *,
        limit: float = LIMIT,
        environment: Mapping[str, str | None] | None = None,
        before: Callable[[], None] | None = None,
    ) -> Process:
        """Starts a Python program.

        Args:
            program: The file and its arguments.
            limit: The hard limit in seconds.
            environment: Variables to set, or with None to take away.
            before: Is called in the new process.
        """
        self._count += 1
        name = f"process{self._count}"
        variables = {**self.environment, **(environment or {})}
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            popen = subprocess.Popen(
                [sys.executable, *map(str, program)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env={key: value for key, value in variables.items() if value is not None},
                start_new_session=True,
                preexec_fn=before,
            )
        return Process(popen, self.folder, name, limit)

    def stormdrop(self, *words: str | Path | int, **options: Any) -> Process:
        """Starts a command of stormdrop under the launcher."""
        return self.start([LAUNCHER, *map(str, words)], **options)

    @property
    def log(self) -> list[dict[str, Any]]:
        """All lines of all launchers so far."""
        return read_log(self.folder / "log")

    # What must not be left

    def check_left(self, outcome: Outcome, *, killed: bool = False) -> None:
        """Looks for processes, locks, descriptors and temporary folders that outlive the processes.

        Args:
            outcome: Takes the findings.
            killed: Whether a process was killed, which cannot tidy up. The next save does it.
        """
        _, alive = psutil.wait_procs(self._processes(), timeout=PATIENCE)
        for process in filter(self._is_ours, alive):  # one that nobody waits for has ended all the same
            with contextlib.suppress(psutil.NoSuchProcess):
                outcome.add(Kind.STRAY, f"process {process.pid} is left ({process.status()}): {_command(process)}")
                process.kill()
        psutil.wait_procs(alive, timeout=1.0)  # the locks of those that were killed are free when they have ended
        for lock in self.temporary.glob("stormdrop*.lock*"):
            if lock.is_file() and not _free(lock):
                outcome.add(Kind.STRAY, f"the lock {lock.name} is held")
        if killed:
            return
        known = ("stormdrop.lock", "stormdrop.lock.gate", ".ses")  # the last one is onnxruntime's
        left = [path.name for path in self.temporary.iterdir() if path.name not in known]
        left += [path.name for path in self.folder.iterdir() if ".saving-" in path.name]
        for name in left:
            outcome.add(Kind.STRAY, f"the temporary file or folder {name} is left")

    def check_descriptors(self, outcome: Outcome) -> None:
        """Looks for files and pipes that a command still had open when it had done its work."""
        for line in self.log:
            for name in line["open"] if line["event"] == "done" else ():
                ours = (
                    name.startswith(str(self.folder))
                    and not name.endswith((".out", ".err", "/log"))
                    and _ONNXRUNTIME not in name
                )
                if ours or name.startswith("socket:"):
                    outcome.add(Kind.STRAY, f"the descriptor of {name} is left at the end of a command")

    def _processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            ours = process.environ().get(_MARK) == str(self.folder)
            return ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):  # another user's, or it has just ended
            return False

    def end(self) -> None:
        """Ends what is left."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextlib.contextmanager
def sandbox(folder: Path, machine: Path | None = None) -> Iterator[Sandbox]:
    """A sandbox whose processes end with it."""
    made = Sandbox(folder, machine)
    try:
        yield made
    finally:
        made.end()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def check_end(outcome: Outcome, end: End, codes: Sequence[int], who: str = "the command") -> None:
    """Checks the exit code, and that whoever reads standard error finds one clear line if something was wrong.

    Args:
        outcome: Takes the findings.
        end: How the process ended.
        codes: The exit codes that are right.
        who: What the process is, for the findings.
    """
    if end.code is None:
        outcome.add(Kind.HUNG, f"{who} ran into the hard limit; its last lines: {_tail(end.errors)}")
        return
    outcome.require(
        end.code in codes, Kind.OTHER, f"{who} ended with {end.code}, not {list(codes)}: {_tail(end.errors)}"
    )
    for symptom in _INTERPRETER:
        if symptom in end.errors:
            outcome.add(Kind.TRACEBACK, f"{who} shows {symptom!r}: {_tail(end.errors)}")
            return
    lines = end.errors.strip().splitlines()
    told = [line for line in lines if line.startswith("stormdrop:")]
    if end.code in (1, 2):
        single = len(told) == 1 and lines[-1] == told[0]
        outcome.require(single, Kind.OTHER, f"{who} failed without one last line that says why: {_tail(end.errors)}")
    else:
        outcome.require(len(told) <= 1, Kind.OTHER, f"{who} has {len(told)} last lines: {_tail(end.errors)}")


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-4:])[-500:]


def _free(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        return any(module in word for word in process.cmdline())
    except psutil.Error:
        return False


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.Error:
        return "it has just ended"
