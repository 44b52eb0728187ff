"""Tunes fourteen models from nothing, or others, and times each beside all its peers, in interleaved rounds.

    run.py [--models resnet50,squeezenet] [--time 600] [--rounds 15] [--against openvino] [--precision bf16]
           [--show] [--fresh]

The figures of a model are: the seconds and candidates of its tuning; its latency beside the peers; its error against
onnxruntime, before the softmax if there is one at the end; the share of time outside of kernels; the share of time
that the machine's limits explain, with every kernel at its roofline (at most all of its time, because arrays may stay
in caches); and what the times of its tuned kernels add up to, over its latency. With `--precision bf16` or `auto` the
error is that against float32 on random inputs, with the top-1 agreement, and OpenVINO and torch compute in bfloat16,
too.

Every model is saved in benchmarks/out/models.jsonl (models_bf16.jsonl, models_auto.jsonl) as soon as it is done, with
its profile and its curve, and is not done again with the same options unless `--fresh` asks for it. `--show` prints and
draws what is saved. Artifacts and records are saved in a folder of the same name.

Without `--models` it takes the fourteen. `--models` may also name newer ones: efficientnet_b0, mobilenet_v3,
convnext_tiny, swin_tiny, distilbert, whisper_tiny.

With ten minutes of tuning for each, all fourteen models take up to three hours. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from _common import OUT, Campaign, bars, campaign_parser, chosen, machine
from _graphs import NAMES, NEWER, graph
from _ratios import best_peer, predicted_seconds, summary

import stormdrop as sd
from stand_ins.verifying import verify
from stormdrop.bench.peers import MODEL_PEERS
from stormdrop.cli.output import table
from stormdrop.errors import StormdropError
from stormdrop.machine.limits.peak import peak
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.model.profile import profile
from stormdrop.report.kernels import place_in_roofline
from stormdrop.tuning.options import FLOAT32, PRECISIONS

LOWEST = 0.97
_NAME = "models"


def main() -> None:
    options = _options()
    host = machine()
    saved = _NAME if options.precision == FLOAT32 else f"{_NAME}_{options.precision}"
    campaign = Campaign(OUT / f"{saved}.jsonl", host, options, retries=True, document="models")
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}")

    def work(name: str) -> dict[str, Any]:
        try:
            return measure(name, options, OUT / saved / name)
        except StormdropError as error:
            return {"failed": str(error)}

    setting = {part: getattr(options, part) for part in ("time", "against", "search", "seed")}
    entries = campaign.collect(options.models, work, setting)
    show(entries)
    if good := {name: entry for name, entry in entries.items() if "failed" not in entry}:
        print(draw(good, f"time over ours, {options.precision}, batch 1, on {host['cpu']}", saved))
    sys.exit(any("failed" in entry for entry in entries.values()))


def measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tunes and times one model; returns its entry. Its artifact and its records stay in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = graph(name)
    source, artifact = folder / "model.onnx", folder / "model.sd"
    onnx.save(model, source)
    with sd.open_store(f"sqlite:///{folder / 'records.sqlite'}") as store:
        tuned = sd.tune_model(
            source,
            time=options.time,
            seed=options.seed,
            search=options.search,
            precision=options.precision,
            out=artifact,
            store=store,
            fresh=True,
        )
        bench = sd.bench(artifact, options.against, rounds=options.rounds, store=store)
        logits = without_softmax(model)
        error = tuned.verified.max_error
        if tuned.precision is not None:
            error = tuned.precision.accuracy.error
        elif logits is not None:
            short = sd.tune_model(logits, trials=1, seed=options.seed, search=options.search, store=store).model
            error = max(error, verify(short, logits, options.seed).max_error)
    inside = profile(tuned.model, random_feeds(tuned.model.inputs, options.seed))
    limits: Any = asdict(peak(tuned.target))
    explained = 0.0
    for kernel in inside.kernels:
        if kernel.work is not None:
            place = place_in_roofline(kernel.work.flops, kernel.work.bytes, kernel.seconds / kernel.calls, limits)
            explained += kernel.seconds * min(place.fraction, 1.0)
    return {
        "tuned": tuned.to_json(),
        "error": error,
        "bench": bench.to_json(),
        "profile": {**inside.to_json(), "limits": limits},
        "roofline": explained / inside.seconds,
    }


def without_softmax(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model without the softmax at its end; None if it has none."""
    (output,) = list(model.graph.output)[:1]
    last = next(node for node in model.graph.node if output.name in node.output)
    if last.op_type != "Softmax":
        return None
    short = onnx.ModelProto()
    short.CopyFrom(model)
    short.graph.node.remove(next(node for node in short.graph.node if output.name in node.output))
    del short.graph.output[:]
    short.graph.output.append(onnx.helper.make_tensor_value_info(last.input[0], onnx.TensorProto.FLOAT, None))
    return short


def show(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per model, and the mean."""
    rows = []
    for name, entry in entries.items():
        if "failed" in entry:
            rows.append([name, "failed: " + entry["failed"], *[""] * 10])
            continue
        tuned, ours, best = entry["tuned"], entry["bench"]["contenders"][0], best_peer(entry)
        low, high = best["ratio_interval"] if best else (math.nan, math.nan)
        others = [
            f"{peer['name']} {peer['ratio']:.2f}" for peer in entry["bench"]["contenders"][1:] if peer is not best
        ]
        outside = entry["profile"]["outside"] / entry["profile"]["seconds"]
        predicted = predicted_seconds(tuned)
        rows.append(
            [
                name,
                f"{1e3 * ours['seconds']:.2f} ms",
                f"{best['name']} {best['ratio']:.3f} ({low:.3f} to {high:.3f})" if best else "no peer",
                ", ".join(others + [f"{peer} {why[:40]}" for peer, why in entry["bench"]["skipped"].items()]),
                f"{tuned['seconds']:.0f} s, {tuned['trials']} trials",
                f"{1e3 * tuned['untuned']['seconds']:.2f} ms" if tuned["untuned"] else "no time for it",
                _error(entry),
                f"{outside:.1%}",
                f"{entry['roofline']:.0%}",
                f"{predicted / tuned['latency']['seconds']:.1%}" if predicted else "kernels untuned",
                str(len(tuned["fallbacks"])),
                f"{entry['bench']['disturbed']} of {entry['bench']['runs']}",
            ]
        )
    table(
        [
            "",
            "ours",
            "best peer over ours",
            "others",
            "tuning",
            "untuned",
            "error",
            "outside",
            "roofline",
            "predicted",
            "fallbacks",
            "disturbed",
        ],
        rows,
    )
    totals = summary(entries, LOWEST)
    if totals["geometric_mean"]:
        print(f"\n{totals['models']} models, geometric mean {totals['geometric_mean']:.3f}; ", end="")
        print(f"below {LOWEST}: {', '.join(totals['below']) or 'none'}")


def _error(entry: Mapping[str, Any]) -> str:
    """The error of a model, with its top-1 agreement with float32 if it is in another precision."""
    precision = entry["tuned"].get("precision")
    agreement = None if precision is None else precision["agreement"]
    return f"{entry['error']:.1e}" + ("" if agreement is None else f", top-1 {agreement:.0%}")


def draw(entries: Mapping[str, Mapping[str, Any]], title: str, saved: str) -> Path:
    """Draws bars of the time of every peer over ours."""
    names: Sequence[str] = [name for name in MODEL_PEERS if any(_ratio(entry, name) for entry in entries.values())]
    series = {name: [_ratio(entry, name) or math.nan for entry in entries.values()] for name in names}
    return bars(saved, title, "their time / ours", list(entries), series)


def _ratio(entry: Mapping[str, Any], peer: str) -> float | None:
    return next((contender["ratio"] for contender in entry["bench"]["contenders"] if contender["name"] == peer), None)


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(NAMES), help="models, separated by commas (%(default)s)")
    parser.add_argument("--time", type=float, default=600.0, help="seconds of tuning per model (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds with the peers (%(default)s)")
    parser.add_argument("--against", default=",".join(MODEL_PEERS), help="peers, separated by commas (%(default)s)")
    parser.add_argument("--search", default="storm", help="the search to tune with (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default=FLOAT32, help="what models compute in (%(default)s)")
    options = parser.parse_args()
    options.models = chosen(options.models, (*NAMES, *NEWER), "model")
    options.against = options.against.split(",")
    return options


if __name__ == "__main__":
    main()
