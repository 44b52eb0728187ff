"""`stormdrop cache`: the compiled graphs of `torch.compile` that are kept from one process to the next."""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated

import typer

from ...errors import InputError
from .. import output
from ..options import JsonOption


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the compiled graphs of torch.compile that are kept, or remove them."""
    from ...model.kept_models import MOST_BYTES, KeptModels

    kept = KeptModels.of_user()
    if kept is None:
        raise InputError("there is no home directory, so nothing is kept")
    models = kept.clear() if clear else kept.listed()
    total = sum(model.bytes for model in models)
    if as_json:
        graphs = [dataclasses.asdict(model) for model in models]
        output.emit(
            {"folder": str(kept.folder), "bytes": total, "most": MOST_BYTES, "removed": clear, "graphs": graphs}
        )
        return
    if models and not clear:
        rows = [[model.name, output.megabytes(model.bytes), _minute(model.used), model.key[:12]] for model in models]
        output.table(["graph", "size", "used (UTC)", "key"], rows, spare=("key",))
    graphs_in_words = f"{len(models)} compiled graph{'s' if len(models) != 1 else ''}"
    if clear:
        print(f"{graphs_in_words} removed, {output.megabytes(total)}")
    else:
        print(
            f"{graphs_in_words}, {output.megabytes(total)} of at most {output.megabytes(MOST_BYTES)}, in {kept.folder}"
        )


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
