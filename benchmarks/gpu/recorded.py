"""Do seven analytical features tell fast GPU kernels from slow ones? Asked of recorded measurements on an A100.

    recorded.py [--data ../shared/data] [--sizes 64,256,1000] [--splits 10]

Grounds: Ansor's logs of a matmul and a convolution, and the direct convolutions of a MetaSchedule database of
ResNet-34. From each record the tile sizes are taken, and from these the seven features of Ansor-AF (AF-DS paper,
section 4.1). Ansor's cost model (XGBoost, `pack-sum`) is trained with some records and predicts the others:

    features    the seven; the logarithms of the tile sizes; both
    rank        Spearman's rank correlation of the predictions with the measured speeds
    pairs       share of pairs that it puts in the right order
    top 10      how many of the ten fastest are among the ten that it likes best
    best        the fastest of the ten that it likes best, as a share of the fastest of all

Means over random splits, the same for all features. Failures are left out: they have no speed. Needs no GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import save

from stormdrop.cli.output import table
from stormdrop.kernel.gpu.device import DEVICES
from stormdrop.kernel.gpu.features import features
from stormdrop.kernel.gpu.tiling import Contraction, Operand, Tiling
from stormdrop.surrogate.boosted import BoostedTrees

_NAME = "gpu_recorded"
_FAILED = 1e9  # seconds: a larger time is an error's
_TEST = 100  # records, at least, that are left to predict
TOP = 10


@dataclass(frozen=True)
class Ground:
    """Measured tilings of one function: factors by axis, shape (n, 5) or (n, 3); `knobs` are other choices."""

    name: str
    contraction: Contraction
    factors: dict[str, Any]
    knobs: Any
    seconds: Any


def main() -> None:
    options = _options()
    rng_seeds = range(options.splits)
    rows, document = [], []
    for ground in grounds(options.data):
        tiling = Tiling(ground.contraction, ground.factors)
        sevens = features(tiling, DEVICES["a100"])
        tiles = np.log2(np.concatenate([*ground.factors.values()], axis=1))
        tiles = np.concatenate([tiles, ground.knobs], axis=1)
        kinds = {"seven": sevens, "tiles": tiles, "both": np.concatenate([sevens, tiles], axis=1)}
        for size in options.sizes:
            if len(ground.seconds) < size + _TEST:
                continue
            for kind, columns in kinds.items():
                found = [predicted(columns, ground.seconds, size, np.random.default_rng(seed)) for seed in rng_seeds]
                means = {key: float(np.mean([each[key] for each in found])) for key in found[0]}
                document.append(
                    {"ground": ground.name, "records": len(ground.seconds), "size": size, "features": kind, **means}
                )
                rows.append(
                    [ground.name, str(size), kind, *(f"{means[key]:.3f}" for key in ("rank", "pairs", "top", "best"))]
                )
    table(["", "trained with", "features", "rank", "pairs", f"top {TOP}", "best"], rows)
    print(save(_NAME, {"splits": options.splits, "results": document}))


def predicted(columns: Any, seconds: Any, size: int, rng: np.random.Generator) -> dict[str, float]:
    """How well a model that was trained with some records orders the others."""
    order = rng.permutation(len(seconds))
    train, test = order[:size], order[size:]
    model = BoostedTrees(rng, objective="pack-sum")
    model.fit([columns[[at]] for at in train], seconds[train].min() / seconds[train])
    scores = np.asarray(model.predict([columns[[at]] for at in test]))
    speeds = seconds[test].min() / seconds[test]
    liked, fastest = np.argsort(-scores)[:TOP], np.argsort(-speeds)[:TOP]
    return {
        "rank": float(spearmanr(scores, speeds).statistic),
        "pairs": float((kendalltau(scores, speeds).statistic + 1) / 2),
        "top": len(set(liked) & set(fastest)) / TOP,
        "best": float(speeds[liked].max()),
    }


def grounds(data: Path) -> Iterator[Ground]:
    """All of them that are there."""
    for path in sorted((data / "ansor").glob("*.log.gz")):
        yield ansor(path)
    yield from meta_schedule(data / "meta_schedule" / "a100_resnet34_tuning_record.json.gz")


def ansor(path: Path) -> Ground:
    """A log of Ansor's: its split steps ("SP") of the stage that is written through registers ("CHW") are the tiles."""
    factors: defaultdict[str, list[list[int]]] = defaultdict(list)
    knobs, seconds, contraction = [], [], None
    with gzip.open(path, "rt") as lines:
        for line in lines:
            record = json.loads(line)
            times = record["r"][0]
            if not times or times[0] > _FAILED:
                continue
            steps = record["i"][1][1]
            contraction = _of_ansor(json.loads(record["i"][0][0]))
            axes = [*contraction.spatial, *contraction.reductions]
            stage = next(step[1] for step in steps if step[0] == "CHW")
            splits = [step for step in steps if step[0] == "SP" and step[1] == stage]
            for (name, extent), (*_, inner, _) in zip(axes, splits, strict=False):
                factors[name].append([extent // int(np.prod(inner)), *inner])
            unrolled = next((step[3] for step in steps if step[0] == "PR"), "$0")
            knobs.append([int(unrolled.rpartition("$")[2])])
            seconds.append(float(np.mean(times)))
    assert contraction is not None, f"{path} has no record that worked"
    arrays = {name: np.array(values, dtype=np.int64) for name, values in factors.items()}
    return Ground(
        path.name.removesuffix(".log.gz"), contraction, arrays, np.log2(1 + np.array(knobs)), np.array(seconds)
    )


def _of_ansor(workload: list[Any]) -> Contraction:
    kind, *sizes = workload
    if kind == "matmul_layer":
        m, k, n = sizes
        return matmul(m, n, k)
    assert kind == "conv2d_layer", f"no contraction is known for {kind}"
    n, ci, h, w, co, kh, kw, stride, padding = sizes
    assert padding == "SAME"
    return convolution(n, co, -(-h // stride), -(-w // stride), ci, kh, kw, stride)


def matmul(m: int, n: int, k: int) -> Contraction:
    """a[i, k] b[k, j]."""
    a = Operand(((("i", 1),), (("k", 1),)), (m, k))
    b = Operand(((("k", 1),), (("j", 1),)), (k, n))
    return Contraction((("i", m), ("j", n)), (("k", k),), (a, b))


def convolution(n: int, co: int, h: int, w: int, ci: int, kh: int, kw: int, stride: int) -> Contraction:
    """NCHW, of an image that is padded already; h and w are the output's."""
    rows, columns = (h - 1) * stride + kh, (w - 1) * stride + kw
    moving = (("y", stride), ("ry", 1)), (("x", stride), ("rx", 1))
    data = Operand(((("n", 1),), (("ci", 1),), *moving), (n, ci, rows, columns))
    weight = Operand(((("co", 1),), (("ci", 1),), (("ry", 1),), (("rx", 1),)), (co, ci, kh, kw))
    spatial = (("n", n), ("co", co), ("y", h), ("x", w))
    return Contraction(spatial, (("ci", ci), ("ry", kh), ("rx", kw)), (data, weight))


def meta_schedule(path: Path) -> Iterator[Ground]:
    """The direct convolutions of a database: four tiles of five factors, three of three, in the order of the axes."""
    found: defaultdict[int, list[tuple[list[list[int]], list[int], float]]] = defaultdict(list)
    shapes: dict[int, Any] = {}
    if not path.exists():
        return
    with gzip.open(path, "rt") as lines:
        for line in lines:
            index, ((instructions, decisions), seconds, _, arguments) = json.loads(line)
            sampled = [(instructions[at], decision) for at, decision in decisions]
            tiles = [decision for instruction, decision in sampled if instruction[0] == "SamplePerfectTile"]
            choices = [decision for instruction, decision in sampled if instruction[0] == "SampleCategorical"]
            if [len(tile) for tile in tiles] != [5] * 4 + [3] * 3 or not seconds or seconds[0] > _FAILED:
                continue
            found[index].append((tiles, choices, float(np.mean(seconds))))
            shapes[index] = [argument[2] for argument in arguments]
    for index, records in found.items():
        data, weight, *_, output = shapes[index]
        (n, co, h, w), (_, ci, kh, kw) = output, weight
        contraction = convolution(n, co, h, w, ci, kh, kw, data[2] // h)
        names = [name for name, _ in (*contraction.spatial, *contraction.reductions)]
        factors = {name: np.array([tiles[at] for tiles, _, _ in records]) for at, name in enumerate(names)}
        knobs = np.array([choices for _, choices, _ in records], dtype=np.float64)
        name = f"resnet34 {ci}x{data[2]}x{data[3]} to {co}x{h}x{w}, {kh}x{kw}"
        yield Ground(name, contraction, factors, knobs, np.array([seconds for *_, seconds in records]))


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
