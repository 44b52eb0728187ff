"""The steps of `first_contact.py`. Each finds its items one by one, and keeps each as soon as it is known."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
sys.path.insert(0, str(Path(__file__).parents[2] / "kernels"))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

import numpy as np
from _common import Campaign, versions
from _shapes import TABLE_1
from _slices import Slice, SliceOver
from gpu import run as table_1
from gpu.operators import CASES

import stormdrop as sd
from stormdrop import operators
from stormdrop.bench.peers.torch_cuda import event_seconds
from stormdrop.codegen.compile import compile_kernel
from stormdrop.errors import MeasureError, one_line
from stormdrop.ir.reference import evaluate_graph
from stormdrop.ir.relative_error import relative_error
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS, Gpu, require_gpu
from stormdrop.machine.nvml import current_clock, is_slowed, visible_gpus
from stormdrop.machine.opencl import OpenCl
from stormdrop.measure.contract import KernelSetup
from stormdrop.measure.local import LocalMeasurer
from stormdrop.measure.pool.pool import WorkerPool
from stormdrop.sketches.registry import sketches_for
from stormdrop.trial import Candidate, Request

KIT = Path(__file__).parent
FULL = 9.0  # minutes that the seconds below belong to
_TOOL_SECONDS, _OPERATOR_SECONDS, _MODEL_SECONDS, _BENCH_SECONDS, _ARM_SECONDS = 15.0, 20.0, 60.0, 30.0, 30.0
_HOST_CASES = ("matmul m=24 n=32 k=16", "softmax m=6 n=50")
_OPERATORS = (
    "matmul m=512 n=1024 k=64",
    "matmul m=1024 n=1024 k=1024 dtype=float16",
    "conv2d n=1 h=56 w=56 ci=64 co=64 kh=3 kw=3 pad=1",
    "depthwise_conv2d n=1 h=56 w=56 ci=144 kh=3 kw=3 pad=1",
    "softmax m=1536 n=128",
    "layer_norm m=128 n=768",
)
_SANITIZED = (
    "matmul m=96 n=128 k=64",
    "matmul m=64 n=64 k=64 dtype=float16",
    "softmax m=32 n=50",
    "layer_norm m=32 n=50",
)
_TOOLS = ("memcheck", "racecheck", "synccheck")
_MODELS = {"squeezenet": "squeezenet1_1", "resnet18": "resnet18"}
"""The names of the models here and in torchvision."""

_ROUNDS = 15
_CALLS = 100  # that are timed one after the other


class Skipped(Exception):
    """A step or an item cannot be done here and now; one line that says why."""


class Kit:
    """What a step works with.

    Args:
        step: The step.
        host: Whether it is a dry run without a GPU.
        campaign: What all steps have found.
        seconds: How long it may take from now on.
        minutes: Of all steps: tunings are shorter with fewer of them.

    Attributes:
        end: The reading of `time.monotonic` at which it has to end.
    """

    def __init__(self, step: str, host: bool, campaign: Campaign, seconds: float, minutes: float) -> None:
        self.step, self.host = step, host
        self.end = time.monotonic() + seconds
        self._campaign = campaign
        self._scale = min(1.0, minutes / FULL)

    @property
    def target(self) -> Gpu:
        """This machine's GPU; for a dry run its first OpenCL device."""
        target = sd.parse_machine("opencl" if self.host else "cuda")
        assert isinstance(target, Gpu)
        return target

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.end - time.monotonic()

    @property
    def folder(self) -> Path:
        """Where tuned models are kept from call to call: beside the file of what is found."""
        return self._campaign.file.absolute().with_suffix(".host" if self.host else ".models")

    def scaled(self, seconds: float) -> float:
        """So many seconds of a run of nine minutes; fewer of a shorter one."""
        return max(1.0, self._scale * seconds)

    def tuning(self, seconds: float) -> dict[str, Any]:
        """How a kernel or model is tuned: from nothing, in so many seconds of a run of nine minutes."""
        bounds = {"trials": 3} if self.host else {"time": self.scaled(seconds)}
        return {**bounds, "fresh": True, "store": sd.open_store("sqlite://"), "target": self.target}

    def item(self, name: str, work: Callable[[], Mapping[str, Any]], least: float = 1.0) -> None:
        """Does a part of the step, unless it is known. What it raises is kept as its failure.

        Args:
            name: The part.
            work: Does it. Returns what it finds.
            least: The seconds that it needs.

        Raises:
            Skipped: Fewer seconds are left.
        """
        key = {"step": self.step, "item": name, "host": self.host}
        known = self._campaign.known(key)
        if known is not None and "skipped" not in known:
            return
        if self.left < least:
            left = max(0.0, self.left)
            raise Skipped(f"{left:.0f} s are left, and {name} needs {least:.0f}: another call goes on")
        begin = time.monotonic()
        try:
            found = work()
        except Skipped as reason:
            found = {"skipped": str(reason)}
        except Exception as error:  # noqa: BLE001  whatever fails is a finding
            found = {"failed": one_line(error)}
        self._campaign.keep({**key, "seconds": round(time.monotonic() - begin, 2), **found})
        print(f"  {self.step}: {name}: {found.get('failed', found.get('skipped', 'ok'))}", file=sys.stderr, flush=True)

    def summary(self) -> dict[str, str]:
        """The status of the step by its items, and a line about them."""
        of_step = {"step": self.step, "host": self.host}.items()
        items = {entry["item"]: entry for entry in self._campaign.entries if of_step <= entry.items()}
        found = [entry for name, entry in items.items() if name is not None]
        bad = [f"{entry['item']}: {entry['failed']}" for entry in found if "failed" in entry]
        skipped = [f"{entry['item']}: {entry['skipped']}" for entry in found if "skipped" in entry]
        fine = len(found) - len(bad) - len(skipped)
        return {
            "status": "failed" if bad else "ok" if fine else "skipped",
            "reason": "; ".join([f"{fine} of {len(found)} are fine", *bad[:1], *skipped[:1]]),
        }


def gpu(kit: Kit) -> None:
    """Which GPU, and which software."""
    kit.item("software", _software)
    for info in visible_gpus():
        now = {"clock_now": current_clock(info.number), "slowed": is_slowed(info.number)}
        kit.item(f"gpu {info.number}", partial(dict, **asdict(info), **now))
    target = kit.target
    if isinstance(target, OpenCl):
        assert target.info is not None
        kit.item("target", partial(asdict, target.info))
        return
    figures = ("name", "arch", "multiprocessors", "flops", "bandwidth", "machine", "conditions")
    kit.item("target", lambda: {name: getattr(target, name) for name in figures})


def _software() -> dict[str, Any]:
    nvcc = shutil.which("nvcc")
    release = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout if nvcc else ""
    return {"python": sys.version.split()[0], "versions": versions(), "nvcc": (release.splitlines() or ["none"])[-1]}


def limits(kit: Kit) -> None:
    """What the GPU does at most, measured by a program of `nvcc`, beside the data sheet."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise Skipped("there is no nvcc on the PATH")
    device = GPUS["a100"] if kit.host else require_gpu(kit.target)

    def measured() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            output = ["-cubin", "-o", f"{folder}/limits.cubin"] if kit.host else ["-o", f"{folder}/limits"]
            _checked([nvcc, "-O3", f"-arch={device.arch}", *output, str(KIT / "limits.cu")])
            if kit.host:
                return {"skipped": f"compiled for {device.arch}; there is no GPU to run it"}
            found: dict[str, Any] = json.loads(_checked([f"{folder}/limits"]))
        flops, bandwidth = device.stated_limits
        shares = {"of_stated_flops": found["flops"] / flops, "of_stated_bandwidth": found["bandwidth"] / bandwidth}
        return {**found, "stated_flops": flops, "stated_bandwidth": bandwidth, **shares}

    kit.item("limits", measured)


def _checked(command: Sequence[str]) -> str:
    """What a program prints. Raises `MeasureError` with its last line if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = ((done.stderr or done.stdout).strip().splitlines() or ["it says nothing"])[-1]
        raise MeasureError(f"{Path(command[0]).name} ended with {done.returncode}: {last}")
    return done.stdout


def sketches(kit: Kit) -> None:
    """Schedules of every sketch of every operator, measured and compared with NumPy as in a tuning."""
    target = kit.target
    gpu = next(iter(target.gpus), None)
    cases = _HOST_CASES if kit.host else [f"{name} {case}" for name, some in CASES.items() for case in some]
    with WorkerPool(target.cores, None, 0, gpu) as pool:
        for source in ("builtin", "rules"):
            for case in cases:
                work = _workload(case)
                for sketch, space in sketches_for(work, target, source):
                    setup = KernelSetup(work, target, [(sketch, space)])
                    kit.item(f"{source}: {case}: {sketch.name}", partial(_schedules, setup, pool, gpu))


def _schedules(setup: KernelSetup, pool: WorkerPool, gpu: int | None) -> dict[str, Any]:
    """The default schedule of a sketch and two random ones, measured."""
    ((sketch, space),) = setup.sketches
    rng = np.random.default_rng(0)
    points = list(dict.fromkeys([space.origin, space.sample(rng), space.sample(rng)]))
    with LocalMeasurer(setup, pool=pool, gpu=gpu) as measurer:
        found = list(measurer.measure([Request(Candidate(sketch.name, point), 1) for point in points]))
    schedules = [
        {"point": point, "status": each.status.value, "error": each.error, "times": each.seconds}
        for point, each in zip(points, found, strict=True)
    ]
    bad = [each for each in found if not each.ok]
    if not bad:
        return {"schedules": schedules}
    return {"schedules": schedules, "failed": f"{len(bad)} of {len(found)}: {bad[0].status.value}: {bad[0].error}"}


def _workload(case: str) -> Workload:
    name, *words = case.split()
    return operators.create(name, dict(word.split("=") for word in words))


def sanitizer(kit: Kit) -> None:
    """compute-sanitizer over the default schedules of a few kernels; g++'s sanitizers over their CUDA source."""
    if kit.host:
        from stand_ins.cuda_on_host import SANITIZERS

        for case in _HOST_CASES:
            kit.item(case, partial(_on_host, case, SANITIZERS))
        return
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        raise Skipped("there is no compute-sanitizer on the PATH or in /usr/local/cuda/bin")
    for name in _TOOLS:
        kit.item(name, partial(_sanitized, tool, name, kit.left), kit.scaled(_TOOL_SECONDS))


def _sanitized(tool: str, name: str, seconds: float) -> dict[str, Any]:
    """What one of the tools of compute-sanitizer reports of the default schedules, at most its first 50 lines."""
    program = f"import sys; sys.path.insert(0, {str(KIT)!r}); import _steps; _steps.run_defaults({_SANITIZED!r})"
    command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, "-c", program]
    with tempfile.TemporaryFile("w+") as output:  # what outlives the tool would keep a pipe open until the step's end
        try:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return {"failed": f"takes more than {seconds:.0f} s"}
        output.seek(0)
        lines = output.read().splitlines()
    report = [line for line in lines if line.startswith("=========")]
    others = [line for line in lines if not line.startswith("=========")]
    said = "; ".join([*report[-1:], *others[-1:]])
    return {"report": report[:50], **({"failed": f"ended with {done.returncode}: {said}"} if done.returncode else {})}


def run_defaults(cases: Sequence[str]) -> None:
    """Runs the default schedule of each sketch of these cases once, on this machine's GPU. Raises if one is wrong."""
    import tvm

    device = require_gpu(sd.parse_machine("cuda"))
    place = device.local_device()
    for case, sketch, function, inputs, expected in _defaults(cases, device):
        tensors = [tvm.runtime.tensor(array, place) for array in inputs]
        outputs = [tvm.runtime.empty(array.shape, str(array.dtype), place) for array in expected]
        compile_kernel(function, device.tvm()).call(*tensors, *outputs)
        _check(f"{case}: {sketch}", [output.numpy() for output in outputs], expected)


def _defaults(cases: Sequence[str], device: Gpu) -> Iterator[tuple[str, str, Any, Any, Any]]:
    """The default schedule of each sketch, with what it takes and the right outputs."""
    for case in cases:
        work = _workload(case)
        inputs = work.random_inputs(0)
        expected = evaluate_graph(work.graph, inputs)
        for sketch, space in sketches_for(work, device):
            variant = sketch.apply(work, device, space.config(space.origin))
            yield case, sketch.name, variant.main, variant.arguments(inputs), expected


def _on_host(case: str, sanitizers: Sequence[str]) -> dict[str, Any]:
    from stand_ins.cuda_on_host import execute_on_host

    device, complaints = GPUS["a100"], set()
    for _, sketch, function, inputs, expected in _defaults([case], device):
        for execution in execute_on_host(function, device, inputs, sanitizers):
            complaints |= set(execution.complaints)
            if execution.error:
                raise MeasureError(f"{sketch}: {execution.error}")
            _check(f"{case}: {sketch}", execution.outputs, expected)
    return {"failed": ", ".join(sorted(complaints))} if complaints else {"says": "nothing"}


def _check(name: str, outputs: Sequence[Any], expected: Sequence[Any]) -> None:
    for output, wanted in zip(outputs, expected, strict=True):
        if (error := relative_error(output, wanted)) > (2e-3 if wanted.dtype == np.float16 else 1e-4):
            raise MeasureError(f"{name}: wrong by {error:.1e}")


def tuned_operators(kit: Kit) -> None:
    """Operators tuned from nothing, then timed in turns with torch's best forms."""
    for case in _HOST_CASES if kit.host else _OPERATORS:

        def measured(case: str = case) -> dict[str, Any]:
            work, setting = _workload(case), kit.tuning(_OPERATOR_SECONDS)
            result = sd.tune(work, **setting)
            if result.best is None:
                raise MeasureError(f"no candidate works: {result.error}")
            found = {
                "tuning": result.seconds,
                "trials": result.trials,
                "bad": result.failed,
                "time": result.best.seconds,
            }
            if kit.host:
                return {**found, "torch": "there is no GPU for it"}
            device = setting["target"]
            variant = result.best.apply(work, device, result.best.config)
            times = table_1.race(work, {"ours": variant}, device, half=True)
            return {**found, "times": {name: statistics.median(rounds) for name, rounds in times.items()}}

        kit.item(case, measured, kit.scaled(_OPERATOR_SECONDS))


def models(kit: Kit) -> None:
    """Models compiled and tuned from nothing, and timed beside torch."""
    for name, theirs in list(_MODELS.items())[: 1 if kit.host else None]:
        kit.item(f"{name}: torch", partial(_by_torch, kit, theirs))
        kit.item(f"{name}: compiled", partial(_compiled, kit, name))
        kit.item(f"{name}: tuned", partial(_tuned, kit, name), kit.scaled(_MODEL_SECONDS))
        kit.item(f"{name}: bench", partial(_in_bench, kit, name), kit.scaled(_BENCH_SECONDS))


def _graph(name: str) -> Any:
    """The ONNX model of a name. torch exports some of them."""
    from _graphs import graph

    try:
        return graph(name)
    except ImportError as error:
        raise Skipped(str(error)) from error


def _compiled(kit: Kit, name: str) -> dict[str, Any]:
    model = _graph(name)
    begin = time.perf_counter()
    compiled = sd.compile_model(model, target=kit.target, store=sd.open_store("sqlite://"))
    return {"compile_seconds": time.perf_counter() - begin, "kernels": sum(map(len, compiled.metadata.calls))}


def _tuned(kit: Kit, name: str) -> dict[str, Any]:
    file, out = kit.folder / f"{name}.onnx", kit.folder / name
    shutil.rmtree(out, ignore_errors=True)
    kit.folder.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_graph(name).SerializeToString())  # peers of a saved model read the file that it comes from
    result = sd.tune_model(file, **kit.tuning(_MODEL_SECONDS), out=out)
    return {"latency": asdict(result.latency), "trials": result.trials, "max_error": result.verified.max_error}


def _in_bench(kit: Kit, name: str) -> dict[str, Any]:
    """The tuned model beside its peers."""
    if not (kit.folder / name).exists():
        raise Skipped("there is no tuned model")
    return {"bench": sd.bench(kit.folder / name, rounds=2 if kit.host else _ROUNDS).to_json()}


def _by_torch(kit: Kit, name: str) -> dict[str, Any]:
    """torch's times of a model in its best forms: captured in a CUDA graph, without TF32, in both types."""
    try:
        import torch
        from _torch_modules import torchvision_models
    except ImportError as error:
        raise Skipped(str(error)) from error
    if not torch.cuda.is_available():
        raise Skipped("torch finds no GPU")
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    calls: dict[str, Callable[[], object]] = {}
    for dtype in ("float32", "float16"):
        for layout in ("contiguous_format", "channels_last"):
            form = {"dtype": getattr(torch, dtype), "memory_format": getattr(torch, layout)}
            module = torchvision_models().get_model(name, weights=None).eval().cuda().to(**form)
            image = torch.randn(1, 3, 224, 224).cuda().to(**form)
            calls[f"{dtype} {layout}"] = table_1.graph(torch, partial(module, image))
    rounds = {name: [event_seconds(torch, call, 1) for _ in range(_ROUNDS)] for name, call in calls.items()}
    return {"times": {name: statistics.median(some) / table_1.IN_GRAPH for name, some in rounds.items()}}


def torch_compile(kit: Kit) -> None:
    """A network of torch by `torch.compile(backend="stormdrop")`, compared with eager torch, and timed beside it."""
    kit.item("a network that writes to an input", partial(_torch_compiled, "cpu" if kit.host else "cuda"))


def _torch_compiled(device: str) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise Skipped(str(error)) from error
    from stormdrop.integrations.torch_compile import stormdrop

    if device == "cuda" and not torch.cuda.is_available():
        raise Skipped("torch finds no GPU")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    layers = [torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    layers += [torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, 10)]
    network = torch.nn.Sequential(*layers).eval().to(device)

    def step(x: Any, total: Any) -> Any:
        y = network(x)
        total.add_(y)
        return y

    fast = torch.compile(step, backend=stormdrop, options={"cache": False, "fresh": True, "db": "sqlite://"})
    x = torch.randn(2, 3, 56, 56).to(device)
    totals = {"eager": torch.zeros(2, 10).to(device), "stormdrop": torch.zeros(2, 10).to(device)}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a graph that runs eagerly
        expected, begin = step(x, totals["eager"]), time.perf_counter()
        outputs = [fast(x, totals["stormdrop"]), totals["stormdrop"]]
        arrays = [output.cpu().numpy() for output in outputs]
        found: dict[str, Any] = {"first_call": time.perf_counter() - begin}
        _check("its outputs", arrays, [each.cpu().numpy() for each in (expected, totals["eager"])])
        if device == "cpu":
            return {**found, "times": "there is no GPU for them"}
        calls = {name: partial(work, x, totals[name]) for name, work in (("eager", step), ("stormdrop", fast))}
        rounds = {name: [event_seconds(torch, call, _CALLS) for _ in range(_ROUNDS)] for name, call in calls.items()}
    return {**found, "times": {name: statistics.median(some) for name, some in rounds.items()}}


def papers(kit: Kit) -> None:
    """Shapes of Table 1 of the AF-DS paper, each with short tunings."""
    if kit.host:
        raise Skipped("there is no GPU")
    device = require_gpu(kit.target)
    arm = kit.scaled(_ARM_SECONDS)
    options = argparse.Namespace(budgets=[arm / 60], trials=0, runs=1, fresh=False)
    tunings = Campaign(kit.folder / "tunings.jsonl")

    def measured(shape: str) -> dict[str, Any]:
        try:
            return table_1.measure(shape, device, options, tunings, Slice(kit.left / 60))
        except SliceOver:
            raise Skipped("another call goes on with its tunings") from None

    least = 8 * arm + 30  # seven tunings of a shape, with what they take longer, and a race
    for shape in dict.fromkeys([*table_1.SMALL, *TABLE_1]):
        kit.item(shape, partial(measured, shape), least)


STEPS: dict[str, Callable[[Kit], None]] = {
    "gpu": gpu,
    "limits": limits,
    "sketches": sketches,
    "sanitizer": sanitizer,
    "operators": tuned_operators,
    "models": models,
    "torch_compile": torch_compile,
    "papers": papers,
}
"""The steps, in their order."""
