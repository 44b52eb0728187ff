"""`run --profile --trace`: the calls of a model's executions as a trace: kernels, copies, threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..layer_label import layer_label
from .trace_file import TraceFile

_KERNELS, _COPIES, _EXECUTIONS = "kernels", "copies", "executions"


def write_profile_trace(
    path: Path, title: str, profile: Mapping[str, Any], calls: Mapping[str, Any], complain: Callable[[str], None]
) -> None:
    """Writes a trace of the executions that a profile was made of.

    The lanes are the executions, their kernels, the copies of tensors between them, and one for each thread. In a
    thread's lane a kernel is as long as the thread was on a core during the kernel. Threads that have nothing left to
    do wait on a core for a while, so that is an upper bound of their work.

    Args:
        path: The file to write.
        title: What was run.
        profile: The document `profile` of `stormdrop run --profile --json`.
        calls: What `model.call_record.CallRecorder.to_json` gives.
        complain: Is called with one line if the file cannot be written to its end.

    Raises:
        InputError: The file cannot be created.
    """
    work = {kernel["name"]: _work(kernel) for kernel in profile["kernels"]}
    file = TraceFile(path, title, complain)
    for lane in (_EXECUTIONS, _KERNELS, _COPIES):
        file.name(lane)
    for number, execution in enumerate(calls["executions"]):
        begin, last = execution[0]["begin"], execution[-1]
        duration = last["begin"] + last["seconds"] - begin
        file.slice(_EXECUTIONS, f"execution {number + 1}", begin, duration, {"calls": len(execution)})
        for call in execution:
            lane = _KERNELS if call["kernel"] else _COPIES
            details = {**_layers(call), **work.get(call["name"], {})}
            file.slice(lane, call["name"], call["begin"], call["seconds"], details)
            if call["kernel"]:
                for thread, seconds in zip(calls["threads"], call["threads"], strict=True):
                    if seconds > 0:
                        on_core = {"seconds on a core": seconds}
                        file.slice(thread, call["name"], call["begin"], min(seconds, call["seconds"]), on_core)
    file.close()


def _work(kernel: Mapping[str, Any]) -> dict[str, Any]:
    known = {"floating-point operations": kernel["flops"], "bytes moved": kernel["bytes"]}
    return {name: value for name, value in known.items() if value is not None}


def _layers(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"layers": layer_label(call["layers"])} if call["layers"] else {}
