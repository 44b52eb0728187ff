"""What it costs to deploy a model beside onnxruntime and OpenVINO: disk, seconds until the first answer, memory.

    python benchmarks/models/deployment.py                        # four models, tuned in 120 s each
    python benchmarks/models/deployment.py --models silero --time 0 --repetitions 2
    python benchmarks/models/deployment.py --show                 # also writes benchmarks/out/deployment.md

Each way to deploy has a virtual environment of its own in benchmarks/out/deployment, made by venv and pip, with nothing
in it but NumPy, the one package and what it needs. It stays there until `--fresh`; packages of this repository are
installed again for each run. "MB" counts all files in site-packages, with the bytecode that pip compiles, but NumPy's.

The model is tuned (`--time 0`: compiled with default schedules), and saved as bitcode and natively. The peers get it
with its sizes fixed, and also take part in the form with which they start fastest: onnxruntime with a graph that was
optimised ahead, whose packed weights are mapped; OpenVINO with a cache that is warm.

In each repetition every way starts one process, in turns. Files are in the page cache. A repetition that other load
disturbed is measured again, at most as often as there are repetitions. Shown are medians, two with 95% intervals:

    answer   from before the process is forked until the outputs of the first call are there
    beyond   that, without the time that it takes to read the ONNX file, which is the same for all
    load     importing the runtime, and loading the model
    first    the first call
    call     the median call of one second, with a thread for each core
    PSS      memory in which a page that several processes map counts once, and RSS, after these calls
    4 PSS    the sum of PSS of four such processes of one model

Outputs that differ from those of onnxruntime are an error: that way has no figures. What is done stands in
`recorded/deployment.jsonl`, and a second run goes on.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import _graphs
import wild
from _common import OUT, RECORDED, Campaign, campaign_parser, chosen, machine, markdown, versions

import stormdrop as sd
from stormdrop.bench.plan import with_sizes
from stormdrop.bench.result import TOLERANCE, TOLERANCE_OF_ROUNDING
from stormdrop.cli.output import table
from stormdrop.errors import MeasureError
from stormdrop.ir.relative_error import relative_error
from stormdrop.machine.sharing.foreign_load import LoadThresholds, read_counters
from stormdrop.machine.sharing.lock import MachineLock
from stormdrop.model.inputs.samples import sample_feeds
from stormdrop.model.onnx.rewrites.qdq import rounds_to_bytes
from stormdrop.statistics import median_interval

MODELS = {"resnet50": "", "mobilenet_v3": "", "minilm": "minilm-bytes", "silero": "silero-16k"}
"""The models, and the names of those that `wild` has."""

PROCESSES = 4
SECONDS = 1.0  # of calls in each process
LIMIT = 120.0  # seconds until a process has called its model
_ROOT = Path(__file__).parents[2]
_FOLDER = OUT / "deployment"
_ENVIRONMENTS = _FOLDER / "environments"
_WORKER = Path(__file__).with_name("deployment_worker.py")


@dataclass(frozen=True)
class Way:
    """A way to deploy a model.

    Attributes:
        name: Its name in the tables.
        environment: The distribution that is installed for it.
        package: The package that its process imports.
        file: The model's file or folder that it loads.
    """

    name: str
    environment: str
    package: str
    file: str


WAYS = (
    Way("stormdrop-runtime", "stormdrop-runtime", "stormdrop_runtime", "native.sd"),
    Way("stormdrop native", "stormdrop", "stormdrop", "native.sd"),
    Way("stormdrop bitcode", "stormdrop", "stormdrop", "bitcode.sd"),
    Way("onnxruntime", "onnxruntime", "onnxruntime", "model.onnx"),
    Way("onnxruntime ahead", "onnxruntime", "onnxruntime", "ahead.onnx"),
    Way("OpenVINO", "openvino", "openvino", "model.onnx"),
    Way("OpenVINO cached", "openvino", "openvino", "model.xml"),
)


@dataclass(frozen=True)
class Deployed:
    """A model that is ready to be deployed in all ways.

    Attributes:
        folder: Where its files are.
        inputs: The file of each input, by name.
        tolerance: The relative error up to which outputs agree.
        threads: The threads of a call.
    """

    folder: Path
    inputs: Mapping[str, Path]
    tolerance: float
    threads: int


def main() -> None:
    options = _options()
    if options.fresh and not options.show:
        shutil.rmtree(_ENVIRONMENTS, ignore_errors=True)
    host = machine()
    campaign = Campaign(RECORDED / "deployment.jsonl", host, options, several=True)
    setting = {"time": options.time, "repetitions": options.repetitions}
    entries = campaign.collect(options.models, lambda name: measure(name, options), setting)
    show(campaign, entries)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Deploys a model in all ways; returns its entry."""
    installed = {way.environment: weigh(way.environment) for way in WAYS}
    model = prepare(name, options.time)
    return {"installed": installed, **in_turns(model, WAYS, options.repetitions)}


def in_turns(model: Deployed, ways: Sequence[Way], repetitions: int) -> dict[str, Any]:
    """Starts a process of each way in each repetition; what they say, and their memory."""
    failed = rehearse(model, ways)
    running = [way for way in ways if way.name not in failed]
    samples: dict[str, dict[str, list[float]]] = {way.name: defaultdict(list) for way in running}
    reading: list[float] = []
    disturbed, retries = 0, repetitions
    with closing(MachineLock()) as lock:
        while len(reading) < repetitions:
            first = len(reading) % max(1, len(running))
            with lock.exclusive():
                seconds, measured, suspect = _repetition(model, [*running[first:], *running[:first]])
            if suspect and retries:
                retries -= 1
                continue
            disturbed += suspect
            reading.append(seconds)
            for name, sample in measured.items():
                for what, value in sample.items():
                    samples[name][what].append(value)
    return {
        "bytes": (model.folder / "model.onnx").stat().st_size,
        "reading": reading,
        "ways": samples,
        "together": {way.name: memory_of_several(way, model) for way in running},
        "failed": failed,
        "disturbed": disturbed,
    }


def _repetition(model: Deployed, ways: Sequence[Way]) -> tuple[float, dict[str, dict[str, float]], bool]:
    """The seconds of reading the weights, what each way's process says, and whether something else used the cores."""
    begin, before = time.perf_counter(), _cpu_of_others()
    reading = _seconds_to_read(model.folder / "model.onnx")
    measured = {}
    for way in ways:
        with Process(way, model, SECONDS) as process:
            measured[way.name] = {**process.report(), **process.memory()}
    taken, wall = _cpu_of_others() - before, time.perf_counter() - begin
    return reading, measured, taken > LoadThresholds().foreign_cores * wall


def _cpu_of_others() -> float:
    """CPU seconds that neither this process nor those that it has started have used, on the cores of this process."""
    counters, own = read_counters(), os.times()
    ours = own.user + own.system + own.children_user + own.children_system
    return (counters.busy or 0.0) + (counters.stolen or 0.0) - ours


def rehearse(model: Deployed, ways: Sequence[Way]) -> dict[str, str]:
    """Starts each way once, which also warms the caches; why ways do not run or are wrong, by name."""
    failed: dict[str, str] = {}
    right: list[Any] = []
    for way in sorted(ways, key=lambda each: each.package != "onnxruntime"):  # which says what is right
        try:
            with Process(way, model, 0.0) as process:
                process.report()
                outputs = process.outputs()
        except MeasureError as error:
            failed[way.name] = str(error)
            continue
        right = right or outputs
        if (difference := _error(outputs, right)) > model.tolerance:
            failed[way.name] = f"its outputs differ by {difference:.1e}"
    return failed


def memory_of_several(way: Way, model: Deployed) -> float:
    """The sum of the proportional set sizes of some processes of one model, in bytes."""
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(way, model, 0.0)) for _ in range(PROCESSES)]
        for process in processes:
            process.report()
        return sum(process.memory()["PSS"] for process in processes)


class Process:
    """A process that deploys a model in one way. It ends with the `with` statement."""

    def __init__(self, way: Way, model: Deployed, seconds: float) -> None:
        self._outputs = tempfile.TemporaryDirectory()
        what = [way.package, model.folder / way.file, model.threads, seconds, self._outputs.name]
        arguments = [*map(str, what), *(f"{name}={path}" for name, path in model.inputs.items())]
        command = [str(python_of(way.environment)), "-I", str(_WORKER)]  # -I: PYTHONPATH would hide what is installed
        started = str(time.monotonic())
        self._process = subprocess.Popen(
            [*command, started, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def report(self) -> dict[str, float]:
        """The seconds that it has measured. Raises `MeasureError` if it does not say them."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        if not ready:
            raise MeasureError(f"takes more than {LIMIT:.0f} s")
        if line := self._process.stdout.readline():
            return dict(json.loads(line))
        _, errors = self._process.communicate()
        raise MeasureError((errors.strip().splitlines() or ["it says nothing"])[-1])

    def outputs(self) -> list[Any]:
        """The outputs of its first call."""
        return [np.load(path) for path in sorted(Path(self._outputs.name).iterdir(), key=lambda path: int(path.stem))]

    def memory(self) -> dict[str, float]:
        """Its bytes."""
        found = psutil.Process(self._process.pid).memory_full_info()
        return {"PSS": found.pss, "RSS": found.rss}

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._outputs.cleanup()


def prepare(name: str, seconds: float) -> Deployed:
    """Makes a model, tunes it, and writes the files of all ways."""
    folder = _FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source, shapes = _source(name, folder)
    given: dict[str, Any] = {"shapes": shapes, "out": folder / "bitcode.sd", "fresh": True}
    with sd.open_store(f"sqlite:///{folder / 'records.sqlite'}") as store:
        if seconds:
            model = sd.tune_model(source, time=seconds, store=store, **given).model
        else:
            model = sd.compile_model(source, store=store, **given)
    model.save(folder / "native.sd", native=True)
    fixed = folder / "model.onnx"
    fixed.write_bytes(with_sizes(source, model.metadata, model.metadata.provenance))
    threads = sd.Cpu.detect().cores
    optimise_ahead(fixed, threads)
    _convert(fixed)
    tolerance = TOLERANCE_OF_ROUNDING if rounds_to_bytes(onnx.load(fixed)) else TOLERANCE
    return Deployed(folder, write_inputs(folder, sample_feeds(model.metadata)), tolerance, threads)


def _source(name: str, folder: Path) -> tuple[Path, Mapping[str, tuple[int, ...]]]:
    """The ONNX file of a model, and the sizes that it leaves open."""
    if MODELS[name]:
        model = wild.MODELS[MODELS[name]]
        return wild.fetch(model), model.shapes
    path = folder / "source.onnx"
    onnx.save(_graphs.graph(name), path)
    return path, {}


def write_inputs(folder: Path, feeds: Mapping[str, Any]) -> dict[str, Path]:
    """Writes the inputs of a call; the files by name."""
    paths = {name: folder / f"input{index}.npy" for index, name in enumerate(feeds)}
    for name, path in paths.items():
        np.save(path, feeds[name])
    return paths


def optimise_ahead(model: Path, threads: int) -> None:
    """Writes "ahead.onnx" beside a model: as onnxruntime optimises it, with weights as its kernels read them.

    Loading a ResNet-50 from it took a fifth of the time that it took from onnxruntime's own format (".ort").
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.optimized_model_filepath = str(model.with_name("ahead.onnx"))
    for key, value in {
        "optimized_model_external_initializers_file_name": "ahead.bin",
        "optimized_model_external_initializers_min_size_in_bytes": "1024",
        "save_external_prepacked_constant_initializers": "1",
    }.items():
        options.add_session_config_entry(f"session.{key}", value)
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _convert(model: Path) -> None:
    """Writes a model in OpenVINO's format, from which its cache is found faster."""
    import openvino

    openvino.save_model(openvino.Core().read_model(model), model.with_suffix(".xml"), compress_to_fp16=False)


def _seconds_to_read(path: Path) -> float:
    begin = time.perf_counter()
    path.read_bytes()
    return time.perf_counter() - begin


def _error(outputs: Sequence[Any], right: Sequence[Any]) -> float:
    """The largest relative error; infinite if the numbers of outputs differ."""
    if len(outputs) != len(right):
        return float("inf")
    return max(relative_error(value, wanted) for value, wanted in zip(outputs, right, strict=True))


@functools.cache
def python_of(environment: str) -> Path:
    """The interpreter of the environment of a distribution, which is made if it is not there."""
    folder = _ENVIRONMENTS / environment
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    ours = {"stormdrop-runtime": _ROOT / "runtime", "stormdrop": _ROOT}
    if environment in ours:
        subprocess.run([*pip, str(ours[environment])], check=True)
        subprocess.run([*pip, "--force-reinstall", "--no-deps", str(ours[environment])], check=True)
    else:
        subprocess.run([*pip, "numpy", f"{environment}=={versions()[environment]}"], check=True)
    return python


@functools.cache
def weigh(environment: str) -> dict[str, Any]:
    """The bytes and files of an environment and of the NumPy in it, and its packages."""
    (site,) = python_of(environment).parents[1].glob("lib/python*/site-packages")
    files = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    numpy = {path: size for path, size in files.items() if path.relative_to(site).parts[0].startswith("numpy")}
    return {
        "bytes": sum(files.values()) - sum(numpy.values()),
        "files": len(files) - len(numpy),
        "numpy": sum(numpy.values()),
        "packages": {each.name: each.version for each in metadata.distributions(path=[str(site)])},
    }


_WEIGHT = ["", "MB", "files", "NumPy MB", "packages"]
_TIMES = ["answer", "beyond", "load", "first", "call"]
_MEMORY = ["PSS", "RSS", f"{PROCESSES} PSS"]


def show(campaign: Campaign, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what was measured in 80 columns, and writes one table of it in Markdown."""
    *_, latest = entries.values()
    weights = [_weight_row(name, weight) for name, weight in latest["installed"].items()]
    campaign.table(_WEIGHT, weights, "installed beside NumPy")
    rows = []
    for name, entry in entries.items():
        cells = {way: [*_times(entry, way), *_memory(entry, way)] for way in entry["ways"]}
        rows += [[name, way, *row] for way, row in cells.items()]
        print(f"\n{name} (ms): {_setting(entry)}\n{_start(entry)}")
        table(["", *_TIMES], [[way, *row[: len(_TIMES)]] for way, row in cells.items()])
        for way, why in entry["failed"].items():
            print(f"{way}: {why}")
    print("\nmemory (MB): " + ", ".join(_MEMORY))
    ways = dict.fromkeys(way for entry in entries.values() for way in entry["ways"])
    memory = [
        [way, *(" ".join(_memory(entry, way)) if way in entry["ways"] else "" for entry in entries.values())]
        for way in ways
    ]
    table(["", *entries], memory)
    headings = ["model", "", *(f"{each} (ms)" for each in _TIMES), *(f"{each} (MB)" for each in _MEMORY)]
    notes = [f"- {name}: {_setting(entry)}; {_start(entry)}" for name, entry in entries.items()]
    notes += [f"- {name}, {way}: {why}" for name, entry in entries.items() for way, why in entry["failed"].items()]
    document = "\n\n".join([markdown(_WEIGHT, weights), markdown(headings, rows), "\n".join(notes)])
    (OUT / "deployment.md").write_text(f"{document}\n")


def _weight_row(name: str, weight: Mapping[str, Any]) -> list[str]:
    mega = [_mega(weight[part]) for part in ("bytes", "numpy")]
    return [name, mega[0], str(weight["files"]), mega[1], str(len(weight["packages"]))]


def _setting(entry: Mapping[str, Any]) -> str:
    """How a model was measured."""
    tuned = f"tuned in {entry['time']:.0f} s" if entry["time"] else "default schedules"
    load = f" ({entry['disturbed']} disturbed)" if entry["disturbed"] else ""
    read = f"{_mega(entry['bytes'])} MB read in {_milli(entry['reading'])} ms"
    return f"{tuned}, {entry['repetitions']} runs{load}, {read}"


def _start(entry: Mapping[str, Any]) -> str:
    """How long the interpreter and NumPy take, which all processes begin with."""
    pairs = (zip(samples["python"], samples["numpy"], strict=True) for samples in entry["ways"].values())
    return f"of an answer {_milli(map(sum, itertools.chain(*pairs)))} ms are Python's and NumPy's"


def _times(entry: Mapping[str, Any], way: str) -> list[str]:
    samples = entry["ways"][way]
    beyond = [statistics.median(samples["answer"]) - statistics.median(entry["reading"])]
    load = [sum(pair) for pair in zip(samples["import"], samples["load"], strict=True)]
    return [
        _with_interval(samples["answer"]),
        _milli(beyond),
        _milli(load),
        _milli(samples["first"]),
        _with_interval(samples["call"]),
    ]


def _memory(entry: Mapping[str, Any], way: str) -> list[str]:
    samples = entry["ways"][way]
    return [_mega(statistics.median(samples[part])) for part in ("PSS", "RSS")] + [_mega(entry["together"][way])]


def _with_interval(samples: Sequence[float]) -> str:
    found = median_interval(samples)
    return f"{_figure(1e3 * found.estimate)} ({_figure(1e3 * found.low)}-{_figure(1e3 * found.high)})"


def _milli(samples: Iterable[float]) -> str:
    return _figure(1e3 * statistics.median(samples))


def _mega(count: float) -> str:
    return _figure(count / 1e6)


def _figure(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas (%(default)s)")
    parser.add_argument("--time", type=float, default=120.0, help="seconds of tuning per model (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=7, help="processes of each way, at least 2 (%(default)s)")
    options = parser.parse_args()
    if options.repetitions < 2:
        parser.error("an interval needs 2 repetitions")
    options.models = chosen(options.models, MODELS, "model")
    return options


if __name__ == "__main__":
    main()
