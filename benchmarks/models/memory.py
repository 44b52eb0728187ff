"""Memory and time of importing, compiling, verifying and saving large decoders, phase by phase.

    memory.py [--sizes 0.4,1.6,3.3] [--label NAME] [--source FOLDER] [--folder FOLDER] [--show]
              [--fresh]

The models are decoders as GPT-2 is one, with seeded weights in a file of their own. Each is compiled with the default
schedules in a process of its own, which tells in which phase it is. Meanwhile the memory of this process and its
children is sampled:

    all       the proportional set size (PSS): a page that several processes map counts once
    held      that part of it which the system cannot take back: without pages of files, but with files in memory

CPU seconds are those of all cores. Those of the child that imports stand under `all`: it ends between two phases.
What is done stands in benchmarks/out/memory.jsonl, and a second run goes on. `--source` compiles with another version
of stormdrop, `--label` names its entries. A run is ended if less than 3 GB of memory are left.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, versions

from stormdrop import Cpu

SIZES = {"0.1": (256, 6), "0.4": (512, 16), "0.8": (768, 16), "1.6": (1024, 24), "3.3": (1536, 24)}
"""Width and layers, by about how many GB the weights take."""

VOCABULARY, LENGTH, HEAD = 50257, 64, 64
_INTERVAL = 0.05  # seconds between samples
_LEFT = 3e9  # bytes of memory that a run leaves to others


def main() -> None:
    options = _options()
    if options.one:
        _compile(Path(options.one), Path(options.folder) / "out.sd")
        return
    target = Cpu.detect()
    host = {"cpu": target.cpu, "cores": target.cores, "memory": psutil.virtual_memory().total, "versions": versions()}
    campaign = Campaign(OUT / "memory.jsonl", host, options, document="models")
    sizes = {f"{size} {options.label}".strip(): size for size in options.sizes}

    def work(key: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            model = decoder(Path(folder), *SIZES[sizes[key]])
            weights = sum(file.stat().st_size for file in model.parent.iterdir())
            return {"weights": weights, **_measured(model, Path(folder), options.source)}

    for key, entry in campaign.collect(sizes, work).items():
        _print(key, entry)


def decoder(folder: Path, width: int, layers: int, vocabulary: int = VOCABULARY, seed: int = 0) -> Path:
    """Writes a decoder with seeded weights, which stand in another file.

    Args:
        folder: where to write it.
        width: the features of a word, a multiple of 64.
        layers: how many layers it has.
        vocabulary: how many words it knows.
        seed: the seed of the weights.

    Returns:
        The path of the ONNX file.
    """
    with (folder / "decoder.bin").open("wb") as data:
        made = _Decoder(data, width, vocabulary, np.random.default_rng(seed))
        model = made.model(layers)
    path = folder / "decoder.onnx"
    path.write_bytes(model.SerializeToString())
    return path


class _Decoder:
    def __init__(self, data: Any, width: int, vocabulary: int, rng: np.random.Generator) -> None:
        self._data, self._width, self._vocabulary, self._rng = data, width, vocabulary, rng
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []

    def model(self, layers: int) -> onnx.ModelProto:
        width, heads = self._width, self._width // HEAD
        mask = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)
        for name, value in {
            "mask": mask,
            "split": np.array([0, 0, heads, HEAD]),
            "merge": np.array([0, 0, width]),
            "scale": np.float32(HEAD**-0.5),
            "half": np.float32(0.5),
            "one": np.float32(1.0),
            "three": np.float32(3.0),
            "cubed": np.float32(0.044715),
            "root": np.float32((2 / np.pi) ** 0.5),
        }.items():
            self._weights.append(numpy_helper.from_array(np.asarray(value), name))
        words = self._op("Gather", self._weight("words", self._vocabulary, width), "ids")
        x = self._op("Add", words, self._weight("positions", LENGTH, width))
        for layer in range(layers):
            x = self._op("Add", x, self._attention(self._norm(x, f"{layer}.norm1"), f"{layer}"))
            hidden = self._gelu(self._linear(self._norm(x, f"{layer}.norm2"), f"{layer}.wide", width, 4 * width))
            x = self._op("Add", x, self._linear(hidden, f"{layer}.narrow", 4 * width, width))
        self._nodes.append(
            helper.make_node("MatMul", [self._norm(x, "norm"), self._weight("head", width, self._vocabulary)], ["y"])
        )
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, (1, LENGTH))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, LENGTH, self._vocabulary))],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _attention(self, x: str, name: str) -> str:
        q, k, v = (
            self._op("Transpose", self._op("Reshape", self._linear(x, f"{name}.{part}"), "split"), perm=[0, 2, 1, 3])
            for part in "qkv"
        )
        scores = self._op("Mul", self._op("MatMul", q, self._op("Transpose", k, perm=[0, 1, 3, 2])), "scale")
        shares = self._op("Softmax", self._op("Add", scores, "mask"), axis=-1)
        read = self._op("Transpose", self._op("MatMul", shares, v), perm=[0, 2, 1, 3])
        return self._linear(self._op("Reshape", read, "merge"), f"{name}.o")

    def _gelu(self, x: str) -> str:
        inner = self._op("Add", x, self._op("Mul", self._op("Pow", x, "three"), "cubed"))
        curve = self._op("Add", self._op("Tanh", self._op("Mul", inner, "root")), "one")
        return self._op("Mul", self._op("Mul", x, "half"), curve)

    def _linear(self, x: str, name: str, rows: int | None = None, columns: int | None = None) -> str:
        rows, columns = rows or self._width, columns or self._width
        return self._op(
            "Add", self._op("MatMul", x, self._weight(name, rows, columns)), self._weight(f"{name}.bias", columns)
        )

    def _norm(self, x: str, name: str) -> str:
        scale = self._weight(f"{name}.scale", self._width, around=1.0)
        return self._op("LayerNormalization", x, scale, self._weight(f"{name}.bias", self._width), axis=-1)

    def _op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def _weight(self, name: str, *shape: int, around: float = 0.0) -> str:
        """Adds a weight, whose numbers go to the file."""
        value = self._rng.standard_normal(shape, np.float32) * np.float32(0.02) + np.float32(around)
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        where = {"location": Path(self._data.name).name, "offset": self._data.tell(), "length": value.nbytes}
        for key, entry in where.items():
            tensor.external_data.add(key=key, value=str(entry))
        self._data.write(value.data)
        self._weights.append(tensor)
        return name


def _measured(model: Path, folder: Path, source: str | None) -> dict[str, Any]:
    """Compiles a model in a process of its own: the seconds of each phase, and the most memory in it."""
    command = [sys.executable, __file__, "--one", str(model), "--folder", str(folder)]
    environment = {**os.environ, **({} if source is None else {"PYTHONPATH": source})}
    ran = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    samples: list[tuple[float, dict[str, float]]] = []
    done = threading.Event()
    sampler = threading.Thread(target=_sample, args=(psutil.Process(ran.pid), samples, done))
    sampler.start()
    output, errors = ran.communicate()
    done.set()
    sampler.join()
    changes = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    phases: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (name, begin, used), (_, end, used_then) in itertools.pairwise(changes):
        phases[name]["seconds"] += end - begin
        phases[name]["cpu"] += used_then - used
        for at, values in samples:
            if begin <= at < end:
                for key, value in values.items():
                    phases[name][key] = max(phases[name][key], value)
    result: dict[str, Any] = {
        "seconds": changes[-1][1] - changes[0][1],
        "cpu": changes[-1][2] - changes[0][2],
        "peak": {key: max(values[key] for _, values in samples) for key in ("all", "held")},
        "phases": phases,
    }
    if ran.returncode:
        result["failed"] = (errors.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
    return result


def _sample(process: psutil.Process, samples: list[tuple[float, dict[str, float]]], done: threading.Event) -> None:
    while not done.wait(_INTERVAL):
        if psutil.virtual_memory().available < _LEFT:
            with contextlib.suppress(psutil.Error):
                process.kill()
        at, values, files = time.monotonic(), {"all": 0.0, "held": 0.0}, dict[int, int]()
        with contextlib.suppress(psutil.Error):
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(OSError):
                    lines = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
                    sizes = {
                        key: int(size) * 1024.0
                        for key, size in re.findall(r"^(Pss\w*):\s+(\d+) kB", lines, re.MULTILINE)
                    }
                    values["all"] += sizes["Pss"]
                    values["held"] += sizes["Pss"] - sizes["Pss_File"]
                    files |= _files_in_memory(each.pid)
        if values["all"]:
            values = {key: value + sum(files.values()) for key, value in values.items()}
            samples.append((at, values))


def _files_in_memory(pid: int) -> dict[int, int]:
    """The bytes of the files in memory that a process has open, which is no part of its PSS, by their inode."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if entry.readlink().as_posix().startswith("/memfd:"):
                state = entry.stat()
                found[state.st_ino] = state.st_blocks * 512
    return found


def _compile(model: Path, out: Path) -> None:
    """Compiles a model, and prints each change of the phase with its time: [phase, seconds, CPU seconds so far]."""
    from stormdrop.model import untuned
    from stormdrop.model.artifact import artifact
    from stormdrop.model.building import builder, saving
    from stormdrop.model.importer import isolated
    from stormdrop.tuning.options import TuneOptions

    stack = ["rest"]

    def say(name: str) -> None:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        print(json.dumps([name, time.monotonic(), sum(one.ru_utime + one.ru_stime for one in used)]), flush=True)

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        stack.append(name)
        say(name)
        try:
            yield
        finally:
            stack.pop()
            say(stack[-1])

    def watch(place: Any, function: str, name: str) -> None:
        usual: Callable[..., Any] = getattr(place, function)

        @functools.wraps(usual)
        def call(*arguments: Any, **named: Any) -> Any:
            with phase(name):
                return usual(*arguments, **named)

        setattr(place, function, call)

    for place, function, name in (
        (isolated.Importer, "load", "import, parent"),
        (isolated.Importer, "_answer", "import, child"),
        (untuned, "with_references", "references"),
        (untuned, "recorded_tasks", "schedules"),
        (builder.ModelBuilder, "build", "compilation"),
        (saving.Verifier, "__call__", "verification"),
        (artifact.CompiledModel, "write_files", "saving"),
        (artifact.CompiledModel, "reloaded", "loading"),
    ):
        watch(place, function, name)
    with phase("all"):
        untuned.compile_model_with(str(model), None, TuneOptions(fresh=True), out=out)
    shutil.rmtree(out)


def _print(key: str, entry: dict[str, Any]) -> None:
    from stormdrop.cli.output import table

    weights = entry["weights"]
    rows = [
        [
            name,
            f"{of['seconds']:.1f}",
            f"{of['cpu']:.1f}",
            *(f"{of.get(kind, 0) / weights:.2f}" for kind in ("all", "held")),
        ]
        for name, of in [*entry["phases"].items(), ("total", {**entry, **entry["peak"]})]
    ]
    table([f"{key}: {weights / 1e9:.2f} GB", "seconds", "CPU seconds", "all / weights", "held / weights"], rows)
    for kind, peak in entry["peak"].items():
        print(f"{kind}: {peak / 1e9:.2f} GB; 2.5 times the weights and 1 GB are {(2.5 * weights + 1e9) / 1e9:.2f} GB")
    if "failed" in entry:
        print(entry["failed"])


def _options() -> Any:
    parser = campaign_parser(__doc__)
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=["0.4", "1.6", "3.3"])
    parser.add_argument("--label", default="")
    parser.add_argument("--source", help="the folder src of another stormdrop")
    parser.add_argument("--folder", help="where the models are written for a while")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
