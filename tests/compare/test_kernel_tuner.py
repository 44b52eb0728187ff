"""Kernel Tuner's caches: tiny ones that are written here, and real ones if they lie beside the repository."""

import gzip
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop.compare.kernel_tuner import kernel_tuner_recording, unpacked
from stormdrop.errors import SpaceFileError
from stormdrop.measure.replay import Recorded, Recording
from stormdrop.space import Categorical, Ordinal
from stormdrop.testing import check_space
from stormdrop.trial import Candidate, Phases, Request, Status

SHARED = Path(__file__).parents[3] / "shared" / "data" / "kernel_tuner"


def entry(x: Any, mode: Any, **more: Any) -> dict[str, Any]:
    return {"x": x, "mode": mode, "one": 7, "time": 2.0, "times": [3.0, 1.0, 2.0], **more}


def document() -> dict[str, Any]:
    """Two knobs and a constant. (2, "b") was not valid, and (1, "b") failed."""
    cache = [
        entry(4, "a", compile_time=500.0, benchmark_time=40.0, verification_time=3.0, framework_time=9.0),
        entry(2, "a", times=[1.5, 1.0, 1.25]),
        entry(1, "b", time="RuntimeFailedConfig", compile_time=250),  # with times of another run beside it
        entry(4, "b", time="CompilationFailedConfig", times=[]),
    ]
    return {
        "kernel_name": "k",
        "tune_params_keys": ["x", "mode", "one"],
        "tune_params": {"x": [4, 1, 2], "mode": ["b", "a"], "one": [7]},
        "cache": {",".join(str(e[key]) for key in ("x", "mode", "one")): e for e in cache},
    }


def written(folder: Path, data: Any, name: str = "tiny.json") -> Path:
    path = folder / name
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def read(path: Path) -> Recording:
    return kernel_tuner_recording(unpacked(path), path)


@pytest.mark.parametrize("name", ["tiny.json", "tiny.json.gz"])
def test_a_file_becomes_a_space_and_what_is_known_of_it(tmp_path: Path, name: str) -> None:
    recording = read(written(tmp_path, document(), name))
    assert recording.name == "tiny"
    (space,) = recording.spaces
    assert space.knobs == (Ordinal("x", [1, 2, 4]), Categorical("mode", ["b", "a"]), Ordinal("one", [7]))
    check_space(space, np.random.default_rng(0))
    recorded = {tuple(space.config(candidate.point).values()): entry for candidate, entry in recording.recorded.items()}
    assert recorded == {
        (4, "a", 7): Recorded((0.003, 0.001, 0.002), phases=Phases(build=0.5, run=0.04, check=0.003)),
        (2, "a", 7): Recorded((0.0015, 0.001, 0.00125)),
        (1, "b", 7): Recorded((), Status.RUNTIME, "RuntimeFailedConfig", Phases(build=0.25)),
        (4, "b", 7): Recorded((), Status.COMPILE_DEVICE, "CompilationFailedConfig"),
    }
    assert space.size == 4
    assert not space.contains((1, 0, 0))  # x=2, mode="b"
    assert space.neighbours((0, 0, 0)) == [(2, 0, 0)]  # over the gap


def test_the_optimum_has_the_least_median(tmp_path: Path) -> None:
    recording = read(written(tmp_path, document()))
    best, failed, unknown = Candidate("k", (1, 1, 0)), Candidate("k", (0, 0, 0)), Candidate("k", (0, 1, 0))
    assert recording.optimum == best
    assert recording.optimum_seconds == recording.truth(best) == 0.00125
    assert recording.truth(failed) is None
    assert recording.truth(unknown) is None
    answers = list(recording.measurer(exact=True).measure([Request(best, 2), Request(failed), Request(unknown)]))
    assert [answer.status for answer in answers] == [Status.OK, Status.RUNTIME, Status.UNKNOWN]
    assert answers[0].seconds == (0.00125, 0.00125)
    (noisy,) = recording.measurer(np.random.default_rng(0)).measure([Request(best, 30)])
    assert set(noisy.seconds) == {0.0015, 0.001, 0.00125}


def test_failures_by_the_names_of_newer_files_and_the_number_of_old_ones(tmp_path: Path) -> None:
    data = document()
    data["cache"] = {
        "new": entry(1, "a", __error__="InvalidConfig"),
        "odd": entry(2, "a", __error__="SomethingElse"),
        "old": entry(4, "a", time=1e20),
        "fine": {"x": 4, "mode": "b", "one": 7, "time": 0.5},  # without raw samples
    }
    recording = read(written(tmp_path, data))
    statuses = [what.status for what in recording.recorded.values()]
    assert statuses == [Status.INSTANTIATION, Status.UNKNOWN, Status.UNKNOWN, Status.OK]
    assert recording.optimum_seconds == 0.0005


def test_the_space_is_told_apart_by_what_it_holds(tmp_path: Path) -> None:
    data, less = document(), document()
    del less["cache"]["4,b,7"]
    spaces = [read(written(tmp_path, d)).spaces[0] for d in (data, less, document())]
    assert spaces[0].fingerprint != spaces[1].fingerprint
    assert spaces[0].fingerprint == spaces[2].fingerprint


def change(*path: str, to: Any = None) -> Callable[[dict[str, Any]], None]:
    """A function that changes the document at a path. If `to` is None, it deletes the value there."""

    def apply(data: dict[str, Any]) -> None:
        for step in path[:-1]:
            data = data[step]
        if to is None:
            del data[path[-1]]
        else:
            data[path[-1]] = to

    return apply


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (change("cache"), "the file has no 'cache'"),
        (change("cache", to={}), "'cache' is empty"),
        (change("tune_params_keys", to="x"), "'tune_params_keys' of the file must be list"),
        (change("tune_params", "mode"), "'mode' of 'tune_params_keys' has no values"),
        (change("tune_params", "x", to=[]), "knob 'x' has no values"),
        (change("tune_params", "x", to=[1, 2, 2, 4]), "lists a value twice"),
        (change("tune_params", "x", to=[1, 2]), "'4,a,7': 'tune_params' does not list 4 for 'x'"),
        (change("tune_params", "x", to=[[1], 2, 4]), "neither a number nor text"),
        (change("cache", "2,a,7", to=3), "'2,a,7' is no JSON object"),
        (change("cache", "2,a,7", "x"), "'2,a,7' has no 'x'"),
        (change("cache", "2,a,7", "x", to=[2]), "'x' of configuration '2,a,7' must be int or float or str"),
        (change("cache", "2,a,7", "x", to=4), "'2,a,7' is there twice"),
        (change("cache", "2,a,7", "time"), "'2,a,7' has no 'time'"),
        (change("cache", "2,a,7", "times", to=[]), "'2,a,7' has no 'times'"),
        (change("cache", "2,a,7", "times", to=["1"]), "no number of milliseconds"),
        (change("cache", "2,a,7", "times", to=[1.0, float("nan")]), "no number of milliseconds"),
        (change("cache", "2,a,7", "times", to=[10**400]), "too large"),
        (change("cache", "2,a,7", "times", to=[0.0]), "not positive"),
        (change("cache", "2,a,7", "compile_time", to="long"), "'compile_time' of configuration '2,a,7'"),
        (change("cache", to={"f": entry(1, "a", time="RuntimeFailedConfig")}), "none of its 1 configurations worked"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(
    tmp_path: Path, harm: Callable[[dict[str, Any]], None], line: str
) -> None:
    data = document()
    harm(data)
    with pytest.raises(SpaceFileError, match=line) as caught:
        read(written(tmp_path, data))
    assert "\n" not in str(caught.value)
    assert "tiny.json is no Kernel Tuner cache" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.json", b'{"cache": {', "is not JSON"),
        ("a.json", b"\xff\xfe", "is not JSON"),
        ("a.json", b"[" * 100_000, "is not JSON"),
        ("a.json", b"1" * 5000, "is not JSON|no JSON object"),  # what Python makes of so many digits was changed
        ("a.json", b"[]", "the file is no JSON object"),
        ("a.json.gz", b"{}", "is no gzip file, though"),
        ("a.json.gz", gzip.compress(b"{}" * 100, mtime=0)[:-12], "cut off or damaged"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SpaceFileError, match=line) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpaceFileError, match="cannot be read: No such file"):
        read(tmp_path / "none.json")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no recorded spaces in {SHARED}")
@pytest.mark.parametrize(
    ("name", "points", "failures"),
    [
        ("convolution_A6000", 4362, {Status.RUNTIME: 221, Status.COMPILE_DEVICE: 252}),
        ("pnpoly_RTX_2080_Ti", 4092, {Status.RUNTIME: 358}),
        ("gemm_RTX_2080_Ti", 17956, {}),
    ],
)
@pytest.mark.long
def test_real_spaces(name: str, points: int, failures: dict[Status, int]) -> None:
    recording = read(SHARED / f"{name}.json.gz")
    (space,) = recording.spaces
    assert space.size == len(recording.recorded) == points
    statuses = [what.status for what in recording.recorded.values() if what.status is not Status.OK]
    assert {status: statuses.count(status) for status in set(statuses)} == failures
    assert set(space.points()) == {candidate.point for candidate in recording.recorded}
    medians = [statistics.median(what.seconds) for what in recording.recorded.values() if what.seconds]
    assert recording.optimum_seconds == min(medians)
    rng = np.random.default_rng(0)
    for point in [space.origin, *(space.sample(rng) for _ in range(50))]:
        assert space.contains(point)
        assert all(point in space.neighbours(neighbour) for neighbour in space.neighbours(point))
