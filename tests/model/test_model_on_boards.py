"""A model for another machine: tuned, verified and timed behind a runner, and saved for that machine."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_models import gelu_inside
from tiny_models import residual_model
from tvm.support import tar

from stand_ins.rack import Rack
from stormdrop.errors import InputError, MeasureError, ModelError, TargetError
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.machine.remote.tracker import boards
from stormdrop.model import load, tune_model
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.artifact.kept_tuning import read_tuning
from stormdrop.model.building.board import LEFT_OUT, Board, BoardModel, library_of
from stormdrop.model.building.compile import build
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.tuning.selection import fastest_on_board
from stormdrop.records import open_store

pytestmark = pytest.mark.compiles


def test_a_model_is_tuned_on_a_rack_and_saved_for_its_boards(rack: Rack, tmp_path: Path) -> None:
    target, out = parse_machine("cpu/x86-64-v3").with_runner(rack.address), tmp_path / "m.sd"
    assert isinstance(target, Cpu)
    with open_store("sqlite://") as store:
        model = seed_weights(residual_model(), seed=1)
        result = tune_model(model, target=target, trials=8, store=store, out=out)
        sessions = store.sessions()
    assert result.trials == 8
    assert all("x86-64 with AVX2 at board@127.0.0.1" in session.machine for session in sessions)
    assert all(store_session.target == "llvm x86-64-v3" for store_session in sessions)
    document = result.to_json()
    assert document["left_out"] == list(LEFT_OUT)
    assert document["verified"]["max_error"] < 1e-4
    assert 0 < document["latency"]["seconds"] < 1 and document["untuned"]["seconds"] > 0
    assert boards(rack.address).known == 2
    rack.wait_until(lambda: rack.free == 2)  # nothing of the tuning still holds one
    metadata, _, tuning = read_tuning(out)
    assert tuning is not None and tuning["profile"] is None
    assert (metadata.cpu, metadata.target["runner"]) == ("x86-64 with AVX2", "")
    feeds = random_feeds(result.model.inputs)
    with pytest.raises(MeasureError, match=f"the connection to {rack.address} is closed: load the model on that"):
        result.model.run(feeds)
    loaded = load(out)  # this machine has AVX2 as well
    right = build_here(model).run(feeds)
    for name, value in loaded.run(feeds).items():
        np.testing.assert_allclose(value, right[name], rtol=1e-4, atol=1e-5)


def build_here(model: Any) -> CompiledModel:
    return build(load_graph(model), {}, Cpu.detect())


def test_a_board_runs_what_this_machine_runs(rack: Rack, residual: Graph, tmp_path: Path) -> None:
    target, feeds = Cpu.detect().with_runner(rack.address), random_feeds(residual.inputs)
    here = build(residual, {}, Cpu.detect()).run(feeds)
    with Board(rack.address) as board:
        assert rack.free == 1
        there = build(residual, {}, target, create=partial(BoardModel, board))
        assert isinstance(there, BoardModel)
        for name, value in there.run(feeds).items():
            np.testing.assert_array_equal(value, here[name])
        with pytest.raises(InputError, match="input 'x' is missing"):
            there.run({})
        there.write_files(tmp_path, native=False)
        assert (tmp_path / "weights.bin").exists()
        for name, value in there.reloaded(tmp_path).run(feeds).items():
            np.testing.assert_array_equal(value, here[name])
        assert 0 < there.stopwatch(feeds)(3) < 1
    rack.wait_until(lambda: rack.free == 2)


def test_a_board_that_is_gone_is_one_line(rack: Rack, residual: Graph) -> None:
    with Rack(1) as short, Board(short.address) as board:
        model = build(residual, {}, Cpu.detect().with_runner(short.address), create=partial(BoardModel, board))
        short.close()
        with pytest.raises(MeasureError, match=f"{short.address}: the model does not run there") as caught:
            model.run(random_feeds(residual.inputs))
        assert "\n" not in str(caught.value)


def test_a_board_that_hangs_is_not_waited_for_without_end(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.model.building.board.ANSWER_SECONDS", 0.2)
    ended = threading.Event()
    with Board(rack.address) as board:
        with pytest.raises(MeasureError, match=r"no answer within 0.2 s: it hangs or cannot be reached"):
            board.answer(lambda: ended.wait(30))
        ended.set()


class NoBoard:
    """A board that nothing is sent to."""


def test_a_model_for_another_architecture_is_built_and_saved_here(residual: Graph, tmp_path: Path) -> None:
    target = parse_machine("cpu/neoverse-n1").with_runner("board:9090")
    assert isinstance(target, Cpu)
    board: Any = NoBoard()
    model = build(residual, {}, target, create=partial(BoardModel, board))
    model.write_files(tmp_path, native=False)
    again = model.reloaded(tmp_path)
    assert isinstance(again, BoardModel)
    assert again.metadata.features == model.metadata.features
    library_of(again.compiled, again.metadata).export_library(str(tmp_path / "model.tar"), fcompile=tar.tar)
    with tarfile.open(tmp_path / "model.tar") as archive:
        kinds = [archive.extractfile(member).read(20)[18] for member in archive if member.name.endswith(".o")]  # type: ignore[union-attr]
    assert kinds and set(kinds) == {183}, "ELF's number of AArch64"


class Timed(BoardModel):
    """A model on a board whose executions take a given time."""

    def __init__(self, seconds: float) -> None:
        self.taken = seconds

    def stopwatch(self, feeds: Mapping[str, Any]) -> Any:
        return lambda number: self.taken


@pytest.mark.parametrize(("seconds", "best"), [((1.0, 2.0, 0.5), 2), ((1.0, 1.0, 1.0), 0), ((1.0, 0.6, 0.5), 2)])
def test_the_fastest_combination_as_a_whole(seconds: tuple[float, ...], best: int) -> None:
    combinations = [{0: ("sketch", {"tile": tile})} for tile in range(3)]
    models = [Timed(each) for each in seconds]
    assert fastest_on_board(combinations, models, [{}, {}], 5) == (combinations[best], models[best])


def test_what_cannot_be_done_elsewhere_is_refused_before_the_tuning(rack: Rack, tmp_path: Path) -> None:
    target = Cpu.detect().with_runner(rack.address)
    with pytest.raises(InputError, match="a native model is linked on the machine that it is for"):
        tune_model(residual_model(), target=target, native=True)
    with pytest.raises(TargetError, match="has no board of the key 'bord'; did you mean 'board'"):
        tune_model(residual_model(), target=Cpu.detect().with_runner(f"bord@{rack.tracker}"))
    with pytest.raises(ModelError, match=r"onnxruntime runs .*, and TVM's server at board@.* has none"):
        tune_model(gelu_inside(), target=target)
