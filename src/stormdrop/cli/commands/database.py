"""`stormdrop db`: lists, exports, imports, merges and upgrades the records of what was measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...report.layer_label import layer_label
from .. import output
from ..guide import epilog
from ..options import DatabaseOption, JsonOption
from ..status_line import telling

if TYPE_CHECKING:
    from ...records import Absorbed

TrustedOption = Annotated[
    bool,
    typer.Option("--trusted", help="The records are your own, of this machine: they answer without a new measurement."),
]

app = typer.Typer(
    help="List, export, import, merge and upgrade tuning records.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command("list", epilog=epilog("db list"))
def list_sessions(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List what was tuned, newest first."""
    from ...records import default_path, open_store

    default = default_path()
    if db is None and default.is_absolute() and not default.exists():
        sessions = []
    else:
        with open_store(db, create=False) as store:
            sessions = store.sessions()
    if as_json:
        documents = [{**dataclasses.asdict(session), "state": session.state.value} for session in sessions]
        output.emit({"sessions": documents})
        return
    if not sessions:
        output.line("nothing was tuned yet")
        return
    rows = [
        [
            layer_label(session.layers, output.LABEL) or session.workload_name,
            session.search,
            str(session.trials),
            str(session.failed),
            output.seconds(session.best_seconds),
            output.seconds(session.baseline_seconds),
            session.state.value,
            _minute(session.created),
            _minute(session.written),
            session.machine,
            session.workload_name if session.layers else "-",
        ]
        for session in sessions
    ]
    output.table(
        [
            "tuned",
            "search",
            "trials",
            "failed",
            "best",
            "default",
            "state",
            "begun (UTC)",
            "written",
            "machine",
            "task",
        ],
        rows,
        spare=("task", "machine", "written", "failed", "state", "search", "begun (UTC)"),
    )


@app.command("export", epilog=epilog("db export"))
def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, as JSON lines.")],
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write all records to a file."""
    from ...records import export_file, open_store

    with telling(f"writing {path}"), open_store(db, create=False) as store:
        count = export_file(store, path)
    if as_json:
        output.emit({"file": str(path), "sessions": count})
    else:
        output.line(f"{count} sessions written to {path}")


@app.command("import", epilog=epilog("db import"), short_help="Take in the records of a file.")
def import_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `db export` wrote.")],
    trusted: TrustedOption = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take in the records of a file; those that are known already are skipped."""
    from ...records import import_file, open_store

    with telling(f"taking in the records of {path}"), open_store(db) as store:
        absorbed = import_file(store, path, trusted=trusted)
    _print_absorbed(absorbed, as_json)


@app.command("merge", epilog=epilog("db merge"))
def merge(
    other: Annotated[str, typer.Argument(metavar="DATABASE", help="A database: a file or a URL. It is not changed.")],
    trusted: TrustedOption = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take in the records of another database."""
    from ...records import merge_database, open_store

    with telling(f"taking in the records of {other}"), open_store(db) as store:
        absorbed = merge_database(store, other, trusted=trusted)
    _print_absorbed(absorbed, as_json)


@app.command("upgrade", epilog=epilog("db upgrade"))
def upgrade(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Bring a database of an older version of stormdrop up to date."""
    from ...records import upgrade_database

    with telling("upgrading the database"):
        found, now = upgrade_database(db)
    if as_json:
        output.emit({"found": found, "version": now})
    elif found == now:
        output.line(f"it is up to date (version {now})")
    else:
        output.line(f"upgraded from version {found} to {now}")


def _minute(time: str | None) -> str:
    return "" if time is None else time[:16].replace("T", " ")


def _print_absorbed(absorbed: Absorbed, as_json: bool) -> None:
    counts = dataclasses.asdict(absorbed)
    if as_json:
        output.emit(counts)
    else:
        output.line(", ".join(f"{count} {name}" for name, count in counts.items()))
