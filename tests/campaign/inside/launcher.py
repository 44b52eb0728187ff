"""Runs a command of stormdrop and keeps a log of what it does, for whoever disturbs it from outside.

    CAMPAIGN_LOG=/folder/log python launcher.py tune model.onnx ...

Each line is a JSON object, and is on the disk before the program goes on. Its `event` is one of

    at       an instant is reached: load, import, search, append, race, compile, verify or save
    begin    a candidate is about to run: its workload, sketch and configuration
    ack      a trial was committed: its session, and all that was measured
    hold     the machine-wide lock was taken: "shared" or "exclusive"
    release  it is about to be given back
    done     the command has ended: what is still open

Other load is no fault here: a race beside it counts as undisturbed. Otherwise a finished tuning would be repeated.
"""

from __future__ import annotations

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stormdrop.measure.contract import KernelSetup

LOG = os.open(os.environ["CAMPAIGN_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def log(event: str, **values: Any) -> None:
    """Writes a line, and waits until it is on the disk."""
    line = json.dumps({"event": event, "pid": os.getpid(), "time": time.monotonic(), **values}, default=list) + "\n"
    os.write(LOG, line.encode())
    os.fsync(LOG)


INSTANTS = {
    "stormdrop.model.tuning.imported": [("import_for_sizes", "import")],
    "stormdrop.tuning.session": [("Session.search", "search")],
    "stormdrop.measure.local": [("LocalMeasurer.race", "race")],
    "stormdrop.model.building.builder": [("ModelBuilder.build", "compile")],
    "stormdrop.model.verification.verify": [("Reference.check", "verify")],
    "stormdrop.model.artifact.atomic_folder": [("replace_folder", "save")],
}
"""The functions, by module, whose calls are instants."""


def announce(module: ModuleType) -> None:
    """Announces the calls of a module that are instants."""
    for path, instant in INSTANTS.get(module.__name__, ()):
        holder: Any = module
        *outer, name = path.split(".")
        for part in outer:
            holder = getattr(holder, part)
        setattr(holder, name, announced(getattr(holder, name), instant))


def announced(function: Callable[..., Any], instant: str) -> Callable[..., Any]:
    """A function that says so before it is called."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        log("at", instant=instant)
        return function(*arguments, **named)

    return wrapper


def watch_store(module: ModuleType) -> None:
    """Notes each trial when its transaction has been committed."""
    append = module.SqlStore.append

    def logged(self: Any, session: Any, batch: int, records: Sequence[Any]) -> None:
        log("at", instant="append")
        append(self, session, batch, records)
        for record in records:
            measured = record.measurement
            log(
                "ack",
                session=session.id,
                workload=session.problem.workload_key,
                sketch=record.sketch,
                config=dict(record.config),
                status=measured.status.value,
                seconds=list(measured.seconds),
                error=measured.error,
            )

    module.SqlStore.append = logged


def watch_measurer(module: ModuleType) -> None:
    """Notes each run of a candidate before it begins."""
    make = module.LocalMeasurer.__init__

    @functools.wraps(make)
    def logged(self: Any, setup: KernelSetup, *arguments: Any, **named: Any) -> None:
        make(self, setup, *arguments, **named)
        run = self.runs.run

        def announced_run(worker: Any, key: int, *rest: Any) -> Any:
            candidate = next(candidate for candidate, known in self._keys.items() if known == key)
            config = self._spaces[candidate.sketch].config(candidate.point)
            log("begin", workload=setup.workload.key, sketch=candidate.sketch, config=dict(config))
            return run(worker, key, *rest)

        self.runs.run = announced_run

    module.LocalMeasurer.__init__ = logged


def watch_lock(module: ModuleType) -> None:
    """Notes how long the machine-wide lock is held."""
    for kind in ("shared", "exclusive"):
        setattr(module.MachineLock, kind, held(getattr(module.MachineLock, kind), kind))


def held(take: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """The context of a lock, noted inside of the time in which it is held."""

    @contextmanager
    @functools.wraps(take)
    def noted(self: Any, *arguments: Any, **named: Any) -> Iterator[None]:
        with take(self, *arguments, **named):
            log("hold", kind=kind)
            try:
                yield
            finally:
                log("release", kind=kind)

    return noted


def trust_times(module: ModuleType) -> None:
    """Takes no measurement for disturbed."""
    module.LoadWatch.suspect = lambda *_: False


WATCHES = {
    "stormdrop.machine.sharing.foreign_load": trust_times,
    "stormdrop.records.sql.sql_store": watch_store,
    "stormdrop.measure.local": watch_measurer,
    "stormdrop.machine.sharing.lock": watch_lock,
}


class Finder(importlib.abc.MetaPathFinder):
    """Changes modules when they are loaded, so that nothing is loaded earlier than the program loads it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Takes the spec of the path's own finder, and adds to what its loader does."""
        if name == "stormdrop.cli.app":
            log("at", instant="load")
        if name not in INSTANTS and name not in WATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def then_change(module: ModuleType) -> None:
            execute(module)
            announce(module)
            WATCHES.get(name, lambda _: None)(module)

        spec.loader.exec_module = then_change  # type: ignore[method-assign]
        return spec


_DELETED = "(deleted)"  # what Linux writes behind the name of such a file


def still_open() -> list[str]:
    """What the descriptors of this process refer to."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(descriptor.readlink()))
        except OSError:  # that of the listing itself
            continue
    return names


def main() -> None:
    """Runs the command of the arguments."""
    sys.meta_path.insert(0, Finder())
    from stormdrop.cli import main as command_line
    from stormdrop.machine.process import fork_server

    try:
        command_line(sys.argv[1:])
    finally:
        fork_server.stop()  # it stays for the next command of a process
        opened = [name for name in still_open() if not name.endswith(_DELETED)]
        gc.collect()  # a map of a deleted file ends with the arrays that are in it
        log("done", open=[*opened, *(name for name in still_open() if name.endswith(_DELETED))])


if __name__ == "__main__":
    main()
