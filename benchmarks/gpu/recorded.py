"""Do seven analytical features tell fast GPU kernels from slow ones? Checked on recorded measurements of an A100.

    recorded.py [--data ../shared/data] [--sizes 64,256,1000] [--splits 10]

The grounds are Ansor's logs of a matmul and of a convolution, and the direct convolutions of a MetaSchedule database of
ResNet-34. The tile sizes of a record give the seven features of Ansor-AF (AF-DS paper, section 4.1). Ansor's cost model
(XGBoost, `pack-sum`) is trained with some records and predicts the others:

    features    the seven; the logarithms of the tile sizes; both; Ansor's 164 per statement, of our own schedule with
                the same tiles (stormdrop/sketches/gpu/contraction.py), because a log holds no code
    rank        Spearman's rank correlation of the predictions with the measured speeds
    pairs       share of pairs in the right order
    top 10      share of the ten fastest that are among the ten with the highest predictions
    best        the fastest of the ten with the highest predictions, as a share of the fastest of all

The figures are means over random splits, which are the same for all features. Failures have no speed and are left out;
repeated measurements count once. No ground has enough records for training with 1,000. Therefore the grounds of
ResNet-34 are also taken together, because Ansor trains one model for all kernels of a network. Speeds are then relative
to the fastest of each ground, and every ground with enough remaining records is ordered separately. It needs no GPU,
and takes a quarter of an hour.
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

from _common import bars, save

from stormdrop import operators
from stormdrop.cli.output import table
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.machine.threads import thread_count
from stormdrop.sketches.gpu.contraction import GpuContraction
from stormdrop.sketches.gpu.features import analytic_features
from stormdrop.sketches.gpu.tiling import ContractionAxes, Operand, Tilings
from stormdrop.sketches.statement_features import extractor
from stormdrop.surrogate.boosted import BoostedTrees

_NAME = "gpu_recorded"
_FAILED = 1e9  # seconds; a longer time stands for an error
_TEST = 100  # the fewest records that have to be left to predict
TOP = 10
KINDS = ("seven", "tiles", "both", "statements")
_NETWORK = "resnet34"

Record = tuple[tuple[tuple[int, ...], ...], tuple[int, ...], float]
"""The factors of every axis, the other choices, and the seconds."""


@dataclass(frozen=True)
class Ground:
    """n different measured tilings of one function.

    Attributes:
        name: the name of the ground.
        contraction: the axes of the function.
        factors: by axis the factors of its tiles, shape (n, 5) or (n, 3).
        knobs: the other choices, shape (n, k); the last one is the number of steps up to which loops are unrolled.
        seconds: the measured times, shape (n,).
        workload: the same function as one of our operators.
    """

    name: str
    contraction: ContractionAxes
    factors: dict[str, Any]
    knobs: Any
    seconds: Any
    workload: Workload

    @classmethod
    def from_records(
        cls, name: str, contraction: ContractionAxes, records: Sequence[Record], workload: Workload
    ) -> Ground:
        """The ground of these records; the fastest record of a tiling counts."""
        fastest: dict[tuple[Any, ...], float] = {}
        for factors, knobs, seconds in records:
            key = (factors, knobs)
            fastest[key] = min(seconds, fastest.get(key, seconds))
        names = [name for name, _ in (*contraction.spatial, *contraction.reductions)]
        tiles = {name: np.array([factors[index] for factors, _ in fastest]) for index, name in enumerate(names)}
        choices = np.array([knobs for _, knobs in fastest], dtype=np.float64)
        return cls(name, contraction, tiles, choices, np.array(list(fastest.values())), workload)

    def statements(self) -> list[Any]:
        """Ansor's 164 features: for every tiling an array of shape (stores, 164)."""
        sketch, device = GpuContraction(), GPUS["a100"]
        axes = [*(f"space{index}" for index in range(len(self.contraction.spatial)))]
        axes += [f"reduce{index}" for index in range(len(self.contraction.reductions))]
        functions = []
        for index, knobs in enumerate(self.knobs):
            config: dict[str, Any] = {"fetch0": 1, "fetch1": 1, "unroll": int(knobs[-1])}
            for axis, tiles in zip(axes, self.factors.values(), strict=True):
                config[axis] = tuple(map(int, tiles[index]))
            functions.append(sketch.apply(self.workload, device, config).main)
        return extractor(self.workload, device, thread_count())(functions)


def main() -> None:
    options = _options()
    every = [(ground, inputs_of(ground)) for ground in grounds(options.data)]
    network = [pair for pair in every if pair[0].name.startswith(_NETWORK)]
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
                rngs = map(np.random.default_rng, range(options.splits))
                results = [agreement_of_predictions(known, size, rng) for rng in rngs]
                means = {key: float(np.mean([split[key] for split in results])) for key in results[0]}
                document.append({"ground": name, "records": records, "size": size, "features": kind, **means})
                rows.append([name, str(size), kind, *(f"{means[key]:.3f}" for key in ("rank", "pairs", "top", "best"))])
    table(["", "trained with", "features", "rank", "pairs", f"top {TOP}", "best"], rows)
    tasks_of = {(entry["ground"], entry["size"]): f"{entry['ground']}, {entry['size']}" for entry in document}
    ranks = {kind: [entry["rank"] for entry in document if entry["features"] == kind] for kind in KINDS}
    print(bars(_NAME, "Predicted beside measured order", "rank correlation", list(tasks_of.values()), ranks))
    print(save(_NAME, {"splits": options.splits, "results": document}))


def inputs_of(ground: Ground) -> dict[str, list[Any]]:
    """The inputs of a model by kind: for every record an array of rows."""
    sevens = analytic_features(Tilings(ground.contraction, ground.factors), GPUS["a100"])
    tiles = np.log2(np.concatenate([*ground.factors.values()], axis=1))
    tiles = np.concatenate([tiles, np.log2(1 + ground.knobs)], axis=1)
    columns = sevens, tiles, np.concatenate([sevens, tiles], axis=1)
    arrays = [[table[[index]] for index in range(len(table))] for table in columns]
    return dict(zip(KINDS, [*arrays, ground.statements()], strict=True))


def agreement_of_predictions(
    known: Sequence[tuple[Sequence[Any], Any]], size: int, rng: np.random.Generator
) -> dict[str, float]:
    """How well a model that is trained with `size` random records orders the others.

    `known` holds for every ground the inputs of the model and the seconds of its records. The figures are means over
    the grounds with enough records left.
    """
    records = [(ground, index) for ground, (_, seconds) in enumerate(known) for index in range(len(seconds))]
    order = rng.permutation(len(records)).tolist()
    parts: list[tuple[list[int], list[int]]] = [([], []) for _ in known]
    for position, number in enumerate(order):
        ground, index = records[number]
        parts[ground][position >= size].append(index)
    rows: list[Any] = []
    speeds: list[float] = []
    for (features_of, seconds), (train, _) in zip(known, parts, strict=True):
        rows += [features_of[index] for index in train]
        speeds += (seconds[train].min() / seconds[train]).tolist() if train else []
    model = BoostedTrees(rng, objective="pack-sum")
    model.fit(rows, np.array(speeds))
    figures = [
        _agreement(np.asarray(model.predict([features_of[index] for index in test])), 1 / seconds[test])
        for (features_of, seconds), (_, test) in zip(known, parts, strict=True)
        if len(test) >= _TEST
    ]
    return {key: statistics.fmean(of_ground[key] for of_ground in figures) for key in figures[0]}


def _agreement(scores: Any, speeds: Any) -> dict[str, float]:
    preferred, fastest = np.argsort(-scores)[:TOP], np.argsort(-speeds)[:TOP]
    return {
        "rank": float(spearmanr(scores, speeds).statistic),
        "pairs": float((kendalltau(scores, speeds).statistic + 1) / 2),
        "top": len(set(preferred) & set(fastest)) / TOP,
        "best": float(speeds[preferred].max() / speeds.max()),
    }


def grounds(data: Path) -> Iterator[Ground]:
    """All grounds that the folder holds."""
    for path in sorted((data / "ansor").glob("*.log.gz")):
        yield ansor(path)
    yield from meta_schedule(data / "meta_schedule" / "a100_resnet34_tuning_record.json.gz")


def ansor(path: Path) -> Ground:
    """The ground of a log of Ansor's. The tiles are the split steps ("SP") of the stage with a cache write ("CHW")."""
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
    return Ground.from_records(path.name.removesuffix(".log.gz"), contraction, records, workload)


def _of_ansor(function: list[Any]) -> tuple[ContractionAxes, Workload]:
    kind, *sizes = function
    if kind == "matmul_layer":
        m, k, n = sizes
        return matmul_axes(m, n, k), operators.matmul(m, n, k)
    assert kind == "conv2d_layer", f"no contraction is known for {kind}"
    n, ci, h, w, co, kh, kw, stride, padding = sizes
    assert padding == "SAME"
    same = operators.conv2d(n, h, w, ci, co, kh, kw, stride=stride, pad=kh // 2, layout="NCHW")
    return convolution_axes(n, co, -(-h // stride), -(-w // stride), ci, kh, kw, stride), same


def matmul_axes(m: int, n: int, k: int) -> ContractionAxes:
    """The axes of a[i, k] b[k, j]."""
    a = Operand(((("i", 1),), (("k", 1),)), (m, k))
    b = Operand(((("k", 1),), (("j", 1),)), (k, n))
    return ContractionAxes((("i", m), ("j", n)), (("k", k),), (a, b))


def convolution_axes(n: int, co: int, h: int, w: int, ci: int, kh: int, kw: int, stride: int) -> ContractionAxes:
    """The axes of an NCHW convolution of a padded image; h and w are the extents of the output."""
    rows, columns = (h - 1) * stride + kh, (w - 1) * stride + kw
    moving = (("y", stride), ("ry", 1)), (("x", stride), ("rx", 1))
    data = Operand(((("n", 1),), (("ci", 1),), *moving), (n, ci, rows, columns))
    weight = Operand(((("co", 1),), (("ci", 1),), (("ry", 1),), (("rx", 1),)), (co, ci, kh, kw))
    spatial = (("n", n), ("co", co), ("y", h), ("x", w))
    return ContractionAxes(spatial, (("ci", ci), ("ry", kh), ("rx", kw)), (data, weight))


def meta_schedule(path: Path) -> Iterator[Ground]:
    """The direct convolutions of a database. They have four tiles of five factors and three of three, by axis."""
    records_of: defaultdict[int, list[Record]] = defaultdict(list)
    shapes: dict[int, Any] = {}
    if not path.exists():
        return
    with gzip.open(path, "rt") as lines:
        for line in lines:
            index, ((instructions, decisions), seconds, _, arguments) = json.loads(line)
            sampled = [(instructions[position], decision) for position, decision in decisions]
            tiles = [decision for instruction, decision in sampled if instruction[0] == "SamplePerfectTile"]
            # The candidates of a choice are its first attribute. Fetches come first, unrolling last.
            categorical = [pair for pair in sampled if pair[0][0] == "SampleCategorical"]
            choices = tuple(instruction[2][0][decision] for instruction, decision in categorical)
            if [len(tile) for tile in tiles] != [5] * 4 + [3] * 3 or not seconds or seconds[0] > _FAILED:
                continue
            records_of[index].append((tuple(map(tuple, tiles)), choices, statistics.fmean(seconds)))
            shapes[index] = [argument[2] for argument in arguments]
    for index, records in records_of.items():
        data, weight, *_, output = shapes[index]
        (n, co, h, w), (_, ci, kh, kw) = output, weight
        stride, name = data[2] // h, f"{_NETWORK} {ci}x{data[2]}x{data[3]} to {co}x{h}x{w}, {kh}x{kw}"
        same = operators.conv2d(
            n, data[2], data[3], ci, co, kh, kw, stride=stride, pad=kh // 2, layout="NCHW", bias=1, act="relu"
        )
        yield Ground.from_records(name, convolution_axes(n, co, h, w, ci, kh, kw, stride), records, same)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data")
    parser.add_argument("--sizes", default="64,256,1000", help="numbers of records to train with (%(default)s)")
    parser.add_argument("--splits", type=int, default=10, help="random splits (%(default)s)")
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",")]
    if not (options.data / "ansor").is_dir():
        sys.exit(f"{options.data} holds no recorded measurements: name a folder that does with --data")
    return options


if __name__ == "__main__":
    main()
