"""What `benchmarks/models/native_stress.py` relies on: crashes are outcomes, each mutation changes what it should."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import native_models
from native_models import chain, kernels_object, write_model
from stormdrop.errors import ArtifactError
from stormdrop.runtime import load

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "models"))

import native_stress
from _native_forms import Failed
from _native_in_python import call_from_threads, in_process, outcomes_of, write_cases
from _native_mutations import KINDS, digest_of, mutate

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(native_models.compiler() is None, reason="there is no C compiler"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """y = 2 x + c, with two values of c."""
    folder = tmp_path_factory.mktemp("models")
    kernels, program = kernels_object(folder), chain(["twice", "add"], constant=True)
    return [write_model(folder / f"{c}.sd", program, [kernels], np.full(16, c, np.float32)) for c in (1, 2)]


@pytest.fixture(scope="module", autouse=True)
def no_fork_server_afterwards() -> Iterator[None]:
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # otherwise it ends with this process


def yields_and(ends: str) -> Iterator[str]:
    yield "begun"
    if ends == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif ends == "hang":
        time.sleep(60)
    elif ends == "exception":
        sys.exit(3)


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [("well", []), ("crash", ["crash: SIGSEGV"]), ("hang", ["hangs"]), ("exception", ["crash: exit code 3"])],
)
def test_how_a_process_ends_is_an_outcome(ends: str, outcome: list[str]) -> None:
    limit = 5 if ends == "hang" else 60
    assert in_process(yields_and, ends, limit=limit)[-len(outcome) or 1 :] == outcome


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["metadata.json", "model.so", "weights.bin"])
def test_a_mutation_is_refused_with_the_digest(models: list[Path], tmp_path: Path, file: str, kind: str) -> None:
    before = {path.name: path.read_bytes() for path in models[0].iterdir()}
    assert mutate(models[0], models[1], tmp_path / "m", file, kind, np.random.default_rng(1))
    assert {path.name: path.read_bytes() for path in models[0].iterdir()} == before
    with pytest.raises(ArtifactError) as caught:
        load(tmp_path / "m", digest=digest_of(models[0]))
    assert "\n" not in str(caught.value)


def test_a_forged_file_has_the_checksum_of_the_metadata(models: list[Path], tmp_path: Path) -> None:
    mutate(models[0], models[1], tmp_path / "m", "weights.bin", "forged", np.random.default_rng(1))
    with pytest.raises(ArtifactError, match=r"weights.bin: is damaged: its checksum differs$"):
        load(tmp_path / "m")  # it is the library that knows its constants


def test_what_python_does_with_a_model(models: list[Path], tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    assert in_process(write_cases, models[0], cases) == ["written"]
    assert outcomes_of(models[0], "model.so", digest_of(models[0]), cases) == ("right", "right")
    assert outcomes_of(models[1], "model.so", digest_of(models[0]), cases) == ("refused", "another answer")
    found = json.loads(in_process(call_from_threads, models[0], cases, 4, 1000)[0])
    assert found["wrong"] == 0 and all(found[what][0] == found[what][1] for what in ("threads", "files"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"wrong": 1}, "answers are wrong"),
        ({"resident": (1000, 4000)}, "memory grows"),
        ({"threads": (2, 3)}, "2 threads after a tenth"),
        ({"files": (3, 4)}, "3 files after a tenth"),
        ({"mappings": (60, 70)}, "60 mappings after a tenth"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_wrong_or_grows_fails(change: dict[str, Any], reason: str) -> None:
    flat = {"wrong": 0, "resident": (1000, 1100), "threads": (2, 2), "files": (3, 3), "mappings": (60, 62)}
    assert native_stress._flat("ten calls", json.dumps(flat)).startswith("ten calls, 0 wrong")
    with pytest.raises(Failed, match=reason):
        native_stress._flat("ten calls", json.dumps(flat | change))
