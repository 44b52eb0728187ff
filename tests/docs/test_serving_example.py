"""The programs in examples/serving: what a server answers to good and to bad bodies, and that batches are right."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import stormdrop as sd
from stormdrop.errors import InputError

EXAMPLES = Path(sd.__file__).parents[2] / "examples" / "serving"

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the package is installed without its repository"),
]

ROWS = (1, 4, 8)


@pytest.fixture(scope="module")
def model() -> sd.CompiledModel:
    """y = x w + k, of rows of three numbers and of whole numbers."""
    weights = np.random.default_rng(0).normal(size=(3, 2)).astype("float32")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["p", "f"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 3)),
        helper.make_tensor_value_info("k", TensorProto.INT32, ("N", 1)),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("N", 2))]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, [numpy_helper.from_array(weights, "w")])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with sd.open_store("sqlite://") as store:
        return sd.compile_model(source, shapes={"x": (ROWS, 3), "k": (ROWS, 1)}, store=store)


@pytest.fixture(autouse=True)
def _examples_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("batches", "server", "drive"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def feeds_of(rows: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, 3)).astype("float32"), "k": rng.integers(0, 9, (rows, 1), "int32")}


@pytest.fixture(params=[None, 1.0], ids=["alone", "batched"])
def client(model: sd.CompiledModel, request: pytest.FixtureRequest) -> Any:
    pytest.importorskip("fastapi", reason="the server needs FastAPI")
    testing = pytest.importorskip("fastapi.testclient", reason="its test client needs httpx")
    app = importlib.import_module("server").app_of(model, request.param)
    with testing.TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_good_body(client: Any, model: sd.CompiledModel, rows: int) -> None:
    feeds = feeds_of(rows)
    answer = client.post("/predict", content=json.dumps({name: value.tolist() for name, value in feeds.items()}))
    assert answer.status_code == 200
    np.testing.assert_allclose(answer.json()["y"], model.run(feeds)["y"], rtol=1e-6)


GOOD = {"x": [[1, 2.5, 3]], "k": [[1]]}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"x=1", 400, "the body is no JSON"),
        (b"\xff\xfe", 400, "the body is no JSON"),
        (b"", 400, "the body is no JSON"),
        (b"[" * 100_000, (400, 413), "the body is"),
        (b'{"x": [[NaN, 1, 2]], "k": [[1]]}', 400, "NaN is no number of JSON"),
        (b"[[1, 2, 3]]", 400, 'no JSON object of inputs by name, such as {"x": [...]}'),
        ({"x": [[1, 2, 3]]}, 422, "k"),
        ({**GOOD, "z": [[1]]}, 422, "z"),
        ({**GOOD, "x": [[1, 2]]}, 422, "x"),
        ({**GOOD, "x": [1, 2, 3]}, 422, "x"),
        ({**GOOD, "x": []}, 422, "x"),
        ({**GOOD, "x": [[1, 2], [3]]}, 422, "input 'x': its rows differ in length"),
        ({**GOOD, "x": "text"}, 422, "input 'x' holds something else than numbers of float32"),
        ({**GOOD, "x": None}, 422, "input 'x' holds something else than numbers of float32"),
        ({**GOOD, "x": [["1", "2", "3"]]}, 422, "input 'x' holds something else than numbers of float32"),
        ({**GOOD, "x": [[1e300, 2, 3]]}, 422, "input 'x' holds a number that is too large for float32"),
        ({**GOOD, "k": [[1.5]]}, 422, "input 'k' holds something else than numbers of int32"),
        ({**GOOD, "k": [[True]]}, 422, "input 'k' holds something else than numbers of int32"),
        ({**GOOD, "k": [[2**40]]}, 422, "input 'k' holds a number that is too large for int32"),
        ({**GOOD, "k": [[2**80]]}, 422, "input 'k' holds"),
        ({"x": [[1, 2, 3]] * 9, "k": [[1]] * 9}, 422, "8"),
        ({"x": [[1, 2, 3]] * 2, "k": [[1]]}, 422, ""),
        (b'{"x": [[1, 2, 3]], "k": [[1]], "z": "' + b"z" * 70_000 + b'"}', 413, "the body is larger than"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_body_is_answered_with_one_line(client: Any, body: Any, status: Any, says: str) -> None:
    answer = client.post("/predict", content=body if isinstance(body, bytes) else json.dumps(body))
    assert answer.status_code in (status if isinstance(status, tuple) else (status,)), answer.text
    detail = answer.json()["detail"]
    assert says in detail and "\n" not in detail and len(detail) < 200
    assert client.post("/predict", content=json.dumps(GOOD)).status_code == 200, "it goes on"


def test_what_is_no_number_becomes_null() -> None:
    pytest.importorskip("fastapi", reason="the server needs FastAPI")
    numbers = importlib.import_module("server").numbers
    assert numbers(np.array([[1.0, np.nan], [-np.inf, 2.0]])) == [[1.0, None], [None, 2.0]]
    assert numbers(np.array([1, 2])) == [1, 2]


class Counted:
    """A model that remembers how many rows each of its runs had."""

    def __init__(self, model: sd.CompiledModel) -> None:
        self._model, self.runs = model, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, feeds: Any) -> Any:
        self.runs.append(len(feeds["x"]))
        return self._model.run(feeds)


def test_requests_that_come_together_are_one_batch(model: sd.CompiledModel) -> None:
    counted, requests = Counted(model), [feeds_of(rows, seed) for seed, rows in enumerate([1, 3, 1, 2, 4])]

    async def ask() -> list[Any]:
        predict = importlib.import_module("batches").Batches(counted, wait=0.05)
        return list(await asyncio.gather(*(predict(feeds) for feeds in requests)))

    answers = asyncio.run(ask())
    assert counted.runs == [7, 4], "the first four fill a batch as far as it goes; the fifth has one of its own"
    for feeds, answer in zip(requests, answers, strict=True):
        np.testing.assert_allclose(answer["y"], model.run(feeds)["y"], rtol=1e-5, atol=1e-6)


def test_a_request_that_is_alone_waits_as_long_as_it_may(model: sd.CompiledModel) -> None:
    counted = Counted(model)

    async def ask() -> float:
        predict = importlib.import_module("batches").Batches(counted, wait=0.05)
        begin = asyncio.get_running_loop().time()
        await predict(feeds_of(1))
        return asyncio.get_running_loop().time() - begin

    assert asyncio.run(ask()) >= 0.05
    assert counted.runs == [1]


def test_a_bad_request_fails_alone(model: sd.CompiledModel) -> None:
    async def ask() -> list[Any]:
        predict = importlib.import_module("batches").Batches(model, wait=0.01)
        bad = [{**feeds_of(1), "x": np.ones((1, 4), "float32")}, {"x": feeds_of(1)["x"]}, feeds_of(9), feeds_of(0)]
        return list(await asyncio.gather(*(predict(each) for each in [feeds_of(2), *bad]), return_exceptions=True))

    good, *bad = asyncio.run(ask())
    assert good["y"].shape == (2, 2)
    assert all(isinstance(error, InputError) for error in bad)


def test_a_batch_that_fails_is_told_to_all_of_it(model: sd.CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(model)
    monkeypatch.setattr(counted, "run", lambda feeds: feeds["y"])

    async def ask() -> list[Any]:
        predict = importlib.import_module("batches").Batches(counted, wait=0.01)
        first = await asyncio.gather(predict(feeds_of(1)), predict(feeds_of(2)), return_exceptions=True)
        monkeypatch.setattr(counted, "run", model.run)
        return [*first, await predict(feeds_of(1))]

    *failed, good = asyncio.run(ask())
    assert all(isinstance(error, KeyError) for error in failed)
    assert good["y"].shape == (1, 2)


def test_a_model_without_rows_is_not_batched() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "tiny", [info("x", 1, (2,))], [info("y", 1, (2,))])
    one = sd.compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    with pytest.raises(InputError, match="cannot be batched: tune it for several numbers of rows"):
        importlib.import_module("batches").Batches(one)


def test_the_gain_is_measured(model: sd.CompiledModel) -> None:
    drive = importlib.import_module("drive")
    document = asyncio.run(drive.driven(model, clients=6, seconds=0.5, wait=1e-3))
    assert {name: way["wrong"] for name, way in document["ways"].items()} == {"one by one": 0, "in batches": 0}
    assert all(way["answers"] > 5 and way["per_second"] > 0 for way in document["ways"].values())
    gain, low, high = document["gain"]
    assert document["rows"] == 8 and 0 < low <= gain <= high
