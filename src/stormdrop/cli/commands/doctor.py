"""`stormdrop doctor`."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..._version import __version__
from .. import output
from ..extras import Extra, extras
from ..options import JsonOption
from ..status_line import telling

if TYPE_CHECKING:
    from ...machine.limits.unit_rates import UnitRate

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime", "openvino", "torch")


def doctor(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure the limits again, even if they are known.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what this machine offers: cores, vectors, caches, measured limits, versions."""
    with output.stdout_for_json(as_json), telling("this machine", "loading TVM") as tell:
        from ...machine.cpu import Cpu
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

        target = Cpu.detect()
        unless_known = "" if refresh else ", unless it is known"
        tell(f"measuring its peak{unless_known}")
        limits = peak(target, refresh=refresh)
        tell(f"measuring its arithmetic units{unless_known}")
        units = unit_rates(target, refresh=refresh)
        tell(f"measuring its memory and caches{unless_known}")
        memory = memory_rates(target, refresh=refresh)
        tell("importing the packages of the extras")
        document: dict[str, Any] = {
            "cpu": target.cpu,
            "target": target.mcpu,
            "cores": target.cores,
            "lanes": target.lanes,
            "registers": target.registers,
            "caches": {"l1": target.l1, "l2": target.l2, "l3": target.l3},
            "peak": asdict(limits),
            "memory": asdict(memory),
            "units": [_unit(rate) for rate in units],
            "opencl": [{**asdict(info), "target": info.target} for info in opencl_devices()],
            "gpus": [{**asdict(gpu), "target": target_name(gpu)} for gpu in visible_gpus()],
            "other_targets": [*KNOWN_CPUS, *(f"cuda/{name}" for name in GPUS)],
            "python": platform.python_version(),
            "versions": {"stormdrop": __version__, **{name: _version(name) for name in _PACKAGES}},
            "database": str(default_path()),
            "plugins": [plugin_status(plugin) for plugin in everything()],
            "extras": [_extra(extra) for extra in extras()],
        }
    if as_json:
        output.emit(document)
    else:
        _print_doctor(document)


def _print_doctor(document: Mapping[str, Any]) -> None:
    """Prints the document of a machine, a line for each of its parts."""
    output.pairs(_rows(document))
    disturbed = {
        "peak and bandwidth were measured: they are higher": document["peak"]["undisturbed"],
        "its memory was measured: it is faster": document["memory"]["undisturbed"],
        "its units were measured: some are faster": all(unit["undisturbed"] for unit in document["units"]),
    }
    for what, undisturbed in disturbed.items():
        if not undisturbed:
            output.line(f"something else used the machine while {what} than shown")
    if not all(disturbed.values()):
        output.line("on a quieter machine, stormdrop doctor --refresh finds the true figures")


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    limits, memory = document["peak"], document["memory"]
    caches = (f"{name.upper()} {output.size(size)}" for name, size in document["caches"].items())
    yield "CPU", document["cpu"]
    yield "compiled for", document["target"]
    yield "cores", str(document["cores"])
    yield "vectors", f"{document['registers']} registers of {document['lanes']} float32"
    yield "data caches", ", ".join(caches)
    yield "caches hold", f"{memory['cached'] / 2**20:.0f} MiB in all, by the rate of reading"
    yield "peak", f"{limits['flops'] / 1e9:.0f} GFLOP/s (float32 multiply-adds in registers, all cores)"
    yield "bandwidth", f"{limits['bandwidth'] / 1e9:.1f} GB/s (copy, bytes read plus written, all cores)"
    yield "memory", _memory_line(memory)
    for unit in document["units"]:
        yield f"unit {unit['name']}", _unit_line(unit)
    for info in document["opencl"]:
        yield f"OpenCL {info['number']}", f"{info['name']} ({info['target']}), {info['platform']}, {info['driver']}"
    for gpu in document["gpus"]:
        clocks = f"{gpu['clock']} MHz, memory {gpu['memory']} MHz, {gpu['watts']} W, driver {gpu['driver']}"
        yield f"GPU {gpu['number']}", f"{gpu['name']} ({gpu['target'] or 'no target'}), {clocks}"
    if not document["gpus"]:
        yield "GPUs", "none; kernels for --target cuda/NAME are built and checked, but not measured"
    yield "other targets", f"{', '.join(document['other_targets'])} (measured with --runner)"
    yield "Python", document["python"]
    for name, version in document["versions"].items():
        yield name, version or "not installed"
    yield "database", document["database"]
    for each in document["plugins"]:
        yield f"plug-in {each['name']}", f"{each['group']}, of {each['package']}: {each['error'] or 'loads'}"
    for each in document["extras"]:
        yield f"extra {each['name']}", str(Extra(each["name"], each["packages"], each["error"]))


def _extra(extra: Extra) -> dict[str, Any]:
    """An extra of this package in the document of `doctor`."""
    loads = extra.installed and extra.error is None
    return {**asdict(extra), "installed": extra.installed, "loads": loads}


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


def _unit_line(unit: Mapping[str, Any]) -> str:
    """A unit of this machine in one line."""
    speed = f": {unit['rate'] / 1e9:.0f} Gop/s, {unit['times_float32']:.1f} times float32" if unit["rate"] else ""
    return f"{unit['operands']} into {unit['sums']}{speed}; {unit['reason'] or 'kernels use it'}"


def _memory_line(memory: Mapping[str, Any]) -> str:
    """How fast arrays in memory are read, in one line."""
    huge = f" ({memory['huge_pages'] / 1e9:.1f} from huge pages)" if memory["huge_pages"] else ""
    return f"read at {memory['read'][-1] / 1e9:.1f} GB/s{huge}, {1e9 * memory['latency']:.0f} ns for a load by itself"


def _version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
