"""Models as services: throughput and percentiles with several calls at a time beside onnxruntime; what batches gain.

    services.py [--models squeezenet,resnet50] [--time 120] [--for 30] [--calls 1,2,4] [--clients 1,4,8,16]
                [--show] [--fresh]

Each model is tuned, and called for `--for` seconds with each number of calls at a time, in turns with onnxruntime, in
both of its forms. Then `examples/serving/drive.py` asks for single rows of a network of three dense layers ("dense",
29 million weights), and of MobileNetV2 if torch and torchvision are installed, one by one and in batches of up to 8
rows. Every step is saved in benchmarks/out/services.jsonl as soon as it is done, and is not done again unless `--fresh`
asks for it. The whole takes half an hour. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2] / "examples" / "serving"))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _graphs import ZOO, graph, open_graph

import stormdrop as sd
from stormdrop.bench.service import Load
from stormdrop.cli.output import table
from stormdrop.cli.services import print_services

_NAME = "services"
_FOLDER = OUT / _NAME
_ROWS = (1, 2, 4, 8)
_BATCHED = ("dense", "mobilenet_v2")


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", host, options)
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}")
    names = [*options.models, *(name for name in _BATCHED if name == "dense" or find_spec("torchvision"))]
    setting = {"time": options.time, "for": options.seconds, "calls": options.calls}
    for name in names if not options.show else ():
        entry = campaign.known({"name": name}, setting) or {"name": name, **setting}
        for step, work in steps(name, options):
            if step not in entry:
                print(f"{name}: {step}", file=sys.stderr)
                entry = campaign.keep({**entry, step: work()})
    show(campaign.saved(names))


def steps(name: str, options: argparse.Namespace) -> list[tuple[str, Callable[[], Any]]]:
    """The steps of one model, by the name under which the result of each is saved."""
    tuning = ("tuned", partial(tuned, name, options))
    if name in options.models:
        return [tuning, ("served", partial(served, name, options))]
    return [tuning, *((f"{clients} clients", partial(driven, name, clients, options)) for clients in options.clients)]


def tuned(name: str, options: argparse.Namespace) -> Any:
    """Tunes the model, for all numbers of rows if requests are to be batched."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    source = _FOLDER / f"{name}.onnx"
    shapes: dict[str, tuple[Any, ...]] | None = None
    if name in options.models:
        onnx.save(graph(name), source)
    elif name == "dense":
        onnx.save(dense(), source)
        shapes = {"x": (_ROWS, 1024)}
    else:
        onnx.save(open_graph(name), source)
        shapes = {"image": (_ROWS, 3, 224, 224)}
    with sd.open_store(str(OUT / f"{_NAME}.db")) as store:
        time = options.time * (len(_ROWS) if shapes else 1)
        result = sd.tune_model(source, shapes=shapes, time=time, store=store, out=_FOLDER / f"{name}.sd")
    return result.to_json()["latency"]


def dense() -> onnx.ModelProto:
    """Three dense layers, 1024 to 4096 to 4096 to 2048, with an open number of rows."""
    rng, sizes = np.random.default_rng(0), (1024, 4096, 4096, 2048)
    nodes, weights = [], []
    for layer in range(3):
        weight = rng.normal(size=sizes[layer : layer + 2]) / np.sqrt(sizes[layer])
        weights.append(numpy_helper.from_array(weight.astype("float32"), f"w{layer}"))
        nodes.append(
            helper.make_node(
                "MatMul", [f"r{layer}" if layer else "x", f"w{layer}"], [f"m{layer}" if layer < 2 else "y"]
            )
        )
        if layer < 2:
            nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer + 1}"]))
    info = helper.make_tensor_value_info
    inputs, outputs = info("x", TensorProto.FLOAT, ("N", 1024)), info("y", TensorProto.FLOAT, ("N", 2048))
    body = helper.make_graph(nodes, "dense", [inputs], [outputs], weights)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def served(name: str, options: argparse.Namespace) -> Any:
    """How the model serves beside onnxruntime."""
    load = Load(options.seconds, tuple(options.calls))
    return sd.bench(_FOLDER / f"{name}.sd", ["onnxruntime"], load=load).to_json()


def driven(name: str, clients: int, options: argparse.Namespace) -> Any:
    """What batches gain for so many clients."""
    drive = importlib.import_module("drive")  # of examples/serving, which is no package
    return asyncio.run(drive.driven(sd.load(_FOLDER / f"{name}.sd"), clients, options.seconds, 2e-3))


def show(entries: Mapping[str, Any]) -> None:
    """Prints what is kept."""
    for name, entry in entries.items():
        if "served" in entry:
            print(f"\n{name}")
            rows = [(each["name"], service) for each in entry["served"]["contenders"] for service in each["services"]]
            print_services(rows, entry["served"]["load"]["disturbed"])
    gains = [
        [
            name,
            str(each["clients"]),
            f"{each['ways']['one by one']['per_second']:.1f}",
            f"{each['ways']['in batches']['per_second']:.1f}",
            "{:.2f} ({:.2f} to {:.2f})".format(*each["gain"]),
        ]
        for name, entry in entries.items()
        for step, each in entry.items()
        if step.endswith(" clients")
    ]
    table(["model", "clients", "one by one, answers/s", "in batches, answers/s", "gain"], gains)


def _options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default="squeezenet,resnet50", help=f"some of {', '.join(ZOO)}")
    parser.add_argument("--time", type=float, default=120.0, help="seconds of a tuning, for each size")
    parser.add_argument("--for", dest="seconds", type=float, default=30.0, help="seconds of each contender and number")
    parser.add_argument("--calls", type=numbers, default=[1, 2, 4], help="numbers of calls at a time")
    parser.add_argument("--clients", type=numbers, default=[1, 4, 8, 16], help="numbers of clients that are batched")
    options = parser.parse_args()
    options.models = chosen(options.models, ZOO, "model")
    return options


if __name__ == "__main__":
    main()
