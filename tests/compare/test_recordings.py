"""Recorded grounds from our own records, and analytic grounds by name."""

from __future__ import annotations

import gzip
import io
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop.compare import recordings
from stormdrop.errors import InputError, SpaceFileError, StoreError
from stormdrop.measure.replay import Recorded
from stormdrop.records import Problem, Setting, State, StoredSession, StoredTrial, write_lines
from stormdrop.search import create
from stormdrop.space import Categorical, Ordinal, Space, Split, Tile
from stormdrop.space.analytic import landscapes
from stormdrop.testing import check_space
from stormdrop.trial import Candidate, Measurement, Phases, Status, Trial

PROBLEM = Problem("ab" * 32, "def main", "matmul m=8", "llvm", "a CPU, 2 cores")
Trials = Sequence[tuple[str, Mapping[str, Any], Measurement]]


def ok(*seconds: float, build: float = 0.0) -> Measurement:
    return Measurement(Status.OK, seconds, phases=Phases(build=build))


def crash() -> Measurement:
    return Measurement(Status.RUNTIME, error="it crashed")


def session(
    trials: Trials, problem: Problem = PROBLEM, day: int = 1, version: str = "1", **method: Any
) -> tuple[StoredSession, list[StoredTrial]]:
    """A session that was created on a day of the month. All its sketches have the same version."""
    sketches = {sketch: version for sketch, _, _ in trials}
    stored = StoredSession(
        id=str(uuid.UUID(int=day)),
        problem=problem,
        setting=Setting("grid", 0, sketches, method=method),
        created=f"2025-01-{day:02}T00:00:00.000000+00:00",
        state=State.INTERRUPTED,
    )
    return stored, [
        StoredTrial(0, position, sketch, version, config, measurement)
        for position, (sketch, config, measurement) in enumerate(trials)
    ]


def written(path: Path, *sessions: tuple[StoredSession, list[StoredTrial]]) -> Path:
    out = io.BytesIO()
    write_lines(sessions, out)
    path.write_bytes(gzip.compress(out.getvalue()) if path.suffix == ".gz" else out.getvalue())
    return path


@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz", "no suffix"])
def test_records_become_a_ground(tmp_path: Path, name: str) -> None:
    trials: Trials = [
        ("s", {"rows": 4, "order": "ij"}, ok(2.0, 2.2, build=0.5)),
        ("s", {"rows": 2, "order": "ji"}, crash()),
        ("s", {"rows": 16, "order": "ij"}, ok(1.0)),
        ("t", {"flag": 0}, ok(9.0)),
    ]
    recording = recordings.load(written(tmp_path / name, session(trials)))
    assert recording.name == "matmul m=8"
    s, t = recording.spaces
    assert (s.name, t.name) == ("s", "t")
    assert s.knobs == (Ordinal("rows", [2, 4, 16]), Categorical("order", ["ij", "ji"]))
    assert s.size == 3
    check_space(s, np.random.default_rng(0))
    assert recording.recorded == {
        Candidate("s", s.point({"rows": 4, "order": "ij"})): Recorded((2.0, 2.2), phases=Phases(build=0.5)),
        Candidate("s", s.point({"rows": 2, "order": "ji"})): Recorded((), Status.RUNTIME, "it crashed"),
        Candidate("s", s.point({"rows": 16, "order": "ij"})): Recorded((1.0,)),
        Candidate("t", (0,)): Recorded((9.0,)),
    }
    assert recording.optimum_seconds == 1.0


def test_repeats_are_pooled_and_one_failure_is_enough() -> None:
    a, b = {"x": 1}, {"x": 2}
    first = session([("s", a, ok(3.0, build=0.5)), ("s", b, ok(1.0)), ("s", a, ok(4.0))])
    second = session([("s", a, ok(5.0, build=0.7)), ("s", b, crash())], day=2)
    recording = recordings.from_sessions([second, first], "f")
    assert recording.recorded == {
        Candidate("s", (0,)): Recorded((3.0, 4.0, 5.0), phases=Phases(build=0.5)),
        Candidate("s", (1,)): Recorded((), Status.RUNTIME, "it crashed"),
    }


def test_the_latest_version_of_a_sketch_counts() -> None:
    old = session([("s", {"x": 1}, ok(1.0)), ("t", {"y": 1}, ok(7.0))], day=1)
    new = session([("s", {"x": 2}, ok(2.0))], day=2, version="2")
    recording = recordings.from_sessions([new, old], "f")
    assert {s.name: s.config(s.origin) for s in recording.spaces} == {"t": {"y": 1}, "s": {"x": 2}}


def test_a_tuple_becomes_a_knob_per_component_without_what_is_implied() -> None:
    tile, split, free = Tile("tile", 24, 3), Split("split", 17, [[1, 2], [4, 8]]), [(1, 2), (2, 2), (1, 3)]
    configs = [
        {"tile": tile.value(a), "split": split.value(b), "free": c, "once": (5,)}
        for a in tile
        for b in split
        for c in free
    ]
    recording = recordings.from_sessions([session([("s", config, ok(1.0)) for config in configs])], "f")
    (space,) = recording.spaces
    names = [knob.name for knob in space.knobs]
    assert names == ["tile_1", "tile_2", "split_1", "split_2", "free_0", "free_1", "once_0"]
    assert space.size == len(configs)
    at = space.point({"tile_1": 4, "tile_2": 3, "split_1": 2, "split_2": 4, "free_0": 1, "free_1": 2, "once_0": 5})
    around = [space.config(point)["tile_1"] for point in space.neighbours(at)]
    assert sorted(around)[:1] == [2]  # (2, 4, 3) -> (4, 2, 3): one component moves, the outermost follows
    assert sorted(around)[-1:] == [8]


def test_a_described_space_keeps_its_knobs_and_its_origin(tmp_path: Path) -> None:
    whole = Space("s", [Tile("t", 24, 3), Categorical("pack", [0, 1])], origin={"t": (4, 2, 3), "pack": 1})
    points = [point for point in whole.points() if point != (0, 0, 0)]
    trials = [("s", whole.config(point), ok(1.0 + i)) for i, point in enumerate(points)]
    path = written(tmp_path / "r.jsonl", session(trials, spaces={"s": whole.describe()}))
    recording = recordings.load(path)
    (space,) = recording.spaces
    assert space.knobs == whole.knobs
    assert space.origin == whole.origin
    assert list(space.points()) == points
    assert [candidate.point for candidate in recording.recorded] == points
    # a description of another version is not used
    newer = session([("s", {"t": 3}, ok(1.0))], day=2, version="2")
    described = session(trials, spaces={"s": whole.describe()})
    assert recordings.from_sessions([described, newer], "f").spaces[0].knobs == (Ordinal("t", [3]),)


def test_an_origin_that_was_not_recorded_is_replaced_by_the_first_point() -> None:
    whole = Space("s", [Ordinal("x", [1, 2, 3])], origin={"x": 3})
    trials = session([("s", {"x": 2}, ok(1.0)), ("s", {"x": 1}, ok(1.0))], spaces={"s": whole.describe()})
    assert recordings.from_sessions([trials], "f").spaces[0].origin == (0,)


def test_one_of_several_workloads_is_chosen_by_name(tmp_path: Path) -> None:
    other = replace(PROBLEM, workload_key="cd" * 32, workload_name="softmax")
    path = written(
        tmp_path / "all.jsonl",
        session([("s", {"x": 1}, ok(1.0))]),
        session([("s", {"x": 5}, ok(2.0))], other, day=2),
        session([("s", {"x": 6}, ok(3.0))], other, day=3),
    )
    with pytest.raises(
        SpaceFileError, match=r"several workloads: matmul m=8; softmax\. Choose one: .*all.jsonl#matmul"
    ):
        recordings.load(path)
    assert recordings.load(f"{path}#softmax").spaces[0].size == 2
    assert recordings.load(f"{path}#matmul m=8").spaces[0].size == 1
    with pytest.raises(SpaceFileError, match="no workload 'softmx'; did you mean 'softmax'"):
        recordings.load(f"{path}#softmx")


def test_one_workload_on_two_machines_is_two(tmp_path: Path) -> None:
    other = replace(PROBLEM, machine="another CPU")
    path = written(
        tmp_path / "two.jsonl",
        session([("s", {"x": 1}, ok(1.0))]),
        session([("s", {"x": 1}, ok(2.0))], other, day=2),
    )
    with pytest.raises(SpaceFileError, match="matmul m=8 abababab on llvm, a CPU, 2 cores; "):
        recordings.load(path)
    assert recordings.load(f"{path}#matmul m=8 abababab on llvm, another CPU").optimum_seconds == 2.0


def test_a_name_with_a_hash_is_a_file_where_it_exists(tmp_path: Path) -> None:
    assert recordings.load(written(tmp_path / "a#b.jsonl", session([("s", {"x": 1}, ok(1.0))]))).optimum_seconds == 1.0


@pytest.mark.parametrize(
    ("trials", "method", "line"),
    [
        ([("s", {"x": 1}, crash())], {}, "none of its 1 candidates worked"),
        ([("s", {"x": 1}, ok(1.0)), ("s", {"y": 1}, ok(1.0))], {}, "differ in their form"),
        ([("s", {"x": (1, 2)}, ok(1.0)), ("s", {"x": (1,)}, ok(1.0))], {}, "differ in their form"),
        ([("s", {"x": 1}, ok(1.0)), ("s", {"x": "a"}, ok(1.0))], {}, "neither all numbers nor all text"),
        ([("s", {"x": None}, ok(1.0))], {}, "neither all numbers nor all text"),
        ([("s", {"x": 1}, ok(1.0))], {"spaces": []}, "must be a JSON object"),
        ([("s", {"x": 1}, ok(1.0))], {"spaces": {"s": {}}}, "'knobs' is missing"),
        ([("s", {"x": 1}, ok(1.0))], {"spaces": {"s": {"knobs": [{"kind": "odd"}]}}}, "no kind of knob 'odd'"),
        ([("s", {"x": 1}, ok(1.0))], {"spaces": {"s": Space("s", [Ordinal("x", [2])]).describe()}}, "no value 1"),
    ],
)
def test_records_that_make_no_ground(tmp_path: Path, trials: Trials, method: dict[str, Any], line: str) -> None:
    path = written(tmp_path / "r.jsonl", session(trials, **method))
    with pytest.raises(SpaceFileError, match=line) as caught:
        recordings.load(path)
    assert "\n" not in str(caught.value)
    assert "r.jsonl" in str(caught.value)


def test_files_that_are_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    with pytest.raises(StoreError, match=r"x.jsonl, line 1"):
        recordings.load(path)
    with pytest.raises(SpaceFileError, match="holds no sessions"):
        recordings.load(written(path))
    with pytest.raises(SpaceFileError, match="cannot be read"):
        recordings.load(tmp_path / "none.jsonl#matmul")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="no Kernel Tuner cache"):
        recordings.load(tmp_path / "x.json")


def test_a_kernel_tuner_cache_is_recognised(tmp_path: Path) -> None:
    data = {"tune_params_keys": ["x"], "tune_params": {"x": [1, 2]}, "cache": {"1": {"x": 1, "time": 3.0}}}
    (tmp_path / "k.json").write_text(json.dumps(data))
    assert recordings.load(tmp_path / "k.json").optimum_seconds == 0.003


@pytest.mark.parametrize("name", landscapes())
def test_an_analytic_landscape_is_a_recording(name: str) -> None:
    recording = recordings.load(f"analytic:{name.upper()}")
    landscape = landscapes()[name]
    assert recording.name == name
    assert len(recording.recorded) == recording.spaces[0].size
    assert recording.optimum == landscape.optimum
    assert recording.truth(recording.optimum) == landscape.seconds(landscape.optimum) > 0


def test_an_unknown_landscape() -> None:
    with pytest.raises(SpaceFileError, match=r"'lwr'; did you mean 'lrw'\?"):
        recordings.load("analytic:lwr")


def test_a_search_runs_on_a_recording() -> None:
    recording = recordings.load("analytic:moon")
    search = create("droplet", recording.spaces, np.random.default_rng(0))
    measurer = recording.measurer(exact=True)
    while requests := search.ask(8):
        search.tell([Trial(r.candidate, m) for r, m in zip(requests, measurer.measure(requests), strict=True)])
    assert search.best == recording.optimum


def test_a_value_that_no_knob_has_is_refused_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", session([("s", {"x": {}}, ok(1.0))]))
    with pytest.raises(StoreError, match="line 4: 'config' holds no value of a knob"):
        recordings.load(path)
