"""`stormdrop report`: a page of a tuned model, of a session, or of all records."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError, OperatorError, UnsupportedFunction
from ...optional_packages import PAGES, require
from .. import options, output
from ..options import DatabaseOption, JsonOption
from ..status_line import telling

if TYPE_CHECKING:
    from ...records import Store, StoredSession
    from ...report.documents import Bench

PageOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Also write the results as a page that a browser shows."),
]


def report(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[ARTIFACT|SESSION]",
            help="A folder that `stormdrop tune` wrote, or the id of a session (its beginning will do); by default all "
            "records.",
        ),
    ] = None,
    db: DatabaseOption = None,
    bench: Annotated[
        Path | None,
        typer.Option("--bench", metavar="FILE.json", help="What `stormdrop bench ARTIFACT --json` printed: the peers."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="The page to write.")] = Path("report.html"),
    as_json: JsonOption = False,
) -> None:
    """Write one HTML page, which needs no network, of what a tuning found and why."""
    require(PAGES, "a report")
    check_page(out, "--out")
    is_model = what is not None and (Path(what).exists() or Path(what).suffix == ".sd" or len(Path(what).parts) > 1)
    if bench is not None and not is_model:
        raise InputError("--bench: belongs to the report of a tuned model")
    with output.stdout_for_json(as_json), telling(f"writing {out}"):
        if is_model:
            assert what is not None
            kind, page = "model", _model_page(Path(what), None if bench is None else _read_bench(bench))
        elif what is not None:
            kind, page = "session", _session_page(what, db)
        else:
            kind, page = "records", _records_page(db)
        size = write_page(page, out)
    if as_json:
        output.emit({"kind": kind, "file": str(out), "bytes": size})
    else:
        output.line(f"saved: {out} ({output.size(round(size / 1024) * 1024)})")


def check_page(path: Path | None, option: str) -> None:
    """Raises `InputError` if a page cannot be written to this file, before the work that the page shows."""
    if path is None:
        return
    if path.suffix not in (".html", ".htm"):
        raise InputError(f"{option} {path}: must end in .html")
    require(PAGES, f"{option} {path}")
    options.writable_file(path, option)


def command_line(*words: str, **chosen: object) -> str:
    """A command as the user may repeat it: its words, and its options unless they are None, False or empty."""
    for name, value in chosen.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words += (option,)
        elif isinstance(value, (list, tuple)):
            words += tuple(word for each in value for word in (option, str(each)))
        elif value is not None and value is not False and value != "":
            words += (option, str(value))
    return shlex.join(["stormdrop", *words])


def write_page(page: str, path: Path) -> int:
    """Writes a page to a file. Returns its size in bytes."""
    data = page.encode()
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return len(data)


def _model_page(folder: Path, bench: Bench | None) -> str:
    from ...model.artifact.kept_tuning import read_tuning
    from ...report.documents import Tuning, checked
    from ...report.pages.model_page import model_page

    metadata, digest, tuning = read_tuning(folder)
    if tuning is None:
        raise InputError(f"{folder}: was compiled without tuning, or by an earlier version: `stormdrop report` shows "
                         "tunings")  # fmt: skip
    document = checked(tuning, Tuning, str(folder))
    if len(document["tasks"]) != len(document["kernels"]):
        raise InputError(f"{folder}: is no such document as a report needs: its kernels are not those of its tasks")
    return model_page(document, asdict(metadata), digest, str(folder), bench)


def _read_bench(path: Path) -> Bench:
    from ...report.documents import Bench, checked

    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"--bench {path}: no such file") from None
    except OSError as error:
        raise InputError(f"--bench {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        raise InputError(f"--bench {path}: is no JSON document") from None
    return checked(document, Bench, f"--bench {path}")


def _session_page(prefix: str, db: str | None) -> str:
    from ...records import open_store
    from ...records.reading.session_document import session_document
    from ...report.pages.session_page import session_page

    with open_store(db, create=False) as store:
        session = _session(prefix, store)
        document = session_document(session, store.records(session))
    return session_page(document, _kernel(session), _repeat(document), _of_records(db, "stormdrop report", session.id))


def _session(prefix: str, store: Store) -> StoredSession:
    """The session whose id begins so."""
    found = [summary.id for summary in store.sessions() if summary.id.startswith(prefix)]
    if not found:
        raise InputError(f"{prefix}: no such folder, and no such session; `stormdrop db list --json` lists them")
    if len(found) > 1:
        raise InputError(f"{prefix}: {len(found)} sessions begin so; write more of the id")
    return store.session(found[0])


def _kernel(session: StoredSession) -> dict[str, Any]:
    """What can be made again of a session's kernel; only a reason if nothing can."""
    from ...tuning.recorded_kernel import recorded_kernel

    try:
        return asdict(recorded_kernel(session))
    except (OperatorError, UnsupportedFunction) as error:
        return {"flops": None, "bytes": None, "limits": None, "tir": None, "steps": None, "reason": str(error)}


def _repeat(document: Mapping[str, Any]) -> str | None:
    """The command that tunes an operator again; None for what a command cannot name."""
    from ... import operators

    words = document["problem"]["workload_name"].split()
    if not words or words[0] not in operators.names() or not all("=" in word for word in words[1:]):
        return None
    setting = document["setting"]
    search = ["--search", setting["search"], "--seed", str(setting["seed"]), "--fresh"]
    return shlex.join(["stormdrop", "tune-op", *words, *search])


def _records_page(db: str | None) -> str:
    from ...records import open_store
    from ...report.pages.records_page import records_page

    with open_store(db, create=False) as store:
        sessions = [{**asdict(each), "state": each.state.value} for each in store.sessions()]
    return records_page(sessions, _of_records(db, "stormdrop report", "SESSION"))


def _of_records(db: str | None, *words: str) -> str:
    """A command on the same records. The password of a database is not shown."""
    from ...errors import without_passwords

    return " ".join([*words, *([] if db is None else ["--db", shlex.quote(without_passwords(db))])])
