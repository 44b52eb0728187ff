"""Which models of torchvision and transformers can be compiled, and by which way.

    python benchmarks/models/torch_models.py                      # compiles all: default schedules, nothing measured
    python benchmarks/models/torch_models.py --time 60s           # tunes each for 60 s
    python benchmarks/models/torch_models.py --models resnet50,bert --ways compile

The ways are

- `compile`: `torch.compile(module, backend="stormdrop")`, then a call under `torch.no_grad()`
- `module`: `sd.compile_model(module, example_inputs=...)`, or `sd.tune_model`
- `onnx`: `torch.onnx.export(module, ..., dynamo=True)`, and the ONNX model

Each model is made with seeded weights, and batch norms with the statistics of an image, in a process of its own. The
models of transformers have fewer layers than the published ones, so that all fit into the memory of a small machine;
their layers are the real ones. What is done is kept in `benchmarks/recorded/torch_models.jsonl`, and a second run goes
on from there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import RECORDED, Campaign, campaign_parser, in_child, versions
from _torch_modules import NAMES, made

from stormdrop import Cpu

WAYS = ("compile", "module", "onnx")
LIMIT = 600.0  # seconds that one model may take besides its tuning
WRONG = 1e-2  # a larger error than this, relative to the largest output, is no rounding, if a peer has a smaller one


def by_compile(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What `torch.compile` brings: how many graphs, which of them run eagerly, and the error against eager torch."""
    import torch
    from torch.utils._pytree import tree_leaves

    from stormdrop.integrations import torch_compile

    torch.set_grad_enabled(False)
    module, arguments, named = made(name)
    right = tree_leaves(module(*arguments, **named))
    graphs: list[Any] = []

    def backend(graph: Any, example_inputs: Any) -> Any:
        graphs.append(torch_compile.stormdrop(graph, example_inputs, options=options))
        return graphs[-1]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = tree_leaves(torch.compile(module, backend=backend)(*arguments, **named))
    eager = [str(each.message) for each in caught if "runs eagerly" in str(each.message)]
    pairs = [(a, b) for a, b in zip(ours, right, strict=True) if isinstance(a, torch.Tensor)]
    error = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-9)) for a, b in pairs)
    compiled = [each for graph in graphs for each in graph._compiled.values() if each is not None]
    foreign = [str(part) for each in compiled for part in each._model.metadata.foreign]
    return {"graphs": len(graphs), "eager": eager, "error": error, "elsewhere": foreign}


def by_module(name: str, options: dict[str, Any]) -> dict[str, Any]:
    module, arguments, named = made(name)
    return _report(module, options, {**named} or arguments)


def by_onnx(name: str, options: dict[str, Any]) -> dict[str, Any]:
    import torch

    module, arguments, named = made(name)
    program = torch.onnx.export(module, arguments, kwargs=named, dynamo=True, verbose=False)
    return _report(program.model_proto, options, None)


def _report(model: Any, options: dict[str, Any], example_inputs: Any) -> dict[str, Any]:
    from stormdrop.model.tuning.tune import tune_model_with
    from stormdrop.model.untuned import compile_model_with
    from stormdrop.tuning.options import TuneOptions

    make = tune_model_with if options else compile_model_with
    result = make(model, None, TuneOptions.of(**options), example_inputs=example_inputs)
    document = result.to_json()
    foreign = [str(part) for part in getattr(result.model.metadata, "foreign", ())]
    return {
        "kernels": len(result.tasks),
        "error": document["verified"]["max_error"],
        "against": document["verified"]["against"],
        "plain": document["fallbacks"],
        "elsewhere": foreign,
        "phases": document["phases"],
        "latency": document.get("latency"),
    }


def one(name: str, way: str, seconds: float) -> dict[str, Any]:
    """A model by one way, in this process; what went wrong is the entry "failed"."""
    from stormdrop.errors import StormdropError

    begin = time.perf_counter()
    options = {"time": seconds} if seconds else {}
    try:
        entry = {"compile": by_compile, "module": by_module, "onnx": by_onnx}[way](name, options)
    except StormdropError as error:
        entry = {"failed": str(error)}
    except Exception as error:  # noqa: BLE001  whatever torch or transformers raise is an entry of the table
        entry = {"failed": f"TRACEBACK {type(error).__name__}: {error}", "trace": traceback.format_exc()[-3000:]}
    return {"model": name, "way": way, "time": seconds, **entry, "seconds": time.perf_counter() - begin}


def _outcome(entry: dict[str, Any]) -> str:
    if "failed" in entry:
        return "failed"
    # On inputs of a million different sizes some of these networks have no digit that float32 keeps.
    theirs = re.search(r"\(error of .*: (.*)\)", entry.get("against", ""))
    if not entry["error"] <= max(WRONG, float(theirs[1]) if theirs else 0.0):
        return "wrong"
    return "eager" if entry.get("eager") else "ok"


def _line(entry: dict[str, Any]) -> str:
    if "failed" in entry:
        what = f"FAILED {entry['failed'][:160]}"
    else:
        notes = [f"error {entry['error']:.1e}"]
        notes += (
            [f"{entry['graphs']} graphs, {len(entry['eager'])} eager: {entry['eager']}"] if "graphs" in entry else []
        )
        notes += [f"{entry['kernels']} kernels"] if "kernels" in entry else []
        notes += [f"plain: {', '.join(entry['plain'])}"] if entry.get("plain") else []
        notes += [f"elsewhere: {', '.join(entry['elsewhere'])}"] if entry.get("elsewhere") else []
        what = "; ".join(notes)
    return f"{entry['model']:20} {entry['way']:8} {entry.get('seconds', 0):6.1f} s  {what}"


def main() -> None:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--time", default="0", help="budget of each tuning, such as 60s; 0 compiles only")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    from stormdrop.tuning.duration import seconds_of

    seconds = 0.0 if given.time in ("0", "0.0") else float(seconds_of(given.time) or 0.0)
    if given.one:
        name, way = given.one
        print(json.dumps(one(name, way, seconds)))
        return
    target = Cpu.detect()
    host = {"cpu": target.cpu, "cores": target.cores, "versions": versions()}
    campaign = Campaign(RECORDED / "torch_models.jsonl", host, given, several=True)
    outcomes: Counter[tuple[str, str]] = Counter()
    for name in given.models.split(","):
        for way in given.ways.split(","):
            key = {"model": name, "way": way, "time": seconds}
            arguments = ["--one", name, way, "--time", str(seconds)]
            if given.show:
                entry = campaign.latest(key)
            else:
                entry = campaign.once(key, partial(in_child, __file__, arguments, LIMIT + seconds))
            if entry is None:
                continue
            outcomes[way, _outcome(entry)] += 1
            print(_line(entry), flush=True)
    print(", ".join(f"{way} {outcome}: {count}" for (way, outcome), count in sorted(outcomes.items())))


if __name__ == "__main__":
    main()
