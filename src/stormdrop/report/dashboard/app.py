"""The dashboard as an application: its routes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ...errors import StormdropError
from ...records.reading.reader import RecordsReader
from . import downloads, pages
from .changes import changes
from .guard import Access, Guard
from .shared import Shared

_STATIC = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


def create_app(reader: RecordsReader, access: Access | None = None, log: Path | None = None) -> Starlette:
    """The dashboard of a database.

    Args:
        reader: The records. It stays open.
        access: Who may ask; by default everybody on this machine.
        log: A file that `--log` of a tuning writes; the first page shows what it does now.
    """
    static = {name: (resources.files(__package__) / "static" / name).read_bytes() for name in _STATIC}

    async def of_static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in static:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(static[name], media_type=_STATIC[name])

    async def of_changes(request: Request) -> Response:
        shared: Shared = request.app.state.shared

        async def is_gone() -> bool:
            return shared.ending() or await request.is_disconnected()

        stream = changes(shared.stamp, is_gone)
        return StreamingResponse(stream, media_type="text/event-stream")

    routes = [
        Route("/", pages.overview),
        Route("/sessions", pages.sessions),
        Route("/sessions.{form:str}", downloads.sessions),
        Route("/sessions/{id:str}", pages.session),
        Route("/sessions/{id:str}/trials.{form:str}", downloads.trials_of_session),
        Route("/trials", pages.trials),
        Route("/trials.{form:str}", downloads.trials),
        Route("/models", pages.models),
        Route("/model", pages.model),
        Route("/machines", pages.machines),
        Route("/difference", pages.difference),
        Route("/changes", of_changes),
        Route("/static/{name:str}", of_static),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access or Access())],
        exception_handlers={400: _wrong, 404: _missing, StormdropError: _failed},
    )
    app.state.shared = Shared(reader, log)
    return app


def _wrong(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _page(request, error.detail, 400)


def _missing(request: Request, _: Exception) -> Response:
    return _page(request, "There is no such page.", 404)


def _failed(request: Request, error: Exception) -> Response:
    return _page(request, str(error), 503)


def _page(request: Request, reason: str, code: int) -> Response:
    shared: Shared = request.app.state.shared
    return HTMLResponse(shared.templates.get_template("reason.html").render(reason=reason, here=""), code)
