"""Our searches as strategies of Kernel Tuner, in its simulation mode; our files by its own schema."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

kernel_tuner = pytest.importorskip("kernel_tuner", reason="Kernel Tuner is not installed: pip install kernel_tuner")

import jsonschema  # noqa: E402
from kernel_tuner.file_utils import output_file_schema  # noqa: E402

from stormdrop.compare import recordings  # noqa: E402
from stormdrop.compare.kernel_tuner_writer import write_cache, write_t4  # noqa: E402
from stormdrop.errors import SearchError  # noqa: E402
from stormdrop.integrations.kernel_tuner_strategy import StormStrategy  # noqa: E402
from stormdrop.measure.replay import Recorded, Recording  # noqa: E402
from stormdrop.space import Categorical, Constraint, Ordinal, Space  # noqa: E402
from stormdrop.trial import Candidate, Status  # noqa: E402

RESTRICTION = "block_x * block_y <= 1024"


def recording() -> Recording:
    fits = Constraint(("block_x", "block_y"), lambda x, y: x * y <= 1024, RESTRICTION)
    blocks = [2**exponent for exponent in range(11)]
    knobs = [Ordinal("block_x", blocks), Ordinal("block_y", blocks), Categorical("order", ["ij", "ji"])]
    space = Space("kernel", knobs, [fits])
    recorded = {}
    for point in space.points():
        x, y, order = point
        seconds = 1e-3 * (1 + 0.1 * (x - 5) ** 2 + 0.1 * (y - 3) ** 2 + 0.3 * order)
        failed = x + y == 9 and order == 1
        recorded[Candidate("kernel", point)] = (
            Recorded((), Status.RUNTIME, "failed") if failed else Recorded((seconds, 1.01 * seconds))
        )
    return Recording("kernel", (space,), recorded)


def simulate(path: Path, strategy: Any, max_fevals: int, **settings: Any) -> list[dict[str, Any]]:
    cache = json.loads(path.read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results, _ = kernel_tuner.tune_kernel(
            "kernel",
            "",
            (1,),
            [],
            cache["tune_params"],
            restrictions=[RESTRICTION],
            cache=str(path),
            simulation_mode=True,
            strategy=strategy,
            strategy_options={"max_fevals": max_fevals},
            quiet=True,
            **settings,
        )
    return list(results)


@pytest.mark.parametrize("search", ["storm", "droplet", "random"])
def test_a_search_is_a_strategy_in_simulation_mode(tmp_path: Path, search: str) -> None:
    write_cache(recording(), tmp_path / "cache.json")
    results = simulate(tmp_path / "cache.json", StormStrategy(search), 40)
    configurations = [(result["block_x"], result["block_y"], result["order"]) for result in results]
    assert len(set(configurations)) == len(configurations) <= 40
    assert all(x * y <= 1024 for x, y, _ in configurations)
    best = min(result["time"] for result in results if "__error__" not in result)
    assert best == pytest.approx(1.005) or search == "random"


def test_what_is_to_be_large_is_maximised(tmp_path: Path) -> None:
    write_cache(recording(), tmp_path / "cache.json")
    cache = json.loads((tmp_path / "cache.json").read_text())
    for entry in cache["cache"].values():
        if not isinstance(entry["time"], str):
            entry["GFLOP/s"] = 1 / entry["time"]
    (tmp_path / "cache.json").write_text(json.dumps(cache))
    results = simulate(
        tmp_path / "cache.json", StormStrategy(), 40, objective="GFLOP/s", objective_higher_is_better=True
    )
    assert max(result.get("GFLOP/s", 0) for result in results) == pytest.approx(1 / 1.005)


def test_an_unknown_search_is_one_line(tmp_path: Path) -> None:
    write_cache(recording(), tmp_path / "cache.json")
    with pytest.raises(SearchError, match="unknown search 'strom'; did you mean 'storm'"):
        simulate(tmp_path / "cache.json", StormStrategy("strom"), 10)


def test_t4_files_keep_to_the_schema(tmp_path: Path) -> None:
    write_t4(recording(), tmp_path / "t4.json")
    document = json.loads((tmp_path / "t4.json").read_text())
    jsonschema.validate(document, output_file_schema("results")[1])
    assert recordings.load(tmp_path / "t4.json").optimum_seconds == pytest.approx(1.005e-3)
