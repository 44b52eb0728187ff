"""`stormdrop dashboard`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError
from ...optional_packages import require
from .. import output
from ..options import DatabaseOption

TOKEN_VARIABLE = "STORMDROP_DASHBOARD_TOKEN"
"""The environment variable with the token: other users see the arguments of a command."""

_LEAST_TOKEN = 12  # characters


def dashboard(
    db: DatabaseOption = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Listen on this address. Elsewhere than on the loopback, the default, requests need a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Listen on this port; 0 takes a free one.")
    ] = 8765,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Also show what the tuning does now that writes this --log."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Another name that leads here, as a proxy's; repeatable."),
    ] = None,
) -> None:
    """Show the records in a browser, live while something is tuned. It only reads."""
    require(("starlette", "uvicorn", "anyio", "jinja2"), "the dashboard", extra="dashboard")
    from ...records.reading.reader import RecordsReader
    from ...report.dashboard.serve import Address, serve

    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and (len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable()):
        raise InputError(f"{TOKEN_VARIABLE}: a token has at least {_LEAST_TOKEN} printable ASCII characters")
    address = Address(host, port, allow_host or (), token)
    reader = RecordsReader(db)
    with contextlib.closing(reader), contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        serve(reader, address, log, lambda url: output.say(f"the dashboard is at {url} (Ctrl-C ends it)"))
