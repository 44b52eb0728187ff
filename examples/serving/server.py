"""A model behind HTTP: `python examples/serving/server.py model.sd` answers `POST /predict`.

    curl -d '{"x": [[0.1, 0.2, 0.3]]}' http://127.0.0.1:8000/predict
    {"y": [[0.5, 0.5]]}

A body that the model cannot take is answered with one line that says why: 413 if it is too large, 400 if it is no JSON
object, 422 if the inputs are not those of the model. With `--batch 2` requests wait for up to 2 ms for others, and are
computed together; see batches.py. It needs `pip install fastapi uvicorn`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from batches import Batches
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool

try:
    import stormdrop as sd
except ModuleNotFoundError:  # the image of the Dockerfile runs native models only
    import stormdrop_runtime as sd  # type: ignore[import-not-found,no-redef]

Arrays = Mapping[str, Any]


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder that `stormdrop tune` wrote")
    parser.add_argument("--batch", type=float, metavar="MS", help="compute requests together that come within so long")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(app_of(sd.load(given.model), given.batch), host=given.host, port=given.port)


def app_of(model: sd.CompiledModel, batch_ms: float | None = None) -> FastAPI:
    """The application that serves a model."""
    app, most = FastAPI(), most_bytes(model)

    async def alone(feeds: Arrays) -> Arrays:
        return await run_in_threadpool(model.run, feeds)  # a call in the event loop would block all others

    predict: Callable[[Arrays], Awaitable[Arrays]] = alone if batch_ms is None else Batches(model, batch_ms / 1000)

    @app.post("/predict")
    async def answer(request: Request) -> dict[str, Any]:
        feeds = inputs_of(model, await body_of(request, most))
        try:
            outputs = await predict(feeds)
        except sd.InputError as error:
            raise HTTPException(422, str(error)) from error
        return {name: numbers(value) for name, value in outputs.items()}

    return app


def most_bytes(model: sd.CompiledModel) -> int:
    """The size of the largest body: 32 characters for each number of the largest inputs, and some for the rest."""
    return 65536 + 32 * max(sum(math.prod(info.shape) for info in size.inputs) for size in model.sizes)


async def body_of(request: Request, most: int) -> bytes:
    """The body, of which no more than allowed is ever in memory."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise HTTPException(413, f"the body is larger than {most} bytes, the most that inputs of this model need")
    return bytes(body)


def inputs_of(model: sd.CompiledModel, body: bytes) -> Arrays:
    """The inputs that stand in a body. Whether they have the right names and shapes, the model says itself."""
    try:
        values = json.loads(body, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from error
    if not isinstance(values, dict):
        first = json.dumps(model.inputs[0].name)
        raise HTTPException(400, f"the body is no JSON object of inputs by name, such as {{{first}: [...]}}")
    types = {info.name: np.dtype(info.dtype) for info in model.inputs}
    return {name: array_of(name, value, types[name]) if name in types else value for name, value in values.items()}


def no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def array_of(name: str, value: Any, dtype: Any) -> Any:
    """An input as an array of the type that the model takes, if its numbers are such."""
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise HTTPException(422, f"input {name!r}: its rows differ in length, or are nested too deeply") from error
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    if array.size and array.dtype.kind not in kinds:
        raise HTTPException(422, f"input {name!r} holds something else than numbers of {dtype}")
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    fits = np.isfinite(converted).all() if dtype.kind == "f" else np.array_equal(converted, array)
    if not fits:
        raise HTTPException(422, f"input {name!r} holds a number that is too large for {dtype}")
    return converted


def numbers(value: Any) -> Any:
    """An output as JSON has it, which knows neither NaN nor infinities."""
    return value.tolist() if np.isfinite(value).all() else np.where(np.isfinite(value), value, None).tolist()


if __name__ == "__main__":
    main()
