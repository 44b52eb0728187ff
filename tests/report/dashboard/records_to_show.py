"""Records for the tests of the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from stormdrop.records import Outcome, Problem, Record, Setting, Store, StoredSession, open_store
from stormdrop.records.reading.reader import RecordsReader
from stormdrop.report.dashboard.app import create_app
from stormdrop.report.dashboard.guard import Access
from stormdrop.trial import Measurement, Phases, Status

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
SKETCH = "tiled"


def worked(seconds: float, rows: int = 4, elapsed: float = 0.0) -> Record:
    """A trial that worked."""
    return Record(SKETCH, {"rows": rows, "tile": (8, 2)}, Measurement(Status.OK, (seconds,) * 3, "", Phases()), elapsed)


def failed(error: str, elapsed: float = 0.0) -> Record:
    """A trial that failed."""
    return Record(SKETCH, {"rows": 64, "tile": (8, 2)}, Measurement(Status.RUNTIME, (), error, Phases()), elapsed)


def opened(store: Store, name: str, search: str = "storm", **method: Any) -> StoredSession:
    """A session that runs."""
    problem = Problem(f"{hash(name) & 0xFFFF:x}", f"text of {name}", name, "llvm", "a CPU, 2 cores")
    return store.open(problem, Setting(search, 0, {SKETCH: "fingerprint"}, {"size": 8}, method, {"numpy": "2.0"}))


def database(path: Path) -> Path:
    """A database: a finished kernel of a model, a session with a hostile name, and one that runs."""
    with open_store(path) as store:
        first = opened(store, "conv2d", model={"name": "small net", "calls": 3})
        store.append(first, 0, [worked(3e-3, 1, 1.0), failed("crashed at 17", 2.0), worked(1e-3, 4, 3.0)])
        store.finish(first, Outcome(SKETCH, {"rows": 4, "tile": (8, 2)}, 1.1e-3, (1e-3, 1.2e-3), 3.3e-3, True))
        second = opened(store, HOSTILE, "droplet")
        store.append(second, 0, [failed(f"=1+1 {HOSTILE}")])
        store.interrupt(second)
        store.append(opened(store, "matmul"), 0, [worked(5e-6, 2, 1.0)])
    return path


def client(path: Path, access: Access | None = None, log: Path | None = None) -> TestClient:
    """A client of the dashboard of a database."""
    return TestClient(create_app(RecordsReader(path), access, log), base_url="http://127.0.0.1:8765")
