"""Do seven analytical features tell fast GPU kernels from slow ones? Asked of recorded measurements on an A100.

    recorded.py [--data ../shared/data] [--sizes 64,256,1000] [--splits 10]

Grounds: Ansor's logs of a matmul and a convolution, and the direct convolutions of a MetaSchedule database of
ResNet-34. From each record the tile sizes are taken, and from these the seven features of Ansor-AF (AF-DS paper,
section 4.1). Ansor's cost model (XGBoost, `pack-sum`) is trained with some records and predicts the others:

    features    the seven; the logarithms of the tile sizes; both; Ansor's 164 of each statement, of our own schedule
                with the same tiles (sketches/gpu/contraction.py), for a log holds no code
    rank        Spearman's rank correlation of the predictions with the measured speeds
    pairs       share of pairs that it puts in the right order
    top 10      how many of the ten fastest are among the ten that it likes best
    best        the fastest of the ten that it likes best, as a share of the fastest of all

Means over random splits, the same for all features. Failures are left out: they have no speed; what was measured twice
counts once. As no ground has the records that training with 1,000 takes, ResNet-34's are also taken together, as Ansor
trains one model for all of a network's kernels: speeds are relative to the fastest of each, and each that has enough
records left is ordered for itself. Needs no GPU; a quarter of an hour.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import bars, save

from stormdrop import operators
from stormdrop.cli.output import table
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.gpu.features import analytic_features
from stormdrop.sketches.gpu.tiling import ContractionAxes, Operand, Tilings
from stormdrop.sketches.statement_features import extractor
from stormdrop.surrogate.boosted import BoostedTrees

_NAME = "gpu_recorded"
_FAILED = 1e9  # seconds: a larger time is an error's
_TEST = 100  # records, at least, that are left to predict
TOP = 10
KINDS = ("seven", "tiles", "both", "statements")
_NETWORK = "resnet34"

Record = tuple[tuple[tuple[int, ...], ...], tuple[int, ...], float]
"""Factors of each axis, other choices, seconds."""


@dataclass(frozen=True)
class Ground:
    """n measured tilings of one function, each different.

    `factors` by axis, shape (n, 5) or (n, 3); `knobs`, shape (n, k), are other choices, the last one the steps up to
    which loops are unrolled; `seconds` of shape (n,). `workload` is the same function, here.
    """

    name: str
    contraction: ContractionAxes
    factors: dict[str, Any]
    knobs: Any
    seconds: Any
    workload: Workload

    @classmethod
    def of(cls, name: str, contraction: ContractionAxes, records: Sequence[Record], workload: Workload) -> Ground:
        """The fastest of the records of each tiling."""
        fastest: dict[tuple[Any, ...], float] = {}
        for factors, knobs, seconds in records:
            key = (factors, knobs)
            fastest[key] = min(seconds, fastest.get(key, seconds))
        names = [name for name, _ in (*contraction.spatial, *contraction.reductions)]
        tiles = {name: np.array([factors[at] for factors, _ in fastest]) for at, name in enumerate(names)}
        knobs = np.array([knobs for _, knobs in fastest], dtype=np.float64)
        return cls(name, contraction, tiles, knobs, np.array(list(fastest.values())), workload)

    def statements(self) -> list[Any]:
        """Ansor's 164 features: an array of shape (stores, 164) for each tiling."""
        sketch, device = GpuContraction(), GPUS["a100"]
        axes = [*(f"space{at}" for at in range(len(self.contraction.spatial)))]
        axes += [f"reduce{at}" for at in range(len(self.contraction.reductions))]
        functions = []
        for at, knobs in enumerate(self.knobs):
            config = {axis: tuple(map(int, tiles[at])) for axis, tiles in zip(axes, self.factors.values(), strict=True)}
            config |= {"fetch0": 1, "fetch1": 1, "unroll": int(knobs[-1])}
            functions.append(sketch.apply(self.workload, device, config).main)
        return extractor(self.workload, device)(functions)


def main() -> None:
    options = _options()
    every = [(ground, shown(ground)) for ground in grounds(options.data)]
    network = [each for each in every if each[0].name.startswith(_NETWORK)]
    tasks = [(ground.name, [(ground, kinds)]) for ground, kinds in every]
    tasks += [(f"{_NETWORK}, all of them", network)] if network else []
    rows, document = [], []
    for name, several in tasks:
        records = sum(len(ground.seconds) for ground, _ in several)
        for size in options.sizes:
            if records < size + _TEST:
                continue
            for kind in KINDS:
                known = [(kinds[kind], ground.seconds) for ground, kinds in several]
                found = [predicted(known, size, np.random.default_rng(seed)) for seed in range(options.splits)]
                means = {key: float(np.mean([each[key] for each in found])) for key in found[0]}
                document.append({"ground": name, "records": records, "size": size, "features": kind, **means})
                rows.append([name, str(size), kind, *(f"{means[key]:.3f}" for key in ("rank", "pairs", "top", "best"))])
    table(["", "trained with", "features", "rank", "pairs", f"top {TOP}", "best"], rows)
    tasks_of = {(each["ground"], each["size"]): f"{each['ground']}, {each['size']}" for each in document}
    ranks = {kind: [each["rank"] for each in document if each["features"] == kind] for kind in KINDS}
    print(bars(_NAME, "Predicted beside measured order", "rank correlation", list(tasks_of.values()), ranks))
    print(save(_NAME, {"splits": options.splits, "results": document}))


def shown(ground: Ground) -> dict[str, list[Any]]:
    """What a model sees of each record, by kind: an array of rows."""
    sevens = analytic_features(Tilings(ground.contraction, ground.factors), GPUS["a100"])
    tiles = np.log2(np.concatenate([*ground.factors.values()], axis=1))
    tiles = np.concatenate([tiles, np.log2(1 + ground.knobs)], axis=1)
    columns = sevens, tiles, np.concatenate([sevens, tiles], axis=1)
    each = [[table[[at]] for at in range(len(table))] for table in columns]
    return dict(zip(KINDS, [*each, ground.statements()], strict=True))


def predicted(known: Sequence[tuple[Sequence[Any], Any]], size: int, rng: np.random.Generator) -> dict[str, float]:
    """How well a model that was trained with some records orders the others: means over the grounds with enough.

    `known`, of each ground: what is shown of each record, and their seconds.
    """
    everywhere = [(ground, at) for ground, (_, seconds) in enumerate(known) for at in range(len(seconds))]
    order = rng.permutation(len(everywhere)).tolist()
    parts: list[tuple[list[int], list[int]]] = [([], []) for _ in known]
    for place, number in enumerate(order):
        ground, at = everywhere[number]
        parts[ground][place >= size].append(at)
    rows, speeds = [], []
    for (features_of, seconds), (train, _) in zip(known, parts, strict=True):
        rows += [features_of[at] for at in train]
        speeds += (seconds[train].min() / seconds[train]).tolist() if train else []
    model = BoostedTrees(rng, objective="pack-sum")
    model.fit(rows, np.array(speeds))
    found = [
        _agreement(np.asarray(model.predict([features_of[at] for at in test])), 1 / seconds[test])
        for (features_of, seconds), (_, test) in zip(known, parts, strict=True)
        if len(test) >= _TEST
    ]
    return {key: statistics.fmean(each[key] for each in found) for key in found[0]}


def _agreement(scores: Any, speeds: Any) -> dict[str, float]:
    liked, fastest = np.argsort(-scores)[:TOP], np.argsort(-speeds)[:TOP]
    return {
        "rank": float(spearmanr(scores, speeds).statistic),
        "pairs": float((kendalltau(scores, speeds).statistic + 1) / 2),
        "top": len(set(liked) & set(fastest)) / TOP,
        "best": float(speeds[liked].max() / speeds.max()),
    }


def grounds(data: Path) -> Iterator[Ground]:
    """All of them that are there."""
    for path in sorted((data / "ansor").glob("*.log.gz")):
        yield ansor(path)
    yield from meta_schedule(data / "meta_schedule" / "a100_resnet34_tuning_record.json.gz")


def ansor(path: Path) -> Ground:
    """A log of Ansor's: its split steps ("SP") of the stage that is written through registers ("CHW") are the tiles."""
    records: list[Record] = []
    contraction, workload = None, None
    with gzip.open(path, "rt") as lines:
        for line in lines:
            record = json.loads(line)
            times = record["r"][0]
            if not times or times[0] > _FAILED:
                continue
            steps = record["i"][1][1]
            contraction, workload = _of_ansor(json.loads(record["i"][0][0]))
            axes = [*contraction.spatial, *contraction.reductions]
            stage = next(step[1] for step in steps if step[0] == "CHW")
            splits = [step for step in steps if step[0] == "SP" and step[1] == stage]
            factors = tuple(
                (extent // math.prod(inner), *inner) for (_, extent), (*_, inner, _) in zip(axes, splits, strict=False)
            )
            unrolled = next((step[3] for step in steps if step[0] == "PR"), "$0")
            records.append((factors, (int(unrolled.rpartition("$")[2]),), statistics.fmean(times)))
    assert contraction is not None and workload is not None, f"{path} has no record that worked"
    return Ground.of(path.name.removesuffix(".log.gz"), contraction, records, workload)


def _of_ansor(function: list[Any]) -> tuple[ContractionAxes, Workload]:
    kind, *sizes = function
    if kind == "matmul_layer":
        m, k, n = sizes
        return matmul(m, n, k), operators.matmul(m, n, k)
    assert kind == "conv2d_layer", f"no contraction is known for {kind}"
    n, ci, h, w, co, kh, kw, stride, padding = sizes
    assert padding == "SAME"
    same = operators.conv2d(n, h, w, ci, co, kh, kw, stride=stride, pad=kh // 2, layout="NCHW")
    return convolution(n, co, -(-h // stride), -(-w // stride), ci, kh, kw, stride), same


def matmul(m: int, n: int, k: int) -> ContractionAxes:
    """a[i, k] b[k, j]."""
    a = Operand(((("i", 1),), (("k", 1),)), (m, k))
    b = Operand(((("k", 1),), (("j", 1),)), (k, n))
    return ContractionAxes((("i", m), ("j", n)), (("k", k),), (a, b))


def convolution(n: int, co: int, h: int, w: int, ci: int, kh: int, kw: int, stride: int) -> ContractionAxes:
    """NCHW, of an image that is padded already; h and w are the output's."""
    rows, columns = (h - 1) * stride + kh, (w - 1) * stride + kw
    moving = (("y", stride), ("ry", 1)), (("x", stride), ("rx", 1))
    data = Operand(((("n", 1),), (("ci", 1),), *moving), (n, ci, rows, columns))
    weight = Operand(((("co", 1),), (("ci", 1),), (("ry", 1),), (("rx", 1),)), (co, ci, kh, kw))
    spatial = (("n", n), ("co", co), ("y", h), ("x", w))
    return ContractionAxes(spatial, (("ci", ci), ("ry", kh), ("rx", kw)), (data, weight))


def meta_schedule(path: Path) -> Iterator[Ground]:
    """The direct convolutions of a database: four tiles of five factors, three of three, in the order of the axes."""
    found: defaultdict[int, list[Record]] = defaultdict(list)
    shapes: dict[int, Any] = {}
    if not path.exists():
        return
    with gzip.open(path, "rt") as lines:
        for line in lines:
            index, ((instructions, decisions), seconds, _, arguments) = json.loads(line)
            sampled = [(instructions[at], decision) for at, decision in decisions]
            tiles = [decision for instruction, decision in sampled if instruction[0] == "SamplePerfectTile"]
            # Its candidates are the first attribute; fetches come first, unrolling last.
            choices = tuple(each[2][0][at] for each, at in sampled if each[0] == "SampleCategorical")
            if [len(tile) for tile in tiles] != [5] * 4 + [3] * 3 or not seconds or seconds[0] > _FAILED:
                continue
            found[index].append((tuple(map(tuple, tiles)), choices, statistics.fmean(seconds)))
            shapes[index] = [argument[2] for argument in arguments]
    for index, records in found.items():
        data, weight, *_, output = shapes[index]
        (n, co, h, w), (_, ci, kh, kw) = output, weight
        stride, name = data[2] // h, f"{_NETWORK} {ci}x{data[2]}x{data[3]} to {co}x{h}x{w}, {kh}x{kw}"
        same = operators.conv2d(
            n, data[2], data[3], ci, co, kh, kw, stride=stride, pad=kh // 2, layout="NCHW", bias=1, act="relu"
        )
        yield Ground.of(name, convolution(n, co, h, w, ci, kh, kw, stride), records, same)


def _options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data")
    asked.add_argument("--sizes", default="64,256,1000", help="records to train with (%(default)s)")
    asked.add_argument("--splits", type=int, default=10, help="(%(default)s)")
    options = asked.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",")]
    if not (options.data / "ansor").is_dir():
        sys.exit(f"{options.data}: holds no recorded measurements; --data says where they are")
    return options


if __name__ == "__main__":
    main()
