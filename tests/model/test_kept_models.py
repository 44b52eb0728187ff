"""Models that are kept for later processes: what is loaded, what is not, and what goes if there is no room."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import residual_model
from tvm.error import InternalError

from stormdrop.errors import InputError, MeasureError
from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.kept_models import KeptModels
from stormdrop.model.random_weights import seed_weights
from stormdrop.model.tuning.result import CompileResult
from stormdrop.model.untuned import compile_model_with
from stormdrop.records import Outcome, Problem, Setting, open_store
from stormdrop.tuning.options import TuneOptions

pytestmark = pytest.mark.compiles

KEY, OTHER, THIRD = "a" * 64, "b" * 64, "c" * 64
X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def result() -> CompileResult:
    with open_store("sqlite://") as store:
        return compile_model_with(seed_weights(residual_model(), seed=1), Cpu.detect(), TuneOptions(), store=store)


def test_what_is_kept_is_loaded_and_computes_the_same(result: CompileResult, tmp_path: Path) -> None:
    kept = KeptModels(tmp_path / "graphs")
    with open_store("sqlite://") as store:
        assert kept.load(KEY, store) is None
        assert kept.keep(KEY, result, store)
        loaded = kept.load(KEY, store)
        assert loaded is not None and kept.load(OTHER, store) is None
    np.testing.assert_array_equal(loaded(X), result.model(X))
    (listed,) = kept.listed()
    assert (listed.key, listed.name) == (KEY, result.name)
    assert listed.bytes > 1000
    assert kept.clear() == [listed] and kept.listed() == []


def test_new_records_of_a_kernel_count_and_those_of_others_do_not(result: CompileResult, tmp_path: Path) -> None:
    kept = KeptModels(tmp_path / "graphs")
    problem = next(task.kernel.problem for task in result.tasks if task.kernel is not None)
    setting, outcome = Setting("droplet", 0, {"s": "f"}), Outcome("s", {"k": 1}, seconds=1e-3)
    with open_store("sqlite://") as store:
        kept.keep(KEY, result, store)
        other = Problem("another", "text", "name", problem.target, problem.machine)
        store.finish(store.open(other, setting), outcome)
        assert kept.load(KEY, store) is not None
        store.finish(store.open(problem, setting), outcome)
        assert kept.load(KEY, store) is None
        assert (tmp_path / "graphs" / KEY).exists()  # it is right, and only its schedules may be slower


@pytest.mark.parametrize("file", ["entry.json", "model/metadata.json", "model/program.json", "model/kernels.bc"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_what_is_damaged_is_removed(result: CompileResult, tmp_path: Path, file: str, damage: str) -> None:
    kept = KeptModels(tmp_path / "graphs")
    kept.keep(KEY, result, None)
    path = tmp_path / "graphs" / KEY / file
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] if damage == "cut" else data[:middle] + b"\xff\x00" + data[middle + 2 :])
    assert kept.load(KEY, None) is None
    assert kept.keep(KEY, result, None) and kept.load(KEY, None) is not None


def test_a_model_that_computes_something_else_is_not_loaded(result: CompileResult, tmp_path: Path) -> None:
    kept = KeptModels(tmp_path / "graphs")
    kept.keep(KEY, result, None)
    path = tmp_path / "graphs" / KEY / "entry.json"
    entry = json.loads(path.read_bytes())
    (name,) = entry["outputs"]
    values = np.frombuffer(bytes.fromhex(entry["outputs"][name]), np.float64)
    entry["outputs"][name] = (values * 1.01).tobytes().hex()
    path.write_text(json.dumps(entry))
    assert kept.load(KEY, None) is None and not path.exists()


def test_a_folder_that_others_can_write_is_not_used(result: CompileResult, tmp_path: Path) -> None:
    kept = KeptModels(tmp_path / "graphs")
    kept.keep(KEY, result, None)
    (tmp_path / "graphs").chmod(0o777)
    assert kept.load(KEY, None) is None
    assert not kept.keep(OTHER, result, None)


def test_what_was_used_last_stays_if_there_is_no_room(result: CompileResult, tmp_path: Path) -> None:
    kept = KeptModels(tmp_path / "graphs")
    kept.keep(KEY, result, None)
    kept.keep(OTHER, result, None)
    for age, key in enumerate((KEY, OTHER)):
        os.utime(tmp_path / "graphs" / key / "entry.json", (1000 + age, 1000 + age))
    assert kept.load(KEY, None) is not None  # which makes it the newer one
    size = kept.listed()[0].bytes
    KeptModels(tmp_path / "graphs", most_bytes=2 * size + size // 2).keep(THIRD, result, None)
    assert {model.key for model in kept.listed()} == {KEY, THIRD}


def test_what_is_too_large_is_not_kept_and_nothing_goes_for_it(result: CompileResult, tmp_path: Path) -> None:
    kept = KeptModels(tmp_path / "graphs")
    assert kept.keep(KEY, result, None)
    size = kept.listed()[0].bytes
    assert not KeptModels(tmp_path / "graphs", most_bytes=size - 1).keep(OTHER, result, None)
    assert {model.key for model in kept.listed()} == {KEY}


def test_a_model_that_is_removed_at_once_is_not_kept(
    result: CompileResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptModels(tmp_path / "graphs")
    monkeypatch.setattr(kept, "_make_room", kept.clear)  # as another process does
    assert not kept.keep(KEY, result, None)


FAILURES = (
    InputError("no such input"),
    MeasureError("no worker starts"),
    InternalError("a check failed"),
    OSError("no space left"),
    ValueError("a bad value"),
)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_what_does_not_run_is_compiled_anew(
    failure: Exception, result: CompileResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise failure

    kept = KeptModels(tmp_path / "graphs")
    assert kept.keep(KEY, result, None)
    with monkeypatch.context() as patch:
        patch.setattr(CompiledModel, "run", fails)
        assert kept.load(KEY, None) is None
        assert not kept.keep(OTHER, result, None)
    assert kept.listed() == []
    assert kept.keep(KEY, result, None) and kept.load(KEY, None) is not None


def test_what_a_killed_process_has_left_is_removed(result: CompileResult, tmp_path: Path) -> None:
    kept = KeptModels(tmp_path / "graphs")
    kept.keep(KEY, result, None)
    left = tmp_path / "graphs" / f".{OTHER}.saving-0123"
    (left / "new").mkdir(parents=True)
    kept.keep(THIRD, result, None)
    assert not left.exists()
