"""What a model loses in bfloat16: its error, and how often the largest output is another one.

    accuracy.py [--models resnet50,bert_base] [--bounds 1e-2,1e-3,1e-4] [--show] [--fresh]

Each model is compiled with its default schedules in float32, in bfloat16 (`precision="bf16"`), and with as many of its
layers in bfloat16 as each bound allows (`precision="auto"`). Nothing is tuned: a schedule does not change what is
rounded. The error of float32 is that against float64, as verified. The others are the medians over 32 random inputs of
max|difference| / max|float32| of the model in float32, as onnxruntime computes it. Latencies are of the default
schedules, in turns with that of float32; they say something of bfloat16 on machines with a unit for it only.

Each model is one line of benchmarks/recorded/accuracy.jsonl as soon as it is done, and is not done again on the same
CPU with the same bounds. `--show` prints what is kept as Markdown. A model takes about a minute. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import RECORDED, Campaign, campaign_parser, chosen, machine, markdown
from _graphs import NAMES, NEWER, graph

from stormdrop.errors import StormdropError
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.tuning.result import CompileResult
from stormdrop.model.untuned import compile_model_with
from stormdrop.tuning.options import AUTO, FLOAT32, TuneOptions

_BF16 = "bf16"
_ROUNDS = 9


def main() -> None:
    options = _options()
    host = None if options.show else machine()
    campaign = Campaign(RECORDED / "accuracy.jsonl", host, options, several=True)
    if host is not None:
        setting = {"cpu": host["cpu"], "bounds": options.bounds}
        campaign.collect(options.models, lambda name: measure(name, options.bounds), setting, key="model")
    entries = [entry for entry in campaign.entries if entry["model"] in options.models]
    print(table([entry for entry in entries if entry["bounds"] == options.bounds], options.bounds))


def measure(name: str, bounds: Sequence[float]) -> dict[str, Any]:
    """Compiles a model in each precision; returns what each costs, or what went wrong as "failed"."""
    source = graph(name)
    try:
        plain = compile_model_with(source, None, TuneOptions(fresh=True, precision=FLOAT32))
        wanted = [TuneOptions(fresh=True, precision=_BF16)]
        wanted += [TuneOptions(fresh=True, precision=AUTO, max_error=bound) for bound in bounds]
        return {
            "error": plain.verified.max_error,
            "lowered": [_lowered(compile_model_with(source, None, options), options, plain) for options in wanted],
        }
    except StormdropError as error:
        return {"failed": str(error)}


def _lowered(result: CompileResult, options: TuneOptions, plain: CompileResult) -> dict[str, Any]:
    assert result.precision is not None
    ours, others = _times([result.model, plain.model])
    return {
        "precision": options.precision,
        "bound": options.max_error,
        **result.precision.to_json(),
        "seconds": statistics.median(ours),
        "float32_seconds": statistics.median(others),
    }


def _times(models: Sequence[CompiledModel]) -> list[list[float]]:
    """The seconds of a call of each model, in turns, after a call that does not count."""
    feeds = list(random_feeds(models[0].inputs, 0).values())
    times: list[list[float]] = [[] for _ in models]
    for number in range(_ROUNDS + 1):
        for own, model in zip(times, models, strict=True):
            begin = time.perf_counter()
            model(*feeds)
            if number:
                own.append(time.perf_counter() - begin)
    return times


def table(entries: Sequence[Mapping[str, Any]], bounds: Sequence[float]) -> str:
    """The entries as a table in Markdown: a row per model, and a column for each bound."""
    names = [_BF16, *(f"auto, {bound:.0e}" for bound in bounds)]
    headings = ["model", "CPU", "error in float32", *(f"{name}: layers, error, top-1" for name in names)]
    return markdown(headings, map(_row, entries))


def _row(entry: Mapping[str, Any]) -> list[str]:
    if "failed" in entry:
        return [entry["model"], entry["cpu"], "failed: " + entry["failed"].replace("|", "/")[:160]]
    cells = []
    for each in entry["lowered"]:
        agreement = "" if each["agreement"] is None else f", {each['agreement']:.0%}"
        ratio = each["seconds"] / each["float32_seconds"]
        cells.append(f"{each['bfloat16']} of {each['layers']}, {each['error']:.1e}{agreement}, {ratio:.2f} of the time")
    return [entry["model"], entry["cpu"], f"{entry['error']:.1e}", *cells]


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(NAMES), help="models, separated by commas (%(default)s)")
    parser.add_argument("--bounds", default="1e-2,1e-3,1e-4", help="errors that auto may make (%(default)s)")
    options = parser.parse_args()
    options.models = chosen(options.models, (*NAMES, *NEWER), "model")
    try:
        options.bounds = [float(bound) for bound in options.bounds.split(",")]
    except ValueError:
        sys.exit(f"--bounds {options.bounds}: give numbers, separated by commas, such as 1e-2,1e-3")
    return options


if __name__ == "__main__":
    main()
