"""`stormdrop run`, `bench` and `doctor`."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..._version import __version__
from ...errors import InputError, MeasureError, OperatorError
from ...measure.timing import MOST_ROUNDS
from ...tuning.options import FLOAT32
from .. import arrays, completion, options, output
from ..options import DatabaseOption, JsonOption, PrecisionOption, SeedOption, ShapeOption, SizeOption, TargetOption
from ..progress import Reporter
from .reporting import PageOption, check_page, command_line, write_page

if TYPE_CHECKING:
    from ...machine.limits.memory_rates import MemoryRates
    from ...machine.limits.peak import Peak
    from ...machine.limits.unit_rates import UnitRate
    from ...model.artifact.artifact import CompiledModel
    from ...model.profile import Profile

_LONGEST_NAME = 60  # characters of a kernel's name in the table of a profile


def run(
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="A folder that `stormdrop tune` wrote.")],
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="X.npz", help="A file with the inputs by name; by default the inputs are random."
        ),
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option("--output", metavar="Y.npz", help="The file to write the outputs to, by name.")
    ] = None,
    profiled: Annotated[
        bool,
        typer.Option(
            "--profile", help="Also show how long each kernel takes, and how much time lies outside of kernels."
        ),
    ] = False,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest",
            metavar="D",
            help="Run the model only if its files have this digest, which `stormdrop tune` printed.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="With --profile: write each call of the profiled executions as a trace to this file, which "
            "https://ui.perfetto.dev shows: kernels, allocations, threads.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", help="The most threads that a call uses; by default one per core."),
    ] = None,
    shape: SizeOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Run a tuned model. This runs code of its folder: run what you trust, or give its digest."""
    options.not_negative_seed(seed)
    size = options.one_size(shape or ())
    if size and inputs is not None:
        raise InputError("--shape: the file of --input says which size runs; leave --shape out")
    if outputs is not None:
        options.writable_file(outputs, "--output")
    if trace is not None:
        if not profiled:
            raise InputError("--trace: needs --profile, whose executions it shows")
        options.writable_file(trace, "--trace")
    with output.stdout_for_json(as_json):
        from ...model import load

        model = load(artifact, digest, threads)
        feeds = _feeds(model, inputs, size, seed)
        model.run(feeds)  # starts the threads and fills the caches; the second run is timed
        start = time.perf_counter()
        results = model.run(feeds)
        seconds = time.perf_counter() - start
        profile_and_limits = _profile(model, feeds, trace) if profiled else None
        if outputs is not None:
            arrays.write(outputs, results)
    described: dict[str, dict[str, Any]] = {
        name: {"shape": list(value.shape), "dtype": str(value.dtype)} for name, value in results.items()
    }
    if as_json:
        document: dict[str, Any] = {
            "artifact": str(artifact),
            "digest": model.digest,
            "outputs": described,
            "seconds": seconds,
        }
        document["output"] = outputs and str(outputs)
        if profile_and_limits:
            profile, limits = profile_and_limits
            document["profile"] = {**profile.to_json(), "limits": limits and asdict(limits)}
        output.emit(document)
        return
    rows = [[name, "x".join(map(str, spec["shape"])), str(spec["dtype"])] for name, spec in described.items()]
    output.table(["output", "shape", "type"], rows)
    print(f"\n{output.seconds(seconds)}")
    if profile_and_limits:
        _print_profile(*profile_and_limits)


def _profile(model: CompiledModel, feeds: Mapping[str, Any], trace: Path | None) -> tuple[Profile, Peak | None]:
    """The profile of the model, and the limits of this machine; None if they cannot be measured.

    Args:
        model: the model.
        feeds: its inputs.
        trace: the file to write a trace of the profiled executions to; None for none.
    """
    from ...machine.cpu import Target
    from ...machine.limits.peak import peak
    from ...model.profile import profile

    limits: Peak | None = None
    try:
        limits = peak(Target.detect())
    except MeasureError as error:
        print(f"no roofline: {error}", file=sys.stderr)
    if trace is None:
        return profile(model, feeds), limits
    from ...model.call_record import CallRecorder
    from ...report.traces.profile_trace import write_profile_trace

    recorder = CallRecorder()
    profiled = profile(model, feeds, timer=recorder)
    write_profile_trace(trace, model.metadata.name, profiled.to_json(), recorder.to_json(), output.say)
    return profiled, limits


def _print_profile(profile: Profile, limits: Peak | None) -> None:
    rows = []
    for kernel in profile.kernels:
        roofline = kernel.roofline_fraction(limits) if limits else None
        seconds, share = output.seconds(kernel.seconds), f"{kernel.seconds / profile.seconds:.1%}"
        # A layer of a quantised model is called after its dozens of operators. The JSON document has the whole names.
        name = kernel.name if len(kernel.name) <= _LONGEST_NAME else f"{kernel.name[: _LONGEST_NAME - 1]}…"
        rows.append([name, str(kernel.calls), seconds, share, "" if roofline is None else f"{roofline:.0%}"])
    for name, spent in (("outside of kernels", profile.outside), ("moving data only", profile.moving)):
        rows.append([name, "", output.seconds(spent), f"{spent / profile.seconds:.1%}", ""])
    print()
    headings = ["kernel", "calls", "together", "share", "of its roofline"]
    output.table(headings, rows, f"an execution takes {output.seconds(profile.seconds)}")


def _feeds(
    model: CompiledModel, path: Path | None, size: Mapping[str, tuple[int, ...]], seed: int
) -> Mapping[str, Any]:
    """The inputs from a file, or random ones that the model takes, of the first size that has the shapes in `size`.

    Raises:
        InputError: The file is no .npz, or the model has no such size.
    """
    from ...model.verification.verify import sample_feeds

    if path is None:
        return sample_feeds(model.metadata.at(size), seed)
    return arrays.read(path)


def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ARTIFACT|MODEL|OPERATOR",
            help="What to time: a tuned model, an ONNX model or an operator.",
            autocompletion=completion.operators_and_files,
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", help="The operator's arguments.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="NAME,...",
            help="Peers, such as onnxruntime, openvino, torch and tensorflow; all by default.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="The number of interleaved rounds.")
    ] = MOST_ROUNDS,
    target: TargetOption = None,
    db: DatabaseOption = None,
    seed: SeedOption = 0,
    shape: ShapeOption = None,
    precision: PrecisionOption = FLOAT32,
    report: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time an operator or a model beside its peers; tune it first if it has not been tuned."""
    values, shapes = options.arguments(arguments or ()), options.one_size(shape or ())
    options.not_empty(target, "--target", "cpu")
    options.not_negative_seed(seed)
    check_page(report, "--report")
    names = None if against is None else [name.strip() for name in against.split(",") if name.strip()]
    with output.stdout_for_json(as_json):
        from ... import operators
        from ...bench.bench import bench as time_beside_peers
        from ...machine.cpu import Target, require_cpu

        path = Path(what)
        is_file = path.exists() or path.suffix in (".onnx", ".sd") or len(path.parts) > 1
        if is_file and values:
            raise OperatorError(f"{what} is a model and takes no arguments such as {(arguments or [''])[0]}")
        subject = path if is_file else operators.create(what, values)
        otherwise = f"target {target}: bench times kernels for CPUs only; benchmarks/gpu/run.py times kernels for GPUs"
        machine = require_cpu(Target.parse(target), otherwise)
        with options.tuning_records(db) as store, Reporter(None) as progress:
            result = time_beside_peers(
                subject,
                names,
                rounds=rounds,
                seed=seed,
                shapes=shapes,
                precision=precision,
                target=machine,
                store=store,
                on_progress=progress,
            )
        document = result.to_json()
        if report is not None:
            from ...report.documents import Bench, checked
            from ...report.pages.bench_page import bench_page

            chosen = {"against": against, "rounds": rounds, "target": target, "seed": seed, "shape": shape}
            if precision != FLOAT32:
                chosen["precision"] = precision
            repeat = command_line("bench", what, *(arguments or ()), **chosen)
            write_page(bench_page(checked(document, Bench, what), repeat), report)
    if as_json:
        output.emit(document)
    else:
        print_bench(document)
        if report is not None:
            print(f"saved: {report}")


def print_bench(document: Mapping[str, Any]) -> None:
    """Prints the document of a bench as a table."""
    rows = [
        [
            contender["name"],
            output.seconds(contender["seconds"]),
            output.interval(contender["interval"]),
            f"{contender['ratio']:.2f}",
            output.interval(contender["ratio_interval"], "ratio"),
            f"{contender['gflops']:.0f}" if contender.get("gflops") else "-",
            f"{contender['max_error']:.0e}" if math.isfinite(contender["max_error"]) else "different",
        ]
        for contender in document["contenders"]
    ]
    title = f"{document['what']}: {document['runs']} interleaved rounds"
    output.table(["", "median", "95% interval", "over ours", "95% interval", "GFLOP/s", "error"], rows, title)
    for name, reason in document["skipped"].items():
        print(f"{name}: skipped: {reason}")
    if document["disturbed"]:
        print(f"something else used the machine in {document['disturbed']} of the rounds: do not trust the figures")
    for contender in document["contenders"]:
        if not contender["agrees"]:
            print(f"{contender['name']}: its output differs from the reference")


def doctor(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure the limits again, even if they are known.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what this machine offers: cores, vectors, caches, measured limits, versions."""
    with output.stdout_for_json(as_json):
        from ...machine.cpu import Target
        from ...machine.gpu import GPUS, target_name
        from ...machine.known_cpus import KNOWN_CPUS
        from ...machine.limits.memory_rates import memory_rates
        from ...machine.limits.peak import peak
        from ...machine.limits.unit_rates import unit_rates
        from ...machine.nvml import visible_gpus
        from ...machine.opencl import opencl_devices
        from ...plugins import everything
        from ...records import default_path
        from .listing import plugin_status

        target, gpus, opencl = Target.detect(), visible_gpus(), opencl_devices()
        limits, units = peak(target, refresh=refresh), unit_rates(target, refresh=refresh)
        memory = memory_rates(target, refresh=refresh)
        others = ["apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime", "openvino", "torch"]
        versions = {"stormdrop": __version__, **_versions(others)}
        document: dict[str, Any] = {
            "cpu": target.cpu,
            "target": target.mcpu,
            "cores": target.cores,
            "lanes": target.lanes,
            "registers": target.registers,
            "caches": {"l1": target.l1, "l2": target.l2, "l3": target.l3},
            "peak": {"flops": limits.flops, "bandwidth": limits.bandwidth, "undisturbed": limits.undisturbed},
            "memory": asdict(memory),
            "units": [_unit(rate) for rate in units],
            "opencl": [{**asdict(info), "target": info.target} for info in opencl],
            "gpus": [{**asdict(gpu), "target": target_name(gpu)} for gpu in gpus],
            "other_targets": [*KNOWN_CPUS, *(f"cuda/{name}" for name in GPUS)],
            "python": platform.python_version(),
            "versions": versions,
            "database": str(default_path()),
            "plugins": [plugin_status(plugin) for plugin in everything()],
        }
    if as_json:
        output.emit(document)
        return
    rows = [
        ["CPU", target.cpu],
        ["compiled for", target.mcpu],
        ["cores", str(target.cores)],
        ["vectors", f"{target.registers} registers of {target.lanes} float32"],
        ["data caches", f"L1 {output.size(target.l1)}, L2 {output.size(target.l2)}, L3 {output.size(target.l3)}"],
        ["caches hold", f"{memory.cached / 2**20:.0f} MiB in all, by the rate of reading"],
        ["peak", f"{limits.flops / 1e9:.0f} GFLOP/s (float32 multiply-adds in registers, all cores)"],
        ["bandwidth", f"{limits.bandwidth / 1e9:.1f} GB/s (copy, bytes read plus written, all cores)"],
        ["memory", _memory_line(memory)],
        *([f"unit {rate.unit.name}", _unit_line(rate)] for rate in units),
        *([f"OpenCL {info.number}", f"{info.name} ({info.target}), {info.platform}, {info.driver}"] for info in opencl),
        *([f"GPU {gpu.number}", f"{gpu.name} ({target_name(gpu) or 'no target'}), {gpu}"] for gpu in gpus),
        *([] if gpus else [["GPUs", "none; kernels for --target cuda/NAME are built and checked, but not measured"]]),
        ["other targets", f"{', '.join(document['other_targets'])} (measured with --runner)"],
        ["Python", platform.python_version()],
        *([name, version or "not installed"] for name, version in versions.items()),
        ["database", str(default_path())],
        *(
            [f"plug-in {each['name']}", f"{each['group']}, of {each['package']}: {each['error'] or 'loads'}"]
            for each in document["plugins"]
        ),
    ]
    width = max(len(row[0]) for row in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    disturbed = {
        "peak and bandwidth were measured: they are higher": limits.undisturbed,
        "its memory was measured: it is faster": memory.undisturbed,
        "its units were measured: some are faster": all(rate.undisturbed for rate in units),
    }
    for what, undisturbed in disturbed.items():
        if not undisturbed:
            print(f"something else used the machine while {what} than shown")
    if not all(disturbed.values()):
        print("stormdrop doctor --refresh measures again")


def _unit(rate: UnitRate) -> dict[str, Any]:
    """A unit of this machine in the document of `doctor`."""
    unit = rate.unit
    return {
        "name": unit.name,
        "operands": unit.operands,
        "sums": unit.sums,
        "rate": rate.rate,
        "times_float32": rate.times_float32,
        "undisturbed": rate.undisturbed,
        "offered": rate.offered,
        "reason": rate.reason or None,
    }


def _unit_line(rate: UnitRate) -> str:
    """A unit of this machine in one line."""
    speed = f": {rate.rate / 1e9:.0f} Gop/s, {rate.times_float32:.1f} times float32" if rate.rate else ""
    return f"{rate.unit.operands} into {rate.unit.sums}{speed}; {rate.reason or 'kernels use it'}"


def _memory_line(memory: MemoryRates) -> str:
    """How fast arrays in memory are read, in one line."""
    huge = f" ({memory.huge_pages / 1e9:.1f} from huge pages)" if memory.huge_pages else ""
    return f"read at {memory.read[-1] / 1e9:.1f} GB/s{huge}, {1e9 * memory.latency:.0f} ns for a load by itself"


def _versions(names: Sequence[str]) -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions
