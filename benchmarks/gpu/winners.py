"""Is what was the fastest on another GPU better than what a model of time picks? Checked on recorded spaces.

    winners.py gemm_RTX_2080_Ti.json.gz gemm_RTX_3090.json.gz ... [--draws 200]

The files are Kernel Tuner's caches of the kernel "gemm" (CLBlast's, 4096 x 4096 x 4096), one for each GPU, from
github.com/AutoTuningAssociation/benchmark_hub. What counts are the configurations that stage both operands in shared
memory: their tiles are tilings as in `stormdrop/sketches/gpu/tiling.py`. For each ordered pair of GPUs:

    of all        the speed here of the fastest configuration there, as a share of the best speed here
    of N          the same of the fastest of N random ones, as a tuning there might have found it: the mean
    beats         the share of these draws, and of what the model cannot tell apart, in which it is faster here than
                  what the model of time, which picks default schedules, expects to be the fastest
    expected      how many times as long as its own choice the model expects the winner of N to take: 9 of 10 draws
    the model's   the speed of the model's choice, as a share of the best speed: the mean over what the model cannot
                  tell apart, and the best of it

It needs no GPU and takes some seconds.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import save

from stormdrop.cli.output import table
from stormdrop.machine.cpu import parse_machine
from stormdrop.machine.gpu import GPUS, Gpu, require_gpu
from stormdrop.sketches.gpu.tiling import ContractionAxes, Operand, Tilings
from stormdrop.sketches.gpu.times.tilings import expected_seconds

_EXTENT = 4096
_DRAWN = (16, 64, 256)
_TILES = ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "KWI")
_OTHERS = ("MDIMA", "NDIMB", "VWM", "VWN")  # how blocks fetch, and vectors
PARAMETERS = _TILES + _OTHERS
"""The parameters of a configuration, in their order."""
UNROLLED = 1 << 20
"""Steps: the kernel unrolls all of its loops."""
_TIE = 1.0001  # what the model expects to take less than this times as long as its choice is the same to it
GPUS_OF_CACHES: Mapping[str, Gpu] = {
    "NVIDIA GeForce RTX 2080 Ti": require_gpu(
        parse_machine("cuda/sm_75:multiprocessors=68:clock=1545e6:bandwidth=616e9")
    ),
    "NVIDIA TITAN RTX": require_gpu(parse_machine("cuda/sm_75:multiprocessors=72:clock=1770e6:bandwidth=672e9")),
    "NVIDIA GeForce RTX 3060 Laptop GPU": require_gpu(
        parse_machine("cuda/sm_86:multiprocessors=30:clock=1425e6:bandwidth=336e9")
    ),
    "NVIDIA GeForce RTX 3090": GPUS["rtx3090"],
}

Times = Mapping[tuple[int, ...], float]
"""The time of each configuration."""


def main() -> None:
    options = _options()
    read = list(map(read_cache, options.files))
    spaces = dict(read)
    if len(spaces) < 2 or len(spaces) < len(read):
        sys.exit(
            f"it compares GPUs, and the files are of {', '.join(name for name, _ in read)}: give one of each of two"
        )
    rows, document = [], []
    for here, there in itertools.permutations(spaces, 2):
        entry = _compared(spaces[here], spaces[there], GPUS_OF_CACHES[here], options.draws)
        document.append({"here": here, "there": there, **entry})
        figures = [entry["of all"], *entry["of"].values(), min(entry["beats"].values())]
        figures += [max(entry["expected"].values()), *entry["model"]]
        rows.append([here, there, *(f"{figure:.2f}" for figure in figures)])
    drawn = [f"of {count}" for count in _DRAWN]
    table(["here", "there", "of all", *drawn, "beats, least", "expected, most", "the model's", "at best"], rows)
    print(save("gpu_winners", {"draws": options.draws, "results": document}))


def _compared(here: Times, there: Times, gpu: Gpu, draws: int) -> dict[str, Any]:
    configs = list(here)
    seconds = np.array(list(here.values()))
    widths = np.array(configs)[:, -2:].T
    expected = expected_seconds(tilings_of(configs), gpu, (widths[0], widths[1]), UNROLLED)
    speeds, expected = seconds.min() / seconds, expected / expected.min()
    chosen = speeds[expected < _TIE]
    position = {config: index for index, config in enumerate(configs)}
    both = [config for config in there if config in position]
    index, elsewhere = np.array([position[config] for config in both]), np.array([there[config] for config in both])
    if len(both) < max(_DRAWN):
        sys.exit(
            f"{len(both)} configurations are in both files, and {max(_DRAWN)} are drawn: take spaces of one kernel"
        )
    rng = np.random.default_rng(0)
    entry: dict[str, Any] = {
        "of all": float(speeds[index[elsewhere.argmin()]]),
        "model": [float(chosen.mean()), float(chosen.max())],
    }
    entry |= {"of": {}, "beats": {}, "expected": {}}
    for count in _DRAWN:
        samples = [rng.choice(len(both), count, replace=False) for _ in range(draws)]
        winners = index[[sample[elsewhere[sample].argmin()] for sample in samples]]
        entry["of"][count] = float(speeds[winners].mean())
        entry["beats"][count] = float((speeds[winners][:, None] > chosen[None]).mean())
        entry["expected"][count] = float(np.quantile(expected[winners], 0.9))
    return entry


def tilings_of(configs: Sequence[tuple[int, ...]]) -> Tilings:
    """Tilings of c[j, i] = a[k, i] b[k, j], from what a block and its threads have of each axis.

    CLBlast has columns one after the other in memory, and numbers threads along them.
    """
    rows, columns, depth, down, across, inner, *_ = np.array(configs).T
    one, size = np.ones_like(rows), (_EXTENT, _EXTENT)
    a, b = Operand(((("k", 1),), (("i", 1),)), size), Operand(((("k", 1),), (("j", 1),)), size)
    axes = ContractionAxes((("j", _EXTENT), ("i", _EXTENT)), (("k", _EXTENT),), (a, b))
    factors = {
        "i": np.stack([_EXTENT // rows, one, down, one, rows // down], axis=1),
        "j": np.stack([_EXTENT // columns, one, across, one, columns // across], axis=1),
        "k": np.stack([_EXTENT // depth, depth // inner, inner], axis=1),
    }
    return Tilings(axes, factors)


def read_cache(path: Path) -> tuple[str, Times]:
    """The GPU of a cache file, and the times."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    times = {
        tuple(int(entry[name]) for name in PARAMETERS): entry["time"]
        for entry in content["cache"].values()
        if entry["SA"] and entry["SB"] and isinstance(entry["time"], float)
    }
    if content["device_name"] not in GPUS_OF_CACHES:
        sys.exit(f"{path}: nothing is known of {content['device_name']}; known are {', '.join(GPUS_OF_CACHES)}")
    return content["device_name"], times


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=200, help="random draws (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
