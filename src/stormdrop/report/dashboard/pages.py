"""The pages. Each reads what it shows in one go, and a template writes it down. Starlette calls them in threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ...records.contract import State
from ...records.reading.reader import SessionDetails
from ...records.reading.session_document import kept_phases
from ...records.reading.session_lines import SORTS, SessionFilter, SessionLine
from ...records.reading.trial_search import Cursor, TrialFilter, find_trials, trials_of
from ...trial import Status
from .. import formatting
from ..layer_label import layer_label
from ..search_end import IN_WORDS, end_of
from ..traces.announcement import runs_at_work
from .open_spans import OpenSpan, open_spans
from .plot import Curve, Plot, plot
from .shared import Shared
from .tuned import one_of_each_model, query_of, tuned_last, tuned_models

PAGE = 50
"""Lines of a table on one page."""

LONGEST_TEXT = 1000
"""Characters of a text to search for, at most: databases refuse patterns of many more."""

_LABEL = 48  # characters of the layers of a kernel

_MOST_RUNNING = 6  # sessions at work that the first page draws
_MOST_LOOKED_AT = 500  # of them that it looks at


def overview(request: Request) -> Response:
    """The first page: what is tuned now, and what was tuned last."""
    shared = _shared(request)
    running = shared.reader.sessions(SessionFilter(state=State.RUNNING), limit=_MOST_LOOKED_AT)
    at_work = []
    for line in one_of_each_model(shared, running)[:_MOST_RUNNING]:
        last = trials_of(shared.reader, line.number, limit=1)
        at_work.append({"line": line, "last": last[0] if last else None, "plot": _plot_of(shared, [line])})
    models = tuned_models(shared)
    spans, log_error = _spans(shared)
    return _page(
        request,
        "overview.html",
        totals=shared.reader.totals(),
        runs=runs_at_work(),
        database=shared.database,
        at_work=at_work,
        models=[model for model in models if model.running],
        spans=spans,
        log_error=log_error,
        recent=tuned_last(shared, models),
    )


def sessions(request: Request) -> Response:
    """All sessions, filtered and sorted."""
    shared, query = _shared(request), request.query_params
    wanted, sort = session_filter(query), query.get("sort", "newest")
    sort = sort if sort in SORTS else "newest"
    total = shared.reader.count(wanted)
    pages = max(1, math.ceil(total / PAGE))
    number = min(_positive(query.get("page")), pages)
    lines = shared.reader.sessions(wanted, sort, PAGE, (number - 1) * PAGE)
    kept = {name: value for name, value in query.items() if name not in ("page", "token") and value}
    return _page(
        request,
        "sessions.html",
        lines=lines,
        total=total,
        page=number,
        pages=pages,
        filter=wanted,
        sort=sort,
        sorts=SORTS,
        choices=shared.reader.choices(),
        states=[state.value for state in State],
        download=query_of({name: value for name, value in kept.items() if name != "sort"}),
        earlier=query_of({**kept, "page": number - 1}) if number > 1 else None,
        later=query_of({**kept, "page": number + 1}) if number < pages else None,
    )


def session(request: Request) -> Response:
    """One session: how it was tuned, its best so far, how its trials ended, and the trials."""
    shared = _shared(request)
    details = _session(shared, request.path_params["id"])
    status, before = _status(request.query_params.get("status", "")), request.query_params.get("before", "")
    position = int(before) if before.isascii() and before.isdigit() and len(before) < 10 else None
    trials = trials_of(shared.reader, details.line.number, status, PAGE, position)
    progress = shared.progress.of(details.line.number)
    older = trials[-1].position if len(trials) == PAGE else None
    return _page(
        request,
        "session.html",
        details=details,
        line=details.line,
        progress=progress,
        plot=_plot_of(shared, [details.line]),
        trials=trials,
        status=status,
        statuses=[each.value for each in Status],
        older=None if older is None else query_of({"status": status, "before": older}),
        phases=kept_phases(details.outcome.extra) if details.outcome else {},
        ended=_ended(details),
        model=details.method.get("model"),
        starts=len(details.method.get("starts", ())),
    )


def _ended(details: SessionDetails) -> str:
    """Why the search of a session ended, in words; nothing if it has not, or was interrupted."""
    outcome = details.outcome
    if outcome is None or details.line.state is not State.FINISHED:
        return ""
    return IN_WORDS[end_of(outcome.converged, outcome.extra)]


def trials(request: Request) -> Response:
    """A search through the trials of all sessions."""
    shared, query = _shared(request), request.query_params
    wanted = trial_filter(query)
    found = find_trials(shared.reader, wanted, Cursor.parse(query.get("after", "")), PAGE)
    kept = {name: value for name, value in query.items() if name not in ("after", "token") and value}
    return _page(
        request,
        "trials.html",
        trials=found.trials,
        layers=shared.reader.layers_of({trial.session for trial in found.trials}),
        after=None if found.after is None else query_of({**kept, "after": found.after}),
        full=len(found.trials) == PAGE,
        filter=wanted,
        choices=shared.reader.choices(),
        statuses=[each.value for each in Status],
        download=query_of(kept),
    )


def models(request: Request) -> Response:
    """The models whose kernels the records hold."""
    return _page(request, "models.html", models=tuned_models(_shared(request)))


def model(request: Request) -> Response:
    """One model with its kernels."""
    query = request.query_params
    wanted = (query.get("name", ""), query.get("machine", ""))
    found = [each for each in tuned_models(_shared(request)) if (each.name, each.machine) == wanted]
    if not found:
        raise HTTPException(404)
    return _page(request, "model.html", model=found[0], ratio=formatting.ratio)


def machines(request: Request) -> Response:
    """The machines that the records come from."""
    return _page(request, "machines.html", machines=_shared(request).reader.machines())


def difference(request: Request) -> Response:
    """Two sessions side by side."""
    shared, query = _shared(request), request.query_params
    first, second = query.get("a", "").strip(), query.get("b", "").strip()
    if not (first and second):
        lines = shared.reader.sessions(SessionFilter(), limit=200)
        return _page(request, "difference_choice.html", lines=lines, first=first, second=second)
    details = [_session(shared, first), _session(shared, second)]
    progress = [shared.progress.of(each.line.number) for each in details]
    return _page(
        request,
        "difference.html",
        pair=details,
        progress=progress,
        plot=_plot_of(shared, [each.line for each in details]),
        settings=_differences([_setting(each) for each in details]),
        configs=_differences([_best_config(each) for each in details], keep_equal=True),
        statuses=sorted({*progress[0].statuses, *progress[1].statuses}),
        ratio=formatting.ratio(details[1].line.best_seconds, details[0].line.best_seconds),
    )


# What a request asks for


def session_filter(query: Mapping[str, str]) -> SessionFilter:
    """The sessions that a request asks for. What is unknown selects all.

    Raises:
        HTTPException: A text to search for is too long.
    """
    states = {state.value: state for state in State}
    return SessionFilter(
        text=_text(query, "name"),
        search=query.get("search", ""),
        machine=query.get("machine", ""),
        target=query.get("target", ""),
        state=states.get(query.get("state", "")),
    )


def trial_filter(query: Mapping[str, str]) -> TrialFilter:
    """The trials that a request asks for. What is unknown selects all.

    Raises:
        HTTPException: A text to search for is too long.
    """
    return TrialFilter(
        sessions=session_filter(query),
        status=_status(query.get("status", "")),
        text=_text(query, "text"),
        suspect=query.get("suspect") == "yes",
    )


def _text(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "").strip()
    if len(text) > LONGEST_TEXT:
        raise HTTPException(400, f"A text to search for has at most {LONGEST_TEXT} characters, not {len(text)}.")
    return text


def _status(text: str) -> str:
    return text if text in {status.value for status in Status} else ""


def _positive(text: str | None) -> int:
    return max(1, int(text)) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1


# What pages show


def _shared(request: Request) -> Shared:
    shared: Shared = request.app.state.shared
    return shared


def _page(request: Request, template: str, **values: Any) -> Response:
    shared = _shared(request)
    return HTMLResponse(shared.templates.get_template(template).render(here=request.url.path, **values))


def _session(shared: Shared, session_id: str) -> SessionDetails:
    details = shared.reader.session(session_id)
    if details is None:
        raise HTTPException(404)
    return details


def _plot_of(shared: Shared, lines: Sequence[SessionLine]) -> Plot | None:
    curves: list[tuple[str, Curve, float]] = []
    for line in lines:
        progress = shared.progress.of(line.number)
        name = layer_label(line.layers, _LABEL) or line.workload_name
        curves.append((name, progress.curve, progress.elapsed))
    return plot(curves)


def _spans(shared: Shared) -> tuple[list[OpenSpan], str]:
    """What the log says is done now, and why it cannot be read."""
    if shared.log is None:
        return [], ""
    try:
        return open_spans(shared.log), ""
    except OSError as error:
        return [], f"{shared.log}: {error.strerror or error}"


def _setting(details: SessionDetails) -> dict[str, Any]:
    line = details.line
    named = {"search": line.search, "seed": line.seed, "target": line.target, "machine": line.machine}
    named |= {"layers": ", ".join(line.layers)} if line.layers else {}
    method = dict(details.method)
    if isinstance(model := method.get("model"), Mapping):
        method["model"] = {name: value for name, value in model.items() if name != "layers"}
    parts = {"sketch": details.sketches, "option": details.options, "method": method}
    flat = {f"{part} {name}": value for part, values in parts.items() for name, value in values.items()}
    return {**named, **{f"version of {name}": value for name, value in details.versions.items()}, **flat}


def _best_config(details: SessionDetails) -> dict[str, Any]:
    outcome = details.outcome
    if outcome is None or outcome.config is None:
        return {}
    return {"sketch": outcome.sketch, **outcome.config}


def _differences(pair: Sequence[Mapping[str, Any]], keep_equal: bool = False) -> list[tuple[str, str, str, bool]]:
    """(name, first, second, whether they are equal) of what differs, or of everything."""
    first, second = pair
    found = []
    for name in dict.fromkeys((*first, *second)):
        one, other = (formatting.value(each[name]) if name in each else formatting.UNKNOWN for each in pair)
        if keep_equal or one != other:
            found.append((name, _cut(one), _cut(other), one == other))
    return found


def _cut(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
