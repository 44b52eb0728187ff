"""Several sizes in one artifact: MobileNetV2 at batch 1, 4 and 8, and BERT-base at 32, 128 and 384 tokens.

    sizes.py [--models mobilenet_v2] [--time 300] [--rounds 31] [--show] [--fresh]

Each model is tuned once for its three sizes together, in three times the time, and once for each size alone, all from
nothing. Each size is also compiled alone with the records of the joint tuning. At each size the three artifacts are
timed in turns: "all" has the three sizes, "alone" was tuned for this size only, and "same" has this size only, with
schedules of the joint tuning. What "all" costs beside "same" is the dispatch, apart from schedules that the choice
inside the model has replaced.

The sizes on disk and the times of the tunings are reported, too. Every step is saved in benchmarks/out/sizes.jsonl
as soon as it is done, and is not done again unless `--fresh` asks for it. The whole takes an hour and a half. Run it on
an idle machine. It needs torch, torchvision and transformers, which make the models.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _graphs import open_graph
from _race import artifacts, race

import stormdrop as sd
from stormdrop.cli.output import interval, seconds, size, table
from stormdrop.model.inputs.samples import sample_feeds

_NAME = "sizes"
_FOLDER = OUT / _NAME

Shapes = Mapping[str, tuple[Any, ...]]

SIZES: dict[str, tuple[tuple[int, ...], Callable[[Any], Shapes]]] = {
    "mobilenet_v2": ((1, 4, 8), lambda batch: {"image": (batch, 3, 224, 224)}),
    "bert_base": ((32, 128, 384), lambda tokens: {"ids": (1, tokens), "mask": (1, tokens)}),
}
"""The sizes of each model, and the shapes of its inputs at one size or at all of them."""


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", host, options, document="models")
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}")
    setting = {"time": options.time, "rounds": options.rounds}
    for name in options.models if not options.show else ():
        entry = campaign.known({"name": name}, setting) or {"name": name, **setting}
        for step, work in steps(name, options):
            if step not in entry:
                print(f"{name}: {step}", file=sys.stderr)
                entry = campaign.keep({**entry, step: work()})
    show(campaign.saved(options.models))


def steps(name: str, options: argparse.Namespace) -> list[tuple[str, Callable[[], Any]]]:
    """The steps of one model, by the name under which the result of each is saved."""
    sizes, shapes = SIZES[name]
    folder = _FOLDER / name
    work: list[tuple[str, Callable[[], Any]]]
    work = [("source", lambda: export(name, folder)), ("all", lambda: tuned(folder, "all", shapes(sizes), 3, options))]
    for one in sizes:
        work.append((f"alone {one}", partial(tuned, folder, f"alone-{one}", shapes(one), 1, options)))
        work.append((f"same {one}", partial(compiled, folder, one, shapes(one), options)))
        work.append((f"times {one}", partial(timed, folder, one, shapes(one), options)))
    return work


def export(name: str, folder: Path) -> str:
    """Makes the model with open dimensions."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(open_graph(name), folder / "model.onnx")
    return f"{name} with open dimensions"


def tuned(folder: Path, label: str, shapes: Shapes, times: int, options: argparse.Namespace) -> dict[str, Any]:
    """Tunes the model from nothing: its document, and the bytes of its artifact."""
    artifact, records = folder / f"{label}.sd", folder / f"{label}.sqlite"
    with sd.open_store(f"sqlite:///{records}") as store:
        result = sd.tune_model(
            folder / "model.onnx",
            shapes=shapes,
            time=times * options.time,
            seed=options.seed,
            out=artifact,
            store=store,
            fresh=True,
        )
    return {"tuned": result.to_json(), "bytes": disk_bytes(artifact)}


def compiled(folder: Path, one: int, shapes: Shapes, options: argparse.Namespace) -> dict[str, Any]:
    """Compiles one size with the records of the joint tuning."""
    artifact = folder / f"same-{one}.sd"
    with sd.open_store(f"sqlite:///{folder / 'all.sqlite'}") as store:
        sd.compile_model(folder / "model.onnx", shapes=shapes, seed=options.seed, out=artifact, store=store)
    return {"bytes": disk_bytes(artifact)}


def timed(folder: Path, one: int, shapes: Shapes, options: argparse.Namespace) -> dict[str, Any]:
    """Times the three artifacts at one size, in turns."""
    feeds = sample_feeds(sd.load(folder / "all.sd").metadata.at(shapes), options.seed)
    names = [f"alone-{one}.sd", f"same-{one}.sd", "all.sd"]
    return race(artifacts(folder, names, feeds), names[0], options.rounds)


def disk_bytes(artifact: Path) -> int:
    """The bytes of all files of an artifact."""
    return sum(file.stat().st_size for file in artifact.iterdir())


def show(entries: Mapping[str, Any]) -> None:
    """Prints what is known of each model."""
    for name, entry in entries.items():
        rows = []
        for one in SIZES[name][0]:
            times, alone = entry.get(f"times {one}"), entry.get(f"alone {one}")
            if times is None:
                continue
            both = times["all.sd"], times[f"same-{one}.sd"]
            rows.append(
                [
                    str(one),
                    seconds(times[f"alone-{one}.sd"]["seconds"]),
                    *(text for each in both for text in (seconds(each["seconds"]), _speed(each))),
                    size(alone["bytes"]),
                    f"{alone['tuned']['seconds']:.0f} s",
                ]
            )
        headings = ["size", "alone", "all", "speed of all", "same", "speed of same", "alone on disk", "alone tuned in"]
        table(headings, rows, name)
        if "all" in entry:
            together = entry["all"]
            shares = ", ".join(f"{each['tuning_share'] or 0:.0%}" for each in together["tuned"]["sizes"])
            print(
                f"all sizes: {size(together['bytes'])} on disk, tuned in {together['tuned']['seconds']:.0f} s "
                f"(shares of the sizes: {shares})\n"
            )


def _speed(entry: Mapping[str, Any]) -> str:
    return f"{entry['speed']:.3f} ({interval(entry['speed_interval'], 'ratio')})"


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(SIZES), help="models, separated by commas (%(default)s)")
    parser.add_argument("--time", type=float, default=300.0, help="seconds of tuning for each size")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.models = chosen(options.models, SIZES, "model")
    return options


if __name__ == "__main__":
    main()
