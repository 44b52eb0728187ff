"""The SQL store meets the contract, in a file and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stormdrop.records import SqlStore, Store, open_store
from stormdrop.testing import stores

Check = Callable[[stores.Factory], None]


@pytest.fixture
def open_stores() -> Iterator[list[Store]]:
    opened: list[Store] = []
    yield opened
    for store in opened:
        store.close()


@pytest.mark.parametrize("check", stores.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_sqlite(check: Check, kind: str, tmp_path: Path, open_stores: list[Store]) -> None:
    def factory(name: str) -> Store:
        open_stores.append(open_store(tmp_path / f"{name}.db" if kind == "file" else "sqlite://"))
        return open_stores[-1]

    check(factory)


@pytest.mark.parametrize("check", stores.PERSISTENCE_CHECKS, ids=lambda check: check.__name__)
def test_sqlite_persists(check: Check, tmp_path: Path) -> None:
    check(lambda name: open_store(f"sqlite:///{tmp_path / name}.db"))


def test_the_suite_sees_a_store_that_forgets(tmp_path: Path) -> None:
    class Forgetful(SqlStore):
        def append(self, session, batch, records):  # type: ignore[no-untyped-def]
            super().append(session, batch, records[:-1])

    with pytest.raises(AssertionError):
        stores.check_appended_records_come_back_in_order(lambda name: Forgetful(tmp_path / name))  # type: ignore[arg-type, return-value]


def test_every_check_is_listed() -> None:
    written = {value for name, value in vars(stores).items() if name.startswith("check_")}
    assert written == {*stores.CHECKS, *stores.PERSISTENCE_CHECKS}
