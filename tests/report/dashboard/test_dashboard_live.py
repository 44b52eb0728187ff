"""What makes the dashboard live: changes, open spans, and that it disturbs no tuning."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from records_to_show import client, database, opened, worked

from stormdrop import events
from stormdrop.errors import StoreError
from stormdrop.records import SqlStore, open_store
from stormdrop.records.reading.reader import RecordsReader
from stormdrop.report.dashboard.changes import changes
from stormdrop.report.dashboard.open_spans import open_spans
from stormdrop.report.traces.event_log import EventLog


def test_changes_are_told_once() -> None:
    stamps: Iterator[str | StoreError] = iter(["a", "a", "b", StoreError("the disk\nfails"), "b", "c"])

    def stamp() -> str:
        now = next(stamps)
        if isinstance(now, StoreError):
            raise now
        return now

    async def collect() -> list[str]:
        looks = 0

        async def is_gone() -> bool:
            nonlocal looks
            looks += 1
            return looks > 6

        return [told async for told in changes(stamp, is_gone, interval=0.0)]

    told = anyio.run(collect)
    assert told == [
        "data: changed\n\n",
        "data: changed\n\n",
        "event: failed\ndata: the disk fails\n\n",
        "data: changed\n\n",
    ]


def test_what_is_done_now(tmp_path: Path) -> None:
    path = tmp_path / "tune.jsonl"
    log = EventLog(path, pytest.fail)
    with events.listening(log):
        hung = events.started("build", "worker 1", kernel=1)  # of a run that was killed
    log.close()
    assert [span.what for span in open_spans(path)] == ["build"]
    log = EventLog(path, pytest.fail)
    with events.listening(log):
        events.started("build", "worker 2", kernel=7)
        with events.span("schedule", "worker 2"):
            pass
        events.started("build", "worker 2")
    log.close()
    path.write_bytes(path.read_bytes() + b'{"event":"started","what":"half')
    (span,) = open_spans(path)
    assert (span.where, span.what, span.details) == ("worker 2", "build", {"kernel": 7})
    assert hung
    page = client(database(tmp_path / "records.db"), log=path).get("/").text
    assert "What the tuning does" in page and "kernel=7" in page
    missing = client(tmp_path / "records.db", log=tmp_path / "none").get("/").text
    assert "No such file or directory" in missing


def test_two_dashboards_and_a_tuning_at_once(tmp_path: Path) -> None:
    path = database(tmp_path / "records.db")
    dashboards = [client(path), client(path)]
    addresses = ["/", "/sessions", "/trials", "/models"]
    done = threading.Event()
    answers: list[int] = []

    def look(number: int) -> None:
        while not done.is_set():
            for address in addresses:
                answers.append(dashboards[number].get(address).status_code)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        with open_store(path) as store:
            assert isinstance(store, SqlStore)
            store.patience = 1.0  # a reader that kept the writer waiting would fail the test
            session = opened(store, "softmax")
            for position in range(60):
                store.append(session, position, [worked(1e-3 / (1 + position))])
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert len(answers) >= 8 and set(answers) == {200}
    reader = RecordsReader(path)
    assert reader.totals().trials == 65
    reader.close()
