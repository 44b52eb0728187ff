"""Imports, tunes, verifies and times the models of the two papers on Droplet Search, each beside its peers.

    papers.py [--models resnet18,vgg16] [--time 60] [--rounds 15] [--against openvino] [--show] [--fresh]

They are all 20 of the DPAnsor paper (its Figures 10, 14 and 17) and all six of the Droplet Search paper (its Figure 9);
three are in both, so there are 23. torchvision and transformers define them, with seeded weights; batch norms have the
statistics of an image. All have batch 1 and float32. What the papers leave open, and what we take:

- "squeezenet" (DPAnsor) is version 1.1: Figure 17 counts 23 layers, and its 18 distinct convolutions, three poolings,
  mean and softmax are as many (version 1.0 has 22 convolutions). "shufflenet" is the ONNX model zoo's of that name,
  version 1, because the paper took its models there. It comes with the `onnx` package.
- "mobilenet" (Droplet Search, Howard et al. 2017) is MobileNet v1 with ReLUs, as TVM's own that the paper's artifact
  tunes.
- "mxnet" (Droplet Search) is a ResNet-50 v1 with a softmax. The paper cites the library of that name. TVM's tutorials,
  which the artifact follows, have two models under the name: ResNet-18 v1 and ResNet-50 v1. Figure 9 counts 20 kernels,
  and the distinct convolutions of ResNet-50 v1 are 20 (those of ResNet-18 v1 are 11).
- BERT-base has 128 tokens.

The figures of a model are: seconds of its import, seconds and trials of its tuning, its error against NumPy in float64
or against onnxruntime, its latency and the times of the peers over it (interleaved rounds), its kernels, those among
them that are not tuned, and the parts that onnxruntime runs. TensorFlow reads no ONNX model of today; where Keras has
the same network, that takes turns with ours in rounds of its own.

Every model runs in a process of its own. Each is one line of benchmarks/recorded/paper_models.jsonl as soon as it is
done, and is not done again on the same CPU with the same budget unless `--fresh` asks for it. `--show` prints what is
kept as Markdown. 23 models take about 70 minutes with 60 s of tuning each. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, RECORDED, Campaign, add_to_import_path, campaign_parser, chosen, in_child, machine, markdown
from _graphs import graph, onnx_of
from _keras_networks import contenders as keras_contenders
from _race import artifacts, race
from _ratios import best_peer
from _torch_modules import made

import stormdrop as sd
from stormdrop.bench.peers import MODEL_PEERS
from stormdrop.bench.plan import OURS
from stormdrop.errors import StormdropError
from stormdrop.model.inputs.samples import random_feeds
from stormdrop.tuning.duration import seconds_of

LIMIT = 1800.0  # seconds that one model may take besides its tuning
_FOLDER = OUT / "papers"


@dataclass(frozen=True)
class PaperModel:
    """A model of the papers.

    Attributes:
        source: What defines it: its name in `_torch_modules.made`, or after "graph:" that in `_graphs.graph`.
        papers: What each paper calls it.
    """

    source: str
    papers: Mapping[str, str]


_DROPLET, _DPANSOR = "Droplet Search", "DPAnsor"


def _of_dpansor(source: str, name: str | None = None) -> PaperModel:
    return PaperModel(source, {_DPANSOR: name or source})


def _of_both(source: str, droplet: str) -> PaperModel:
    return PaperModel(source, {_DROPLET: droplet, _DPANSOR: source})


MODELS = {
    "alexnet": _of_dpansor("alexnet"),
    "vgg11": _of_dpansor("vgg11"),
    "resnet18": _of_both("resnet18", "resnet-18"),
    "resnet34": _of_dpansor("resnet34"),
    "vgg13": _of_dpansor("vgg13"),
    "vgg16": _of_both("vgg16", "vgg-16"),
    "vgg19": _of_dpansor("vgg19"),
    "shufflenet": _of_dpansor("graph:shufflenet", "shufflenet"),
    "squeezenet": _of_dpansor("squeezenet1_1", "squeezenet"),
    "resnet101": _of_dpansor("resnet101"),
    "resnet152": _of_dpansor("resnet152"),
    "resnet50": _of_dpansor("resnet50"),
    "mobilenet_v2": _of_dpansor("mobilenet_v2"),
    "mnasnet1_0": _of_dpansor("mnasnet1_0"),
    "inception_v3": _of_both("inception_v3", "inception_v3"),
    "googlenet": _of_dpansor("googlenet"),
    "densenet121": _of_dpansor("densenet121"),
    "densenet161": _of_dpansor("densenet161"),
    "densenet169": _of_dpansor("densenet169"),
    "densenet201": _of_dpansor("densenet201"),
    "mobilenet_v1": PaperModel("mobilenet_v1", {_DROPLET: "mobilenet"}),
    "resnet50_v1": PaperModel("resnet50_v1", {_DROPLET: "mxnet"}),
    "bert_base": PaperModel("graph:bert_base", {_DROPLET: "bert"}),
}
"""By our name, in the order of the DPAnsor paper's Figure 17, which sorts by the number of kernels."""


def exported(name: str, path: Path) -> None:
    """Writes one of `MODELS` as an ONNX file, in a process that ends before the model is tuned: torch keeps memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(_export, MODELS[name].source, path).result()


def _export(source: str, path: Path) -> None:
    kind, _, given = source.partition(":")
    if kind == "graph":
        onnx.save(graph(given), path)
        return
    module, arguments, _ = made(source)
    onnx.save(onnx_of(module, arguments), path)


def measure(name: str, seconds: float, rounds: int, against: Sequence[str], seed: int) -> dict[str, Any]:
    """Tunes and times one model in this process; returns its figures."""
    folder = _FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    source, artifact = folder / "model.onnx", folder / OURS
    exported(name, source)
    with sd.open_store(f"sqlite:///{folder / 'records.sqlite'}") as store:
        tuned = sd.tune_model(source, time=seconds, seed=seed, out=artifact, store=store, fresh=True)
        if tuned.interrupted:
            sys.exit(130)
        bench = sd.bench(artifact, against, rounds=rounds, store=store).to_json()
    del bench["what"]  # a path of this machine
    for contender in bench["contenders"]:
        del contender["samples"]
    document = tuned.to_json()
    return {
        "import": document["phases"]["import"],
        "tuning": document["seconds"],
        "trials": document["trials"],
        "failed_trials": document["failed"],
        "error": document["verified"]["max_error"],
        "verified_against": document["verified"]["against"],
        "untuned": document["untuned"],
        "kernels": len(document["tasks"]),
        "calls": sum(task["weight"] for task in document["tasks"]),
        "plain": document["fallbacks"],
        "elsewhere": [part["operators"] for part in document["foreign"]],
        "bench": bench,
        "keras": beside_keras(name, folder, rounds, seed),
    }


def beside_keras(name: str, folder: Path, rounds: int, seed: int) -> dict[str, Any] | None:
    """The race of our model and the same network of Keras; None if Keras does not have it, or without TensorFlow."""
    theirs = keras_contenders(name)
    if not theirs:
        return None
    add_to_import_path(Path(__file__).parent)
    feeds = random_feeds(sd.load(folder / OURS).inputs, seed)
    raced = race([*artifacts(folder, [OURS], feeds), *theirs], OURS, rounds)
    return raced if any(spec.name in raced for spec in theirs) else None


def one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A model in this process; what went wrong is the entry "failed"."""
    begin = time.perf_counter()
    entry: dict[str, Any]
    try:
        entry = measure(name, options.time, options.rounds, options.against, options.seed)
    except StormdropError as error:
        entry = {"failed": str(error)}
    except Exception as error:  # noqa: BLE001  whatever torch or a peer raises is an entry of the table
        entry = {"failed": f"TRACEBACK {type(error).__name__}: {error}", "trace": traceback.format_exc()[-3000:]}
    return {**entry, "seconds": time.perf_counter() - begin}


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """The entries as a table in Markdown: a row per model, the latest entry of each."""
    headings = [
        "model",
        "import",
        "tuning",
        "kernels",
        "elsewhere",
        "error",
        "latency",
        "best peer over ours",
        "others",
    ]
    latest = {entry["model"]: entry for entry in entries}
    rows = [_row(name, latest[name]) for name in MODELS if name in latest]
    return markdown(headings, rows)


def _row(name: str, entry: Mapping[str, Any]) -> list[str]:
    if "failed" in entry:
        return [name, "failed: " + entry["failed"].replace("|", "/")[:160], *[""] * 7]
    bench, best = entry["bench"], best_peer(entry)
    others = [f"{peer['name']} {peer['ratio']:.2f}" for peer in bench["contenders"][1:] if peer is not best]
    others += [f"{peer} does not run it" for peer in bench["skipped"]]
    wrong = [peer for peer in bench["contenders"] if not peer["agrees"]]
    others += [f"{peer['name']} differs by {peer['max_error']:.0e}" for peer in wrong]
    for network, figures in (entry["keras"] or {}).items():
        if network not in ("disturbed", OURS):
            others.append(f"{network} (Keras' own) {1 / figures['speed']:.2f}")
    if disturbed := bench["disturbed"] + (entry["keras"] or {}).get("disturbed", 0):
        others.append(f"{disturbed} rounds disturbed")
    plain = f", {len(entry['plain'])} plain" if entry["plain"] else ""
    versus = "no peer"
    if best is not None:
        low, high = best["ratio_interval"]
        versus = f"{best['name']} {best['ratio']:.3f} ({low:.3f} to {high:.3f})"
    return [
        name,
        f"{entry['import']:.1f} s",
        f"{entry['tuning']:.0f} s, {entry['trials']} trials",
        f"{entry['kernels']} in {entry['calls']} calls{plain}",
        "; ".join(", ".join(part) for part in entry["elsewhere"]) or "nothing",
        f"{entry['error']:.1e}",
        f"{1e3 * bench['contenders'][0]['seconds']:.2f} ms",
        versus,
        ", ".join(others),
    ]


def main() -> None:
    options = _options()
    if options.one:
        print(json.dumps(one(options.one, options)))
        return
    host = None if options.show else machine()
    campaign = Campaign(RECORDED / "paper_models.jsonl", host, options, several=True)

    def work(name: str) -> dict[str, Any]:
        given = [f"--time={options.time}", f"--rounds={options.rounds}", f"--seed={options.seed}"]
        arguments = ["--one", name, *given, f"--against={','.join(options.against)}"]
        return {"rounds": options.rounds, **in_child(__file__, arguments, LIMIT + options.time)}

    entries = campaign.collect(options.models, work, {"time": options.time}, key="model")
    print(table(list(entries.values())))


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas (%(default)s)")
    parser.add_argument("--time", default="60", help="the tuning of each model, such as 60s (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds with the peers (%(default)s)")
    parser.add_argument("--against", default=",".join(MODEL_PEERS), help="peers, separated by commas (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    parser.add_argument("--one", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.time = seconds_of(options.time)
    options.models = chosen(options.models, MODELS, "model")
    options.against = chosen(options.against, MODEL_PEERS, "peer")
    return options


if __name__ == "__main__":
    main()
