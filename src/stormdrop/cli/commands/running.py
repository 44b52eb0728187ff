"""`stormdrop run`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError, MeasureError, shown
from ...tuning.options import whole_number
from .. import arrays, options, output
from ..options import JsonOption, SeedOption, SizeOption
from ..services import CallsOption, ForOption, load_of, print_services, say_how_long
from ..status_line import Teller, telling

if TYPE_CHECKING:
    from ...bench.service import Load
    from ...machine.limits.peak import Peak
    from ...model.artifact.artifact import CompiledModel

_LONGEST_NAME = 60  # characters of a kernel's name in the table of a profile
_LONGEST_LABEL = 39  # characters of the layers of a kernel: a line then fits 80 columns


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
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="kernel|layer",
            help="With --profile: a line for each kernel, or for the layers of the model that are computed together.",
        ),
    ] = "kernel",
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
    duration: ForOption = None,
    calls: CallsOption = None,
    shape: SizeOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Run a tuned model. This runs code of its folder: run what you trust, or give its digest."""
    whole_number("seed", seed, 0)
    size, served = options.one_size(shape or ()), load_of(duration, calls)
    if size and inputs is not None:
        raise InputError("--shape: the file of --input says which size runs; leave --shape out")
    if outputs is not None:
        options.writable_file(outputs, "--output")
    if by not in ("kernel", "layer"):
        raise InputError(f"--by: takes kernel or layer, not {shown(by)}")
    if by == "layer" and not profiled:
        raise InputError("--by: needs --profile, whose table it changes")
    if trace is not None:
        if not profiled:
            raise InputError("--trace: needs --profile, whose executions it shows")
        options.writable_file(trace, "--trace")
    with output.stdout_for_json(as_json), telling(f"running {artifact}", "loading it") as tell:
        from ...model import load

        model = load(artifact, digest, threads)
        if model.other_gpu:
            output.say(f"{artifact}: {model.other_gpu}")
        tell("the first time")
        feeds = _feeds(model, inputs, size, seed)
        model.run(feeds)  # starts the threads and fills the caches; the second run is timed
        start = time.perf_counter()
        results = model.run(feeds)
        seconds = time.perf_counter() - start
        services = None if served is None else _services(model, feeds, served, tell)
        profile = _profile(model, feeds, trace, tell) if profiled else None
        if outputs is not None:
            arrays.write(outputs, results)
    document: dict[str, Any] = {
        "artifact": str(artifact),
        "digest": model.digest,
        "outputs": {name: {"shape": list(value.shape), "dtype": str(value.dtype)} for name, value in results.items()},
        "seconds": seconds,
        "output": outputs and str(outputs),
    }
    if services is not None:
        document |= services
    if profile is not None:
        document["profile"] = profile
    if as_json:
        output.emit(document)
    else:
        _print_run(document, by)


def _services(model: CompiledModel, feeds: Mapping[str, Any], load: Load, tell: Teller) -> dict[str, Any]:
    """How the model serves calls: what a document has more of it."""
    from ...bench.service import serve
    from ...model.artifact.call_inputs import aligned

    say_how_long(load, "the model")
    inputs = {name: aligned(value) for name, value in feeds.items()}
    services, disturbed = serve(lambda: model.run(inputs), model.threads, load, tell)
    return {
        "services": [service.to_json() for service in services],
        "load": {
            "seconds": load.seconds,
            "calls": list(load.calls),
            "turns": load.turns,
            "disturbed": disturbed,
        },
    }


def _profile(model: CompiledModel, feeds: Mapping[str, Any], trace: Path | None, tell: Teller) -> dict[str, Any]:
    """The profile of the model, with the limits of what executes it; None for limits that are not known.

    Args:
        model: The model.
        feeds: Its inputs.
        trace: The file to write a trace of the profiled executions to; None for none.
        tell: Is told what is done.
    """
    from ...model.call_record import CallRecorder
    from ...model.profile import profile

    limits = _limits(model, tell)
    recorder = None if trace is None else CallRecorder()
    tell("timing its kernels")
    profiled = profile(model, feeds, timer=recorder).to_json()
    if trace is not None and recorder is not None:
        from ...report.traces.profile_trace import write_profile_trace

        write_profile_trace(trace, model.metadata.name, profiled, recorder.to_json(model.metadata), output.say)
    return {**profiled, "limits": limits and asdict(limits)}


def _limits(model: CompiledModel, tell: Teller) -> Peak | None:
    """The limits of what executes the model: of an NVIDIA GPU as its data sheet states them, of a CPU as measured."""
    from ...machine.contract import CUDA
    from ...machine.cpu import Cpu
    from ...machine.limits.peak import Peak, peak

    if model.device:
        target = model.metadata.target
        return Peak(target["flops"], target["bandwidth"]) if model.device == CUDA else None
    tell("measuring the peak of the machine, unless it is known")
    try:
        return peak(Cpu.detect())
    except MeasureError as error:
        print(f"no roofline: {error}", file=sys.stderr)
        return None


def _print_run(document: Mapping[str, Any], by: str = "kernel") -> None:
    """Prints the document of a run as tables. `by` says what the lines of a profile are."""
    specs = document["outputs"].items()
    rows = [[name, "x".join(map(str, spec["shape"])), spec["dtype"]] for name, spec in specs]
    output.table(["output", "shape", "type"], rows)
    print(f"\n{output.seconds(document['seconds'])}")
    if "services" in document:
        print()
        name = document["artifact"]
        print_services([(name, service) for service in document["services"]], document["load"]["disturbed"])
    if "profile" in document:
        print()
        if by == "layer":
            _print_layers(document["profile"])
        else:
            _print_kernels(document["profile"])


def _print_layers(profile: Mapping[str, Any]) -> None:
    """Prints the time of the layers that are computed together, and by which kernels."""
    if not profile["layers"]:
        print("its layers are not known: an earlier version made this model; tune or compile it again")
        return

    rows = [
        [
            _label(each["layers"]) or _shortened(each["kernels"][0]),
            output.seconds(each["seconds"]),
            _share(each["seconds"], profile),
            ", ".join(map(_shortened, each["kernels"])),
        ]
        for each in profile["layers"]
    ]
    outside = max(0.0, profile["seconds"] - sum(each["seconds"] for each in profile["layers"]))
    rows.append(["outside of kernels", output.seconds(outside), _share(outside, profile), ""])
    title = f"an execution takes {output.seconds(profile['seconds'])}"
    output.table(["layers", "together", "share", "kernels"], rows, title, spare=("kernels",))


def _print_kernels(profile: Mapping[str, Any]) -> None:
    """Prints the time of each kernel. They are called after their layers, as far as these are known."""
    from ...report.kernels import place_in_roofline

    def row(name: str, seconds: float, calls: str = "", fraction: str = "", kernel: str = "") -> list[str]:
        return [name, calls, output.seconds(seconds), _share(seconds, profile), fraction, kernel]

    rows, limits, above = [], profile["limits"], []
    for kernel in profile["kernels"]:
        fraction, seconds, name = "", kernel["seconds"], _shortened(kernel["name"])
        if limits and kernel["flops"] is not None:
            place = place_in_roofline(kernel["flops"], kernel["bytes"], seconds / kernel["calls"], limits)
            fraction = f"{place.fraction:.0%}"
            above.append(place.fraction > 1.005)
        if kernel["flops"] is None and kernel["bytes"] is not None:  # a copy for a part that onnxruntime runs
            name = f"{name} ({kernel['bytes']:,} bytes)"
        rows.append(row(_label(kernel["layers"]) or name, seconds, str(kernel["calls"]), fraction, name))
    rows += [row("outside of kernels", profile["outside"]), row("moving data only", profile["moving"])]
    headings = ["layers", "calls", "together", "share", "of its roofline", "kernel"]
    output.table(headings, rows, f"an execution takes {output.seconds(profile['seconds'])}", spare=("kernel",))
    if any(above):
        output.line(
            "above 100%: its arrays stay in the caches, or it takes fewer operations than are counted (Winograd)"
        )
    if limits and not limits["undisturbed"]:
        output.line(
            'the true shares "of its roofline" are lower: something else used the machine while its peak was measured '
            "(stormdrop doctor --refresh measures it again, on a quieter machine)"
        )


def _label(layers: Sequence[str]) -> str:
    from ...report.layer_label import layer_label

    return layer_label(layers, _LONGEST_LABEL)


def _share(seconds: float, profile: Mapping[str, Any]) -> str:
    return f"{seconds / profile['seconds']:.1%}"


def _shortened(kernel: str) -> str:
    # A layer of a quantised model is called after its dozens of operators. The JSON document has the whole names.
    return kernel if len(kernel) <= _LONGEST_NAME else f"{kernel[: _LONGEST_NAME - 1]}…"


def _feeds(
    model: CompiledModel, path: Path | None, size: Mapping[str, tuple[int, ...]], seed: int
) -> Mapping[str, Any]:
    """The inputs from a file, or random ones that the model takes, of the first size that has the shapes in `size`.

    Raises:
        InputError: The file is no .npz, or the model has no such size.
    """
    from ...model.inputs.samples import sample_feeds

    if path is None:
        return sample_feeds(model.metadata_at(size), seed)
    return arrays.read(path)
