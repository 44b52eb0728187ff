"""The exhaustive study of one layer: its template, the ledger of what was measured, and the fit of the speeds."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.compare import recordings
from stormdrop.ir.workload import Workload
from stormdrop.sketches.fingerprint import space_of
from stormdrop.trial import Status

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL: dict[str, Any] = {"n": 1, "h": 4, "w": 4, "ci": 4, "co": 32, "kh": 3, "kw": 3, "pad": 1, "layout": "NCHW"}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    for folder in (FOLDER, FOLDER / "searches"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER / "searches"))  # for the workers
    return {name: importlib.import_module(name) for name in ("exhaustive", "record_space", "_spatial_pack")}


@pytest.fixture(scope="session")
def target() -> sd.Cpu:
    return sd.Cpu.detect()


@pytest.fixture
def small() -> Workload:
    return sd.operators.conv2d(**SMALL)


def test_the_template_has_the_knobs_and_refusals_of_autotvm(scripts: dict[str, ModuleType], target: sd.Cpu) -> None:
    template = scripts["_spatial_pack"].spatial_pack
    workload = sd.operators.conv2d(**scripts["exhaustive"].LAYER, layout="NCHW")
    space = template.space(workload, target)
    assert space.size == 10 * 2 * 2 * 2 * 4 * 20 == 6400
    config = space.config(space.origin)
    template.apply(workload, target, config)
    error = scripts["_spatial_pack"].InstantiationError
    for changes, message in [
        ({"tile_co": (16, 32), "ann_spatial": "none none unroll"}, "Too large factor for unrolling: 32"),
        ({"tile_co": (16, 32), "ann_spatial": "none none vec"}, "Wrong size of lanes in vectorization: 32"),
        ({"tile_oh": (1, 7), "ann_spatial": "vec none none"}, "Wrong size of lanes in vectorization: 7"),
    ]:
        with pytest.raises(error, match=message):
            template.apply(workload, target, {**config, **changes})
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(100):
        try:
            template.apply(workload, target, space.config(space.sample(rng)))
        except error:
            refused += 1
    assert 30 <= refused <= 60  # 45% of all


def test_a_space_is_recorded_on_from_where_it_was_ended(
    scripts: dict[str, ModuleType],
    small: Workload,
    target: sd.Cpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template, record = scripts["_spatial_pack"].spatial_pack, scripts["record_space"].record
    space = space_of(template, small, target)
    ledger, out = tmp_path / "small.ledger.jsonl", tmp_path / "small.jsonl.gz"

    def run(points: int = 24) -> None:
        record(small, target, [(template, space)], ledger, out, points=points)

    run()
    recording = recordings.load(out)
    kinds = {known.status for known in recording.recorded.values()}
    assert len(recording.recorded) == 24
    assert kinds == {Status.OK, Status.INSTANTIATION}  # what was built computes what NumPy does
    whole = ledger.read_text().splitlines(keepends=True)
    assert len(whole) == 25
    ledger.write_text("".join([*whole[:10], whole[10][:30]]))  # killed while it wrote a line
    run()
    again = ledger.read_text().splitlines(keepends=True)
    assert again[:10] == whole[:10]
    assert [json.loads(line)["config"] for line in again[1:]] == [json.loads(line)["config"] for line in whole[1:]]
    monkeypatch.setattr(scripts["record_space"], "site_of", None)  # nothing is left to measure
    run()
    assert recordings.load(out).recorded.keys() == recording.recorded.keys()
    with pytest.raises(SystemExit, match="was begun with other points: move it away first"):
        run(23)


def test_errors_are_counted_with_their_seconds(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stormdrop.measure.replay import Recorded, Recording
    from stormdrop.space import Ordinal, Space
    from stormdrop.trial import Candidate, Phases

    monkeypatch.setattr(scripts["exhaustive"], "OUT", tmp_path)
    space = Space("s", [Ordinal("x", list(range(4)))])
    refused = Recorded((), Status.INSTANTIATION, "Too large factor for unrolling: 32", Phases(schedule=0.25))
    entries = [Recorded((1e-3,), phases=Phases(build=1.0, run=0.5)), refused, refused, refused]
    recorded = {Candidate("s", (x,)): entry for x, entry in enumerate(entries)}
    found = scripts["exhaustive"].errors(Recording("c12", (space,), recorded))
    assert found == {"points": {"ok": 1, "instantiation": 3}, "seconds": {"ok": 1.5, "instantiation": 0.75}}
    printed = capsys.readouterr().out
    assert "75.0%" in printed and "33.3%" in printed and "Too large factor for unrolling" in printed
    assert (tmp_path / "exhaustive_errors.png").stat().st_size > 1000


@pytest.mark.parametrize("shape", ["exponential", "uniform"])
def test_the_fit_tells_an_exponential_from_another_distribution(scripts: dict[str, ModuleType], shape: str) -> None:
    rng = np.random.default_rng(0)
    rates = np.sort(rng.exponential(50, 4000) if shape == "exponential" else rng.uniform(40, 60, 4000))
    fit: dict[str, Any] = scripts["exhaustive"].exponential(rates)
    assert fit["mean"] == pytest.approx(50, rel=0.05)
    assert (fit["distance"] < 0.03) == (shape == "exponential")
    median = fit["quantiles"][scripts["exhaustive"].QUANTILES.index(0.5)]
    assert median == pytest.approx(fit["mean"] * np.log(2))
