"""Does the model of time tell fast GPU kernels from slow ones before anything is measured? Checked on recorded spaces.

    model_of_time.py [--data ../shared/data] [--gemm gemm_RTX_3090.json.gz ...] [--leave-one-out] [--seeds 10]

The grounds are those of recorded.py (Ansor's logs and ResNet-34's convolutions, an A100) and Kernel Tuner's caches of a
matrix product, as in winners.py. The constants of the model were chosen on every second ground of recorded.py ("chosen
on" in the table), beginning with the first; the others only judge. For each ground, and for both the rough model of
analytic.py and `stormdrop/sketches/gpu/times/tilings.py`:

    rank        Spearman's rank correlation with the measured times
    pairs       share of pairs in the right order
    best of 10  the fastest of the ten favourites, as a share of the best speed
    first       the speed of the favourite
    until 5%    how many are measured in the model's order until one is within 5% of the fastest
    left out    with --leave-one-out: the rank correlation and the best of ten if the constants are chosen anew on all
                other grounds of recorded.py, and this one only judges them

The caches of Kernel Tuner hold whole spaces. On random halves of them searches are told more or less of what the model
expects: where to begin, and from which points to choose those that are measured first. The figures are the distinct
candidates until within 5% of the optimum, as medians, and how many runs never were. It needs no GPU, and takes some
minutes with caches, a few seconds without.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import save
from gpu import recorded
from gpu.analytic import Run, costs_of, rough_seconds
from gpu.winners import GPUS_OF_CACHES, PARAMETERS, UNROLLED, Times, read_cache, tilings_of

from stormdrop.cli.output import table
from stormdrop.machine.gpu import GPUS, Gpu
from stormdrop.search import Knowledge, create
from stormdrop.sketches.gpu.tiling import Tilings
from stormdrop.sketches.gpu.times.tilings import expected_seconds
from stormdrop.sketches.gpu.times.waves import CHOSEN, Constants
from stormdrop.space import Constraint, Ordinal, Space
from stormdrop.trial import Candidate

_NEAR, _TOP = 1.05, 10
_FIGURES = ("rank", "pairs", "best", "first")
_STEPS = 150  # tried to choose constants
_FREE = ("not_hidden", "latency", "another_fetch", "fetch", "wait", "unrolled", "store", "cache_bytes")
_MOST = 1000  # candidates of a search


@dataclass(frozen=True)
class Way:
    """What a search is told of a model.

    Attributes:
        title: What the table says.
        search: The search.
        origin: The model whose favourite is the origin; empty for a random one.
        favoured: The share of the points, which the model of time favours, from which storm chooses its opening. 0 if
            the search is not told what the model expects of points.
        options: The search's options.
    """

    title: str
    search: str = "storm"
    origin: str = ""
    favoured: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


WAYS = (
    Way("random origin"),
    Way("rough model's favourite", origin="rough"),
    Way("favourite", origin="model"),
    Way("favourite, opening of 3", origin="model", options={"opening": 3}),
    Way("favourite, opening from the better half", origin="model", favoured=0.5),
    Way("from the best tenth", origin="model", favoured=0.1),
    Way("from the best thirtieth", origin="model", favoured=1 / 30),
    Way("random origin", "droplet"),
    Way("favourite", "droplet", "model"),
    Way("favourite, half of the neighbours", "droplet", "model", 0.5, {"prune": 0.5}),
    Way("random origin, half of the neighbours", "droplet", "", 0.5, {"prune": 0.5}),
)


@dataclass(frozen=True)
class Ground:
    """n measured tilings on a device, with what `expected_seconds` wants to know of them, and the seconds."""

    name: str
    tilings: Tilings
    device: Gpu
    fetch: Sequence[Any] | None
    unroll: Any
    seconds: Any

    def rough(self) -> Any:
        """What the rough model expects, shape (n,)."""
        return rough_seconds(self.tilings, self.device)

    def expected(self, constants: Constants = CHOSEN) -> Any:
        """What the model expects, shape (n,)."""
        return expected_seconds(self.tilings, self.device, self.fetch, self.unroll, constants)


def main() -> None:
    options = _options()
    logs = [_of_recorded(ground) for ground in recorded.grounds(options.data)]
    caches = [read_cache(path) for path in options.gemm]
    rows, document = [], []
    for number, ground in enumerate([*logs, *(_of_cache(name, times) for name, times in caches)]):
        chosen = number < len(logs) and number % 2 == 0
        rough, model = judged(ground.rough(), ground.seconds), judged(ground.expected(), ground.seconds)
        entry: dict[str, Any] = {"ground": ground.name, "chosen on": chosen, "rough": rough, "model": model}
        left_out = ""
        if options.leave_one_out and number < len(logs):
            constants = chosen_on([other for other in logs if other is not ground])
            entry["left out"] = anew = judged(ground.expected(constants), ground.seconds)
            left_out = f"{anew['rank']:.2f}, {anew['best']:.2f}"
        document.append(entry)
        figures = [f"{rough[key]:.2f} -> {model[key]:.2f}" for key in _FIGURES]
        until = f"{rough['until']:.0f} -> {model['until']:.0f}"
        rows.append([ground.name, "yes" if chosen else "", *figures, until, left_out])
    for title, chosen in (("mean of those", True), ("mean of the others", False)):
        half = [entry for entry in document if entry["chosen on"] is chosen]
        means = [
            [statistics.fmean(entry[kind][key] for entry in half) for kind in ("rough", "model")] for key in _FIGURES
        ]
        rows.append([title, "", *(" -> ".join(f"{mean:.2f}" for mean in pair) for pair in means), "", ""])
    table(["", "chosen on", "rank", "pairs", f"best of {_TOP}", "first", "until 5%", "left out"], rows)
    searched = [row for name, times in caches for row in _searches(name, times, options.seeds)]
    if searched:
        table(["", "search", "begins with", "until 5%", "never"], searched)
    print(save("gpu_model_of_time", {"grounds": document, "searches": searched}))


def judged(expected: Any, seconds: Any) -> dict[str, float]:
    """How well n expected times order the measured ones."""
    speeds = seconds.min() / seconds[np.argsort(expected, kind="stable")]
    return {
        "rank": float(spearmanr(expected, seconds).statistic),
        "pairs": float((kendalltau(expected, seconds).statistic + 1) / 2),
        "best": float(speeds[:_TOP].max()),
        "first": float(speeds[0]),
        "until": float(np.argmax(speeds >= 1 / _NEAR) + 1),
    }


def chosen_on(grounds: Sequence[Ground]) -> Constants:
    """The constants that order some grounds best, by random steps from other ones than those of the model."""

    def quality(constants: Constants) -> float:
        figures = [judged(ground.expected(constants), ground.seconds) for ground in grounds]
        return statistics.fmean(entry["rank"] + entry["best"] / 2 + entry["first"] / 4 for entry in figures)

    rng = np.random.default_rng(0)
    best = Constants(0.5, 500.0, 50.0, 10.0, 50.0, 64.0, 10.0, 1.0, 64.0)
    reached = quality(best)
    for _ in range(_STEPS):
        names = rng.choice(_FREE, rng.integers(1, 3), replace=False)
        tried = replace(best, **{name: getattr(best, name) * float(np.exp(rng.normal(0, 0.7))) for name in names})
        if (found := quality(tried)) > reached:
            best, reached = tried, found
    return best


def _of_recorded(ground: recorded.Ground) -> Ground:
    """MetaSchedule's records say how many elements a thread fetches at a time, Ansor's do not."""
    fetch = (ground.knobs[:, 0], ground.knobs[:, 1]) if ground.knobs.shape[1] == 3 else None
    tilings = Tilings(ground.contraction, ground.factors)
    return Ground(ground.name, tilings, GPUS["a100"], fetch, ground.knobs[:, -1], ground.seconds)


def _of_cache(name: str, times: Times) -> Ground:
    widths = np.array(list(times))[:, -2:].T
    seconds = np.array(list(times.values())) / 1e3  # the caches hold milliseconds
    fetch = widths[0], widths[1]
    return Ground(f"gemm, {name}", tilings_of(list(times)), GPUS_OF_CACHES[name], fetch, UNROLLED, seconds)


def _searches(name: str, times: Times, seeds: int) -> list[list[str]]:
    """How many candidates searches measure until within 5%, if they are told more or less of what the model expects."""
    ground, rows = _of_cache(name, times), []
    models = {"rough": ground.rough(), "model": ground.expected()}
    expected = {model: dict(zip(times, values.tolist(), strict=True)) for model, values in models.items()}
    for way in WAYS:
        nears = [_near(way, times, expected, seed) for seed in range(seeds)]
        middle = statistics.median(math.inf if near is None else near for near in nears)
        rows.append([name, way.search, way.title, "-" if math.isinf(middle) else f"{middle:g}", str(nears.count(None))])
    return rows


def _near(way: Way, times: Times, expected: Mapping[str, Times], seed: int) -> int | None:
    """A run on a random half of the configurations, so that each run has a space and an optimum of its own."""
    rng = np.random.default_rng(seed)
    configs = list(times)
    half = {configs[index]: times[configs[index]] for index in rng.permutation(len(times))[: len(times) // 2].tolist()}
    values = [sorted({*each}) for each in zip(*half, strict=True)]
    knobs = [Ordinal(knob, each) for knob, each in zip(PARAMETERS, values, strict=True)]
    begin = min(half, key=expected[way.origin].__getitem__) if way.origin else next(iter(half))
    limit = Constraint(PARAMETERS, lambda *config: config in half, "was measured")
    space = Space("gemm", knobs, [limit], dict(zip(PARAMETERS, begin, strict=True)))

    def of(columns: Mapping[str, Any], kind: Times) -> Any:
        return np.array([kind[config] for config in zip(*(columns[knob].tolist() for knob in PARAMETERS), strict=True)])

    def prior(candidates: Sequence[Candidate]) -> Any:
        return of(space.columns([candidate.point for candidate in candidates]), expected["model"])

    knowledge = Knowledge(prior=prior, favoured=way.favoured) if way.favoured else Knowledge()
    made = create(way.search, [space], np.random.default_rng(seed), knowledge, **way.options)
    costs = costs_of(made, lambda columns: of(columns, half), space, seed, _MOST)
    return Run.from_costs(costs, min(half.values())).near


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data")
    parser.add_argument("--gemm", type=Path, nargs="*", default=[], help="Kernel Tuner's caches of the kernel gemm")
    parser.add_argument("--leave-one-out", action="store_true", help="choose the constants without each ground, too")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each search (%(default)s)")
    options = parser.parse_args()
    if not (options.data / "ansor").is_dir():
        sys.exit(f"{options.data} holds no recorded measurements: name a folder that does with --data")
    return options


if __name__ == "__main__":
    main()
