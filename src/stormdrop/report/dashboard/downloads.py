"""Sessions and trials as CSV and JSON. They are streamed, so that a million trials take no memory."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...records.reading.reader import RecordsReader
from ...records.reading.session_lines import SessionFilter, SessionLine
from ...records.reading.trial_search import TrialFilter, TrialLine, all_trials, trials_of
from .pages import session_filter, trial_filter
from .shared import Shared

_CHUNK = 1000  # sessions or trials that are read at a time

Row = Mapping[str, Any]


def sessions(request: Request) -> Response:
    """The sessions that a filter selects."""
    wanted: SessionFilter = session_filter(request.query_params)
    return _download(request, "sessions", (_of_session(line) for line in _sessions(_reader(request), wanted)))


def trials(request: Request) -> Response:
    """The trials that a filter selects."""
    wanted: TrialFilter = trial_filter(request.query_params)
    return _download(request, "trials", (_of_trial(trial) for trial in all_trials(_reader(request), wanted)))


def trials_of_session(request: Request) -> Response:
    """The trials of one session, the newest first."""
    reader = _reader(request)
    details = reader.session(request.path_params["id"])
    if details is None:
        raise HTTPException(404)
    return _download(request, "trials", (_of_trial(trial) for trial in _all_of(reader, details.line.number)))


def _reader(request: Request) -> RecordsReader:
    shared: Shared = request.app.state.shared
    return shared.reader


def _sessions(reader: RecordsReader, wanted: SessionFilter) -> Iterator[SessionLine]:
    offset = 0
    while lines := reader.sessions(wanted, "oldest", _CHUNK, offset):
        yield from lines
        offset += len(lines)


def _all_of(reader: RecordsReader, number: int) -> Iterator[TrialLine]:
    before: int | None = None
    while lines := trials_of(reader, number, limit=_CHUNK, before=before):
        yield from lines
        before = lines[-1].position


def _of_session(line: SessionLine) -> Row:
    return {
        "id": line.id,
        "tuned": line.workload_name,
        "search": line.search,
        "seed": str(line.seed),  # of any size, which no spreadsheet holds
        "target": line.target,
        "machine": line.machine,
        "created": line.created,
        "state": line.state.value,
        "trials": line.trials,
        "failed": line.failed,
        "best_seconds": line.best_seconds,
        "baseline_seconds": line.baseline_seconds,
        "layers": list(line.layers),
    }


def _of_trial(trial: TrialLine) -> Row:
    return {
        "session": trial.session_id,
        "tuned": trial.workload_name,
        "position": trial.position,
        "batch": trial.batch,
        "elapsed": trial.elapsed,
        "status": trial.status,
        "seconds": trial.seconds,
        "samples": trial.samples,
        "suspect": trial.suspect,
        "sketch": trial.sketch,
        "config": trial.config,
        "error": trial.error,
    }


def _download(request: Request, name: str, rows: Iterable[Row]) -> Response:
    form = request.path_params["form"]
    if form not in _FORMS:
        raise HTTPException(404)
    write, media_type = _FORMS[form]
    headers = {"content-disposition": f'attachment; filename="stormdrop-{name}.{form}"'}
    return StreamingResponse(write(rows), media_type=media_type, headers=headers)


def _as_json(rows: Iterable[Row]) -> Iterator[str]:
    """A JSON array with a row on each line."""
    separator = "[\n"
    for row in rows:
        yield separator + json.dumps(row)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def _as_csv(rows: Iterable[Row]) -> Iterator[str]:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\r\n")
    names: list[str] = []
    for row in rows:
        if not names:
            names = list(row)
            writer.writerow(names)
        writer.writerow([_cell(row[name]) for name in names])
        yield written.getvalue()
        written.seek(0)
        written.truncate()


def _cell(value: Any) -> Any:
    """A value in a table. Text that a spreadsheet would compute begins with an apostrophe."""
    text = json.dumps(value) if isinstance(value, Mapping | list) else value
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


_FORMS: Mapping[str, tuple[Callable[[Iterable[Row]], Iterator[str]], str]] = {
    "csv": (_as_csv, "text/csv"),
    "json": (_as_json, "application/json"),
}
