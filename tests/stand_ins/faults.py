"""Sketches whose candidates fail on purpose. A measurer and a tuning session must survive all of them.

    Plain                the simplest schedule: parallel rows and tiled columns
    ChosenFaults(inner)  the space of `inner` and one more knob, `fault`, which names what goes wrong
    RandomFaults(inner)  the space of `inner`, in which a share of the points fails, each always in the same way

They are for tests only: some of them end the process that applies or runs them.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.tirx import PrimFunc

from stormdrop.ir.stages import shape_of
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.contract import Sketch, Variant
from stormdrop.space import Categorical, Ordinal, Space
from stormdrop.trial import Status

FAULTS: Mapping[str, Status] = {
    "raise": Status.INSTANTIATION,
    "segfault_apply": Status.INSTANTIATION,
    "abort_apply": Status.INSTANTIATION,
    "exit_apply": Status.INSTANTIATION,
    "memory_apply": Status.INSTANTIATION,
    "garbage_apply": Status.INSTANTIATION,
    "hang_build": Status.BUILD_TIMEOUT,
    "print_apply": Status.BUILD_TIMEOUT,
    "fork_apply": Status.BUILD_TIMEOUT,
    "uncompilable": Status.COMPILE_HOST,
    "segfault_run": Status.RUNTIME,
    "abort_run": Status.RUNTIME,
    "kill_run": Status.RUNTIME,
    "exit_run": Status.RUNTIME,
    "memory_run": Status.RUNTIME,
    "hang_run": Status.RUN_TIMEOUT,
    "wrong": Status.WRONG_ANSWER,
    "unwritten": Status.WRONG_ANSWER,
    "overwrites_input": Status.WRONG_ANSWER,
    "overwrites_input_later": Status.WRONG_ANSWER,
    "wrong_later": Status.WRONG_ANSWER,
    "writes_before": Status.WRONG_ANSWER,
    "writes_after": Status.WRONG_ANSWER,
}
"""The name of each fault, and the status under which a measurer must report it.

    garbage_apply            writes bytes to the worker's pipe that are no message
    print_apply              prints without end
    fork_apply               starts other processes, and hangs
    overwrites_input_later   writes to an input after it was read, so that the first output is right
    wrong_later              is right at the first execution only
    writes_before, _after    writes to the memory before and after its output

Reads out of bounds cannot be recognised, unless they end the process or change the output.
"""

SUBTLE_FAULTS: Mapping[str, Status] = {
    "low_precision": Status.WRONG_ANSWER,
    "wrong_large": Status.WRONG_ANSWER,
}
"""Faults that small integers do not show: the output has the 8 bits of bfloat16, or none of its elements exceeds 4096.

A measurer need report them only for a candidate that may win.
"""

HARMLESS = ("none", "sleep_run")
"""What is no fault: nothing, and to sleep for two seconds in each execution."""

_LARGE = 4096.0
_FORKS = 20

_EXTERNAL_CALLS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "segfault_run": ("raise", (int(signal.SIGSEGV),)),
    "abort_run": ("abort", ()),
    "kill_run": ("raise", (9,)),
    "exit_run": ("_exit", (3,)),
    "hang_run": ("sleep", (3600,)),
    "sleep_run": ("sleep", (2,)),
}


@dataclass(frozen=True)
class Plain:
    """A sketch for functions of one stage: parallel rows and tiled columns. Its only knob is `tile`."""

    name: str = "plain"
    max_error: float = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        if len(workload.graph.stages) != 1 or len(workload.graph.stages[0].spatial) < 2:
            return None
        return Space(self.name, [Ordinal("tile", (1, 2, 4, 8, 16, 32))])

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        schedule = Schedule(workload.function)
        (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
        rows, columns = schedule.get_loops(block)[:2]
        schedule.split(columns, [None, config["tile"]])
        schedule.parallel(rows)
        return Variant(schedule.mod["main"])


@dataclass(frozen=True)
class ChosenFaults:
    """Another sketch with one more knob, `fault`: one of `HARMLESS`, or a key of `FAULTS` or `SUBTLE_FAULTS`.

    Args:
        inner: The other sketch.
    """

    inner: Sketch[Cpu]
    name: str = "chosen_faults"
    max_error: float = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        space = self.inner.space(workload, target)
        if space is None:
            return None
        knobs = [*space.knobs, Categorical("fault", (*HARMLESS, *FAULTS, *SUBTLE_FAULTS))]
        origin = {**space.config(space.origin), "fault": "none"}
        return Space(self.name, knobs, space.constraints, origin)

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        rest = {name: value for name, value in config.items() if name != "fault"}
        return _apply(self.inner, workload, target, rest, config["fault"])


@dataclass(frozen=True)
class RandomFaults:
    """Another sketch, some of whose points fail.

    Args:
        inner: The other sketch.
        share: The share of points that fail, from 0 to 1.
        kinds: The faults that occur, as keys of `FAULTS`. By default all.
    """

    inner: Sketch[Cpu]
    share: float = 0.1
    kinds: tuple[str, ...] = tuple(FAULTS)
    name: str = "random_faults"
    max_error: float = 0.0

    def space(self, workload: Workload, target: Cpu) -> Space | None:
        space = self.inner.space(workload, target)
        if space is None:
            return None
        return Space(self.name, space.knobs, space.constraints, space.config(space.origin), revision=space.revision)

    def fault(self, config: Mapping[str, Any]) -> str:
        """What goes wrong at a configuration: a key of `FAULTS`, or "none". It depends on the configuration only."""
        text = json.dumps(dict(config), sort_keys=True, default=str)
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        if number % 10_000 >= self.share * 10_000:
            return "none"
        return self.kinds[number // 10_000 % len(self.kinds)]

    def apply(self, workload: Workload, target: Cpu, config: Mapping[str, Any]) -> Variant:
        return _apply(self.inner, workload, target, config, self.fault(config))


def _apply(sketch: Sketch[Cpu], workload: Workload, target: Cpu, config: Mapping[str, Any], fault: str) -> Variant:
    if fault == "raise":
        raise RuntimeError("this candidate raises on purpose")
    if fault == "segfault_apply":
        ctypes.string_at(0)
    if fault == "abort_apply":
        os.abort()
    if fault == "exit_apply":
        os._exit(3)
    if fault == "memory_apply":
        bytearray(1 << 60)
    if fault == "garbage_apply":
        for entry in Path("/dev/fd").iterdir():
            _write_to_socket(int(entry.name), b"this is no message")
        fault = "none"  # what follows is well, so the candidate fails only if the bytes have reached the measurer
    if fault == "fork_apply" and any(os.fork() == 0 for _ in range(_FORKS)):
        time.sleep(3600)  # in the children
    while fault in {"hang_build", "print_apply", "fork_apply"}:
        if fault == "print_apply":
            os.write(1, b"again and again\n" * 4096)
    variant = sketch.apply(workload, target, config)
    return Variant(_spoil(variant.main, fault), variant.transforms)


def _write_to_socket(descriptor: int, data: bytes) -> None:
    try:
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:  # it was open only while the folder was read
        return
    if is_socket:
        os.write(descriptor, data)


def _spoil(function: PrimFunc, fault: str) -> PrimFunc:
    """The function with a statement before, after or instead of its own statements."""
    if fault == "none":
        return function
    root = function.body.block
    output = function.params[-1]
    if fault in _EXTERNAL_CALLS:
        name, arguments = _EXTERNAL_CALLS[fault]
        call = tirx.Evaluate(tirx.call_extern("int32", name, *arguments))
        body = tirx.SeqStmt([call, root.body])
    elif fault == "uncompilable":
        body = tirx.SeqStmt([_store(output, tirx.decl_buffer((1,), "float32", "undefined")[0]), root.body])
    elif fault == "low_precision":
        body = tirx.SeqStmt([root.body, _for_each(output, _in_bfloat16)])
    elif fault == "wrong_large":
        least = lambda value: prim.Min(value, tirx.const(_LARGE, "float32"))  # noqa: E731
        body = tirx.SeqStmt([root.body, _for_each(output, least)])
    elif fault == "wrong_later":
        # The system returns the value of the last call, which no other code makes.
        later = prim.EQ(tirx.call_extern("int32", "umask", 63), tirx.const(63, "int32"))
        first = (0,) * len(shape_of(output))
        added = tirx.Select(later, tirx.const(1.0, "float32"), tirx.const(0.0, "float32"))
        body = tirx.SeqStmt([root.body, tirx.BufferStore(output, output[first] + added, list(first))])
    elif fault in {"writes_before", "writes_after"}:
        outside = -1 if fault == "writes_before" else shape_of(output)[0]
        stored = tirx.const(54321.0, "float32")
        rest = [0] * (len(shape_of(output)) - 1)
        body = tirx.SeqStmt([root.body, tirx.BufferStore(output, stored, [outside, *rest])])
    elif fault == "overwrites_input_later":
        body = tirx.SeqStmt([root.body, _store(function.params[0], 54321.0)])
    elif fault == "wrong":
        body = tirx.SeqStmt([root.body, _store(output, 12345.0)])
    elif fault == "unwritten":
        body = tirx.Evaluate(0)
    elif fault == "overwrites_input":
        first = function.params[0]
        body = tirx.SeqStmt([_store(first, 54321.0), root.body])
    elif fault == "memory_run":
        last = (1 << 44) - 1
        huge = tirx.decl_buffer((tirx.const(last + 1, "int64"),), "float32", "huge")
        # The first and the last element are written, because memory that is not touched would not be allocated.
        ends = [tirx.BufferStore(huge, tirx.const(1.0, "float32"), [tirx.const(index, "int64")]) for index in (0, last)]
        body = tirx.SeqStmt([*ends, root.body])
    else:
        raise ValueError(f"unknown fault {fault!r}")
    allocated = [*root.alloc_buffers, *([huge] if fault == "memory_run" else [])]
    block = SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, allocated, root.match_buffers
    )
    realize = SBlockRealize(function.body.iter_values, function.body.predicate, block)
    spoilt: PrimFunc = function.with_body(realize)
    return spoilt


def _store(buffer: Any, value: Any) -> Any:
    stored = tirx.const(value, "float32") if isinstance(value, float) else value
    return tirx.BufferStore(buffer, stored, [0] * len(shape_of(buffer)))


def _for_each(buffer: Any, change: Callable[[Any], Any]) -> Any:
    """Loops that change every element of a buffer."""
    variables = [tirx.Var(f"f{axis}", "int32") for axis in range(len(shape_of(buffer)))]
    body = tirx.BufferStore(buffer, change(buffer[tuple(variables)]), variables)
    for variable, extent in reversed(list(zip(variables, shape_of(buffer), strict=True))):
        body = tirx.For(variable, 0, extent, tirx.ForKind.SERIAL, body)
    return body


def _in_bfloat16(value: Any) -> Any:
    bits: Any = tirx.reinterpret("uint32", value)
    return tirx.reinterpret("float32", bits & tirx.const(0xFFFF0000, "uint32"))
