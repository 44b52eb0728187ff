"""What a call costs besides its kernels, and models below a millisecond beside onnxruntime and LiteRT.

    calls.py [--tables calls,models] [--source FOLDER] [--models alexa,lenet] [--time 30s] [--rounds 15]
             [--show] [--fresh]

"calls": chains of 20, 100 and 300 kernels, which no compiler fuses: "serial" ones on 4 x 8 elements, alternately a
product and a softmax, and "parallel" ones of products of 32 x 32 elements, each of which launches threads. A chain is
called from Python, by `stormdrop` and by `stormdrop.runtime`, and by `stormdrop_run` in a loop in C. With `--source`, a
checkout of an earlier version takes part, which compiles the chain itself (2fce3ad is the last one with TVM's virtual
machine). What the kernels take is a loop in C that calls the very kernels of the native model with their arguments and
does nothing else, in one thread, also for those that launch others. The rest is what a call costs besides them. Its
limit is that loop over as many empty kernels with the same arguments. As threads also make kernels faster, "launches"
is a call from C in which all threads are launched and do nothing.

"models": small trained models and three small networks with seeded weights, each tuned for `--time`. LiteRT reads files
that the publisher ships beside the ONNX files (openwakeword), or what litert-torch makes of an ONNX file: a package
that the script installs into an environment of its own, benchmarks/out/calls/litert, because of its pins. Models of
which it makes nothing, such as those with an LSTM, take part without it, and the table says why. The outputs of all are
compared. LiteRT's inputs and outputs stay in its own memory; ours and onnxruntime's are the caller's arrays.

Each contender has a process of its own, and all of one model take turns. Each model is saved in
benchmarks/out/calls.jsonl as soon as it is done, and is not done again unless `--fresh` asks for it. Run it on an idle
machine: with other load the differences of the first table drown.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser, chosen, machine
from _native_contenders import compile_loops
from _tflite import SMALL, litert_packages, small_network
from wild import MODELS as WILD
from wild import WildModel, fetch

import stormdrop as sd
from stormdrop.bench.contender import ContenderSpec, Unavailable
from stormdrop.bench.contender_process import ContenderProcess
from stormdrop.bench.peers import model_peers
from stormdrop.bench.plan import TuningOptions, plan_model
from stormdrop.bench.result import TOLERANCE
from stormdrop.bench.turns import silent, take_turns
from stormdrop.cli.output import table
from stormdrop.errors import MeasureError, StormdropError
from stormdrop.ir.relative_error import relative_error
from stormdrop.statistics import Interval, median_interval, ratio_interval
from stormdrop.tuning.duration import seconds_of
from stormdrop.tuning.options import FLOAT32

CHAINS = {f"{kind} {kernels}": (kernels, shape) for kind, shape in (("serial", (4, 8)), ("parallel", (32, 32)))
          for kernels in (20, 100, 300)}  # fmt: skip
"""The number of kernels, and the shape of what they pass on; products of the larger one are worth threads."""

BEFORE, PYTHON, RUNTIME, C = "before", "in process", "runtime", "C"
LAUNCHES, KERNELS, EMPTY = "launches", "kernels", "empty kernels"

_WAKE_WORDS = "openwakeword==0.5.1"


def _wake_words(name: str, shape: tuple[int, ...], what: str, key: str = "onnx::Flatten_0") -> WildModel:
    return WildModel(_WAKE_WORDS, f"openwakeword/resources/models/{name}.onnx", {key: shape}, what)


SHIPPED = {
    "mycroft": _wake_words("hey_mycroft_v0.1", (1, 16, 96), "one wake word"),
    "weather": _wake_words("weather_v0.1", (1, 22, 96), "whether somebody asks for the weather"),
    "alexa": _wake_words("alexa_v0.1", (1, 16, 96), "another wake word"),
    "timer": _wake_words("timer_v0.1", (1, 34, 96), "which timer somebody wants"),
    "jarvis": _wake_words("hey_jarvis_v0.1", (1, 16, 96), "a third wake word, by two networks", "x.1"),
    "spectrogram": _wake_words("melspectrogram", (1, 1760), "the spectrum of 110 ms of sound", "input"),
    "embedding": _wake_words("embedding_model", (1, 76, 32, 1), "what a spectrum sounds like", "input_1"),
}
"""Models that ship as ONNX and as .tflite. hey_rhasspy is left out: its two files compute different things."""

MODELS = [*SHIPPED, *SMALL, "silero-openvino", "magika", "captcha", "letters", "vowels", "ocr-angle"]

_NAME = "calls"
_FOLDER = OUT / _NAME
_OURS = "stormdrop.bench.peers.ours:TunedModel"
_HERE = "_native_contenders"


@dataclass(frozen=True)
class Entrant:
    """A contender, its number of threads, and a folder from which it imports before all others."""

    spec: ContenderSpec
    threads: int
    imports: Path | None = None


def main() -> None:
    options = _options()
    host = machine()
    campaign = Campaign(OUT / f"{_NAME}.jsonl", host, options, retries=True)
    print(f"{host['cpu']}, {host['cores']} cores, {host['versions']}")
    entries: dict[str, dict[str, Any]] = {}
    if "calls" in options.tables:
        setting = {"rounds": options.rounds, "before": options.source and _commit(options.source)}
        found = campaign.collect(CHAINS, lambda name: measure_calls(name, options, host["cores"]), setting)
        show_calls(found)
        entries |= found
    if "models" in options.tables:
        setting = {"rounds": options.rounds, "time": options.time, "seed": options.seed}
        found = campaign.collect(options.models, lambda name: measure_model(name, options, host["cores"]), setting)
        show_models(found)
        entries |= found
    sys.exit(any("failed" in entry for entry in entries.values()))


def measure_calls(name: str, options: argparse.Namespace, cores: int) -> dict[str, Any]:
    """Times the calls of a chain."""
    kernels, shape = CHAINS[name]
    parallel = name.startswith("parallel")
    folder = _emptied(name.replace(" ", "-"))
    source = folder / "chain.onnx"
    onnx.save(chain(kernels, shape, softmax=not parallel), source)
    try:
        model = sd.compile_model(source, fresh=True)
        steps = len(model.program.sizes[0].steps)
        if steps != kernels:
            raise MeasureError(f"the chain has {steps} steps, not {kernels}")
        ours = {"inputs": {"x": np.random.default_rng(0).standard_normal(shape, np.float32)}}
        native = ours | {"artifact": str(_native(model, folder))}
        in_c = native | {"loops": str(compile_loops(folder / "loops.so"))}
        entrants = [
            Entrant(ContenderSpec(KERNELS, f"{_HERE}:KernelsAlone", in_c | {"empty": False}), 1),
            Entrant(ContenderSpec(EMPTY, f"{_HERE}:KernelsAlone", in_c | {"empty": True}), 1),
        ]
        for threads in sorted({1, min(2, cores)}):
            specs = [
                ContenderSpec(PYTHON, _OURS, ours | {"artifact": str(folder / "model.sd")}),
                ContenderSpec(RUNTIME, f"{_HERE}:CalledFromPython", native),
                ContenderSpec(C, f"{_HERE}:CalledFromC", in_c | {"idle": False}),
            ]
            if parallel:
                specs.append(ContenderSpec(LAUNCHES, f"{_HERE}:CalledFromC", in_c | {"idle": True}))
            entrants += [Entrant(spec, threads) for spec in specs]
            if options.source:
                before = ContenderSpec(BEFORE, _OURS, ours | {"artifact": str(_compiled_by(options.source, source))})
                entrants.append(Entrant(before, threads, options.source / "src"))
        return timed(entrants, options.rounds)
    except (StormdropError, OSError, subprocess.CalledProcessError) as error:
        return {"failed": str(error)}


def chain(kernels: int, shape: tuple[int, int], softmax: bool) -> onnx.ModelProto:
    """A chain of so many kernels: products with an orthogonal matrix, every second a softmax if asked for."""
    matrix, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((shape[1], shape[1])))
    names = ["x", *(f"t{index}" for index in range(1, kernels)), "y"]
    nodes = [
        helper.make_node("Softmax", [names[index]], [names[index + 1]], axis=-1)
        if softmax and index % 2
        else helper.make_node("MatMul", [names[index], "w"], [names[index + 1]])
        for index in range(kernels)
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph(nodes, "chain", [x], [y], [numpy_helper.from_array(matrix.astype(np.float32), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def measure_model(name: str, options: argparse.Namespace, cores: int) -> dict[str, Any]:
    """Tunes a model, and times it beside its peers."""
    folder = _emptied(name)
    shapes: Mapping[str, Any] = {}
    try:
        if name in SMALL:
            source = folder / "model.onnx"
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                process.submit(_export, name, source).result()  # torch keeps memory
        else:
            model = (SHIPPED | WILD)[name]
            source, shapes = fetch(model), model.shapes
        with sd.open_store(f"sqlite:///{folder / 'records.sqlite'}") as store:
            tuned = sd.tune_model(
                source,
                time=options.time,
                seed=options.seed,
                shapes=shapes,
                out=folder / "model.sd",
                store=store,
                fresh=True,
            )
            native = _native(tuned.model, folder)
            tuning = TuningOptions(sd.Cpu.detect(), options.seed, store, None, silent, folder, None, FLOAT32)
            plan = plan_model(folder / "model.sd", ["onnxruntime", "litert"], tuning)
        ours, *peers = plan.contenders
        inputs = {"artifact": str(native), "inputs": ours.arguments["inputs"]}
        specs = [replace(ours, name=PYTHON), ContenderSpec(RUNTIME, f"{_HERE}:CalledFromPython", inputs), *peers]
        packages = litert_packages(_FOLDER / "litert")
        if name in SHIPPED:
            file = fetch(replace(SHIPPED[name], file=str(Path(SHIPPED[name].file).with_suffix(".tflite"))))
            shipped = ContenderSpec("litert", "_tflite:TfliteModel", {"file": str(file), "inputs": inputs["inputs"]})
            specs[-1] = shipped
        entrants = [
            Entrant(spec, threads, packages if spec.name == "litert" else None)
            for threads in sorted({1, cores})
            for spec in specs
        ]
        return {"trials": tuned.trials, **timed(entrants, options.rounds, plan.tolerance)}
    except (StormdropError, OSError, subprocess.CalledProcessError) as error:
        return {"failed": str(error)}


def _export(name: str, path: Path) -> None:
    onnx.save(small_network(name), path)


def _native(model: sd.CompiledModel, folder: Path) -> Path:
    """The folder of a model that is saved as a native one; as another one, it is saved to "model.sd" beside it."""
    model.save(folder / "model.sd")
    return model.save(folder / "native.sd", native=True)


def _compiled_by(checkout: Path, source: Path) -> Path:
    """The folder of a model that another checkout has compiled."""
    artifact = source.with_name("before.sd")
    if not artifact.exists():
        program = "import sys, stormdrop; stormdrop.compile_model(sys.argv[1], out=sys.argv[2], fresh=True)"
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        subprocess.run([sys.executable, "-c", program, str(source), str(artifact)], env=environment, check=True)
    return artifact


def _emptied(name: str) -> Path:
    folder = _FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout.strip() or sys.exit(f"{checkout}: {run.stderr.strip()}")


def timed(entrants: Sequence[Entrant], rounds: int, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """Times contenders in turns, if their outputs differ by no more than `tolerance`.

    Returns:
        By name and number of threads, as "runtime x2": under "samples" the seconds of a call in each round, under
        "error" the error against the outputs of the first contender, under "settings" how each one says that it runs,
        under "absent" why those take no part that do not; under "disturbed" the rounds beside foreign load.

    Raises:
        MeasureError: A contender of stormdrop takes no part, one dies, or one has other outputs than the first one.
    """
    processes: dict[str, ContenderProcess] = {}
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        for entrant in entrants:
            label = _label(entrant.spec.name, entrant.threads)
            try:
                with _importing_from(entrant.imports):
                    process = ContenderProcess(entrant.spec, entrant.threads)
            except (Unavailable, MeasureError) as reason:
                if entrant.spec.name not in model_peers():
                    raise MeasureError(f"{label} takes no part: {reason}") from reason
                absent[label] = str(reason)
            else:
                processes[label] = stack.enter_context(process)
        compared = [label for label in processes if not label.startswith((EMPTY, LAUNCHES))]
        outputs = {label: processes[label].outputs() for label in compared}
        errors = errors_of(outputs, tolerance)
        times = take_turns(list(processes.values()), rounds)
    return {
        "samples": {
            label: [seconds / process.settings.get("calls", 1) for seconds in taken]
            for (label, process), taken in zip(processes.items(), times.seconds, strict=True)
        },
        "error": errors,
        "settings": {label: process.settings for label, process in processes.items()},
        "absent": absent,
        "disturbed": times.disturbed,
    }


def errors_of(outputs: Mapping[str, Sequence[Any]], tolerance: float = TOLERANCE) -> dict[str, float]:
    """The error of each contender's outputs against those of the first one.

    Raises:
        MeasureError: An error is larger than rounding explains: what computes something else is not timed.
    """
    first, right = next(iter(outputs.items()))
    errors = {label: _error(found, right) for label, found in outputs.items()}
    wrong = [f"{label} by {error:.0e}" for label, error in errors.items() if not error <= tolerance]
    if wrong:
        raise MeasureError(f"outputs differ from those of {first}: {', '.join(wrong)}")
    return errors


def _error(outputs: Sequence[Any], right: Sequence[Any]) -> float:
    """The largest relative error of all outputs; infinite if their number or sizes differ. Axes of 1 may be absent."""
    if [output.size for output in outputs] != [output.size for output in right]:
        return math.inf
    return max(relative_error(got.reshape(want.shape), want) for got, want in zip(outputs, right, strict=True))


def _label(name: str, threads: int) -> str:
    return f"{name} x{threads}"


@contextmanager
def _importing_from(folder: Path | None) -> Iterator[None]:
    """Lets processes that are started meanwhile import from a folder before all others."""
    before = list(sys.path)
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def show_calls(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what calls of chains take, and what of it is not in kernels."""
    whole, rest = [], []
    for name, entry in _that_work(entries):
        samples = entry["samples"]
        kernels, empty = samples[_label(KERNELS, 1)], samples[_label(EMPTY, 1)]
        for threads in sorted({settings["threads"] for settings in entry["settings"].values()}):
            calls = [samples.get(_label(contender, threads)) for contender in (BEFORE, PYTHON, RUNTIME, C)]
            whole.append([name, str(threads), *map(_microseconds, (*calls, kernels))])
            # The loop over kernels calls them, too, as a loop over empty ones does.
            beyond = [
                each and [one - other + nothing for one, other, nothing in zip(each, kernels, empty, strict=True)]
                for each in calls
            ]
            launches = samples.get(_label(LAUNCHES, threads))
            rest.append([name, str(threads), *map(_microseconds, (*beyond, launches, empty)), _remarks(entry)])
    headings = ["kernels", "threads", BEFORE, PYTHON, RUNTIME, C]
    table([*headings, "kernels alone"], whole, "A call: microseconds")
    table([*headings, LAUNCHES, "limit", "remarks"], rest, "A call without its kernels: microseconds")


def show_models(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints the latency of models beside that of the peers."""
    rows = []
    for name, entry in _that_work(entries):
        samples = entry["samples"]
        for threads in sorted({settings["threads"] for settings in entry["settings"].values()}):
            ours = samples[_label(RUNTIME, threads)]
            peers = [samples.get(_label(peer, threads)) for peer in ("onnxruntime", "litert")]
            times = [_microseconds(each) for each in (samples[_label(PYTHON, threads)], ours, *peers)]
            ratios = [_interval(ratio_interval(peer, ours), 2) if peer else "-" for peer in peers]
            rows.append([name, str(threads), *times, *ratios, _remarks(entry)])
    over = [f"{peer} over runtime" for peer in ("onnxruntime", "LiteRT")]
    headings = ["model", "threads", PYTHON, RUNTIME, "onnxruntime", "LiteRT", *over, "remarks"]
    table(headings, rows, "Small models: microseconds")


def _that_work(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The entries that have times; of each other one, prints why it has none."""
    for name, entry in entries.items():
        if "failed" in entry:
            print(f"{name}: {entry['failed']}")
        else:
            yield name, entry


def _microseconds(samples: Sequence[float] | None) -> str:
    """The median with its interval. Differences may be negative: they need the rounds that order statistics take."""
    return "-" if samples is None else _interval(median_interval([1e6 * each for each in samples]), 1)


def _interval(found: Interval, digits: int) -> str:
    return f"{found.estimate:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _remarks(entry: Mapping[str, Any]) -> str:
    worst = max(entry["error"], key=lambda label: float(entry["error"][label]))
    remarks = [f"error {entry['error'][worst]:.0e} ({worst})"]
    launches = [each["launches"] for each in entry["settings"].values() if "launches" in each]
    if launches:
        remarks.append(f"{max(launches)} launches")
    if "trials" in entry:
        remarks.append(f"{entry['trials']} trials")
    if entry["disturbed"]:
        remarks.append(f"{entry['disturbed']} rounds disturbed")
    reasons = {label.partition(" ")[0]: why.partition("; ")[0] for label, why in entry["absent"].items()}
    return "; ".join([*remarks, *(f"{peer}: {reason}" for peer, reason in reasons.items())])


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--tables", default="calls,models", help="the tables, separated by commas (%(default)s)")
    parser.add_argument("--source", type=Path, help="a checkout of an earlier version, for the column 'before'")
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas (%(default)s)")
    parser.add_argument("--time", default="30s", help="the tuning of each model (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the contenders, 6 or more (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of everything random (%(default)s)")
    options = parser.parse_args()
    options.tables = chosen(options.tables, ("calls", "models"), "table")
    options.models = chosen(options.models, MODELS, "model")
    options.time = seconds_of(options.time)
    options.source = options.source and options.source.resolve()
    if options.rounds < 6:
        parser.error("--rounds: an interval of differences needs 6 or more")
    return options


if __name__ == "__main__":
    main()
