"""The 17 x 17 planes of the Droplet Search paper: is there a way from the canonical kernel to the best of the plane?

    planes.py [--target cuda] [--minutes 9] [--planes mm2d_ijk,conv3_ij] [--show] [--fresh]

Section 4.1 and Figure 10: a matrix product (mm2d) and a convolution (conv3), whose two innermost loops are tiled with
0, 8, 16, ..., 128. `_plain_loops.py` says what of them is the paper's and what is ours. The paper has six machines and
shows nine planes; here there are three planes of a CPU, and two of a GPU, whose tiles are thread blocks. A plane is
measured twice, every point in each of two random orders; then `slices.py`, which explains the columns, descends from
every point.

Every measurement is kept in benchmarks/out/plane_NAME_1.ledger.jsonl and _2 as soon as it is known, and a run that was
ended goes on from there; `--minutes` ends it. On a CPU the kernels run on one core, up to a second each. Run it on an
idle machine. `--target opencl` is a dry run where there is no GPU, with PoCL.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "searches"))

import _plain_loops
from _common import OUT, Campaign, add_to_import_path, campaign_parser, chosen, described, machine
from _slices import Slice, add_target, target_here
from record_space import record
from slices import draw, measure, show

from stormdrop.compare import recordings
from stormdrop.ir.workload import Workload
from stormdrop.machine.contract import CPU, Machine
from stormdrop.sketches.fingerprint import space_of
from stormdrop.sketches.template import Template
from stormdrop.space import Space

PLANES: Mapping[str, tuple[Callable[[], Workload], Template]] = {
    "mm2d_ijk": (_plain_loops.mm2d, _plain_loops.ijk),
    "mm2d_ikj": (_plain_loops.mm2d, _plain_loops.ikj),
    "conv3_ij": (_plain_loops.conv3, _plain_loops.ij),
    "mm2d_blocks": (_plain_loops.mm2d, _plain_loops.blocks),
    "conv3_blocks": (_plain_loops.conv3, _plain_loops.blocks),
}
"""By name: the kernel, and its loops. Those with thread blocks are for GPUs, the others for CPUs."""

_NAME = "planes"


def main() -> None:
    options = _options()
    if options.show:
        present(Campaign(OUT / f"{_NAME}.jsonl", None, options, document="kernels").saved(options.planes))
        return
    target = target_here(options.target)
    campaign = Campaign(OUT / f"{_NAME}.jsonl", machine(target), options, several=True, document="kernels")
    add_to_import_path(Path(__file__).parent)  # the workers import the templates

    def setting(name: str) -> dict[str, Any]:
        kernel, loops = PLANES[name]
        return {"sketches": {loops.name: _space(kernel(), loops, target).fingerprint}}

    def work(name: str) -> dict[str, Any]:
        kernel, loops = PLANES[name]
        return measured(name, kernel(), loops, target, fresh=options.fresh, before_batch=slice_.check)

    with Slice(options.minutes) as slice_:
        present(campaign.collect(options.planes, work, setting))


def present(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints where the planes were measured, and what they show, and draws them."""
    print("; ".join(dict.fromkeys(described(entry["machine"]) for entry in entries.values())))
    show(entries)
    print(draw(entries, _NAME))


def measured(
    name: str, workload: Workload, loops: Template, target: Machine, folder: Path = OUT, **how: Any
) -> dict[str, Any]:
    """Measures a plane twice, as far as that is not done, and describes it as `slices.measure` does.

    Args:
        name: The name of the plane.
        workload: The kernel.
        loops: Its loops.
        target: What it is measured on.
        folder: Where its measurements are kept.
        how: `fresh` and `before_batch` of `record_space.record`.
    """
    space = _space(workload, loops, target)
    device = "" if target.device == CPU else f"_{target.device}"
    files = [folder / f"plane_{name}{device}_{number}.jsonl.gz" for number in (1, 2)]
    for seed, file in enumerate(files):
        ledger = file.with_name(file.name.replace(".jsonl.gz", ".ledger.jsonl"))
        record(workload, target, [(loops, space)], ledger, file, seed=seed, **how)
    knobs = [knob.name for knob in space.knobs]
    return measure([recordings.load(file) for file in files], knobs, {})


def _space(workload: Workload, loops: Template, target: Machine) -> Space:
    space = space_of(loops, workload, target)
    if space is None:
        raise ValueError(f"{loops.name} does not take {workload.name}")
    return space


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    add_target(parser)
    parser.add_argument("--planes", help="planes, separated by commas (all of the target)")
    options = parser.parse_args()
    on_gpu = options.target.partition("/")[0] != CPU
    fitting = [name for name, (_, loops) in PLANES.items() if (loops == _plain_loops.blocks) == on_gpu]
    planes = list(PLANES) if options.show else fitting
    options.planes = chosen(options.planes or ",".join(planes), planes, "plane")
    return options


if __name__ == "__main__":
    main()
