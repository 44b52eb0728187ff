"""A database that fails while something is tuned costs no result."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from replayed_tuning import Counting, tune_replayed

from stormdrop.records import import_file, open_store
from stormdrop.trial import Measurement, Request

TRIALS = 12


class Failing(Counting):
    """A replay during whose fourth measurement something happens to the database."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens = happens

    def measure(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        for measurement in super().measure(requests):
            if len(self.candidates) == 4:
                self.happens()
            yield measurement


@pytest.fixture(autouse=True)
def _impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_SECONDS", "PATIENCE", "LAST_SECONDS"):
        monkeypatch.setattr(f"stormdrop.records.buffered_store.{name}", 0.0)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def lock(path: Path, open_: ExitStack) -> None:
    connection = open_.enter_context(closing(sqlite3.connect(path)))
    connection.execute("BEGIN IMMEDIATE")


def damage(path: Path, _: ExitStack) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE stormdrop_trial")


@pytest.mark.parametrize("fault", [lock, damage], ids=lambda fault: fault.__name__)
def test_a_database_that_fails_until_the_end(fault: Callable[[Path, ExitStack], None], tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with open_store("sqlite://") as store:
        undisturbed = tune_replayed(store, Counting(), trials=TRIALS)
    open_ = ExitStack()
    measurer = Failing(lambda: fault(path, open_))
    with open_, open_store(path) as store, pytest.warns(RuntimeWarning) as warned:
        result = tune_replayed(store, measurer, trials=TRIALS)
    assert result.best is not None and undisturbed.best is not None
    assert (result.best.config, result.trials) == (undisturbed.best.config, TRIALS)
    assert "the tuning goes on" in str(warned[0].message)
    (file,) = Path.cwd().iterdir()
    assert str(file) in str(warned[1].message)
    with open_store("sqlite://") as other:
        assert import_file(other, file).added == 1
        (session,) = other.sessions()
        assert (session.trials, session.best_seconds) == (len(measurer.candidates), result.best.seconds)


def test_a_database_that_is_deleted_has_everything_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    measurer = Failing(path.unlink)
    with open_store(path) as store, pytest.warns(RuntimeWarning, match="the tuning goes on"):
        result = tune_replayed(store, measurer, trials=TRIALS)
    with open_store(path) as store:
        (session,) = store.sessions()
        assert (session.trials, session.state.value) == (len(measurer.candidates), "finished")
        again = tune_replayed(store, Counting(), trials=TRIALS)
    assert again.best is not None and result.best is not None
    assert (again.best.config, again.reused) == (result.best.config, TRIALS)


def test_ctrl_c_with_a_database_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    open_ = ExitStack()
    measurer = Failing(lambda: lock(path, open_))
    measurer.left_until_interrupt = 8
    with open_, open_store(path) as store, pytest.warns(RuntimeWarning):
        result = tune_replayed(store, measurer, trials=TRIALS)
    assert result.interrupted and result.trials == 8
    with open_store(path) as store:
        (file,) = Path.cwd().iterdir()
        assert import_file(store, file, trusted=True).extended == 1
        resumed = tune_replayed(store, Counting(), trials=TRIALS, resume=True)
    assert (resumed.reused, resumed.trials) == (8, TRIALS)
