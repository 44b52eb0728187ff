"""The function that calls kernels one after the other, with arguments that were prepared before.

    steps:  kernel, arguments, how many          one entry of 24 bytes for each call
            kernel, arguments, how many

It is a dozen instructions of LLVM's. A loop in Python would take as long for each call as a small kernel.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...machine.process.scratch import scratch_folder

SYMBOL = "stormdrop_run_steps"
"""The name of the function. It takes the address of the first entry and the number of entries."""

ENTRY_BYTES = 24

_CODE = f"""
declare i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)

define i32 @__tvm_ffi_{SYMBOL}(ptr %self, ptr %arguments, i32 %count, ptr %result) {{
entry:
  %ignored = alloca [16 x i8], align 16
  %at_first = getelementptr i8, ptr %arguments, i64 8
  %first = load ptr, ptr %at_first
  %at_steps = getelementptr i8, ptr %arguments, i64 24
  %steps = load i64, ptr %at_steps
  %end = getelementptr [{ENTRY_BYTES} x i8], ptr %first, i64 %steps
  br label %more
more:
  %step = phi ptr [ %first, %entry ], [ %next, %called ]
  %done = icmp eq ptr %step, %end
  br i1 %done, label %all, label %call
call:
  %kernel = load ptr, ptr %step
  %at_values = getelementptr i8, ptr %step, i64 8
  %values = load ptr, ptr %at_values
  %at_number = getelementptr i8, ptr %step, i64 16
  %number = load i32, ptr %at_number
  store [16 x i8] zeroinitializer, ptr %ignored
  %status = call i32 @TVMFFIFunctionCall(ptr %kernel, ptr %values, i32 %number, ptr %ignored)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %fail, label %called
called:
  %next = getelementptr i8, ptr %step, i64 {ENTRY_BYTES}
  br label %more
fail:
  ret i32 -1
all:
  ret i32 0
}}
"""


def function_of(modules: Iterable[Any], name: str) -> Any:
    """The function of this name in one of several modules.

    Args:
        modules: TVM's modules.
        name: The name.

    Raises:
        LookupError: No module has it.
    """
    for module in modules:
        with suppress(AttributeError):  # a module of bitcode knows its functions only when it is asked for one
            return module.get_function(name)
    raise LookupError(f"no module has the function {name}")


def run_steps_of(modules: Iterable[Any]) -> Any:
    """The function of one of these modules, if a library has it; else that of this process."""
    try:
        return function_of((module for module in modules if module.kind == "library"), SYMBOL)
    except LookupError:
        with _LOCK:
            return _here()


_LOCK = threading.Lock()


@functools.cache
def _here() -> Any:
    # LLVM wants to be told how the machine lays out data, and any module of its says it.
    nothing = tirx.PrimFunc([], tirx.Evaluate(0)).with_attr("global_symbol", "nothing")
    text = tirx.build(tvm.IRModule({"nothing": nothing}), "llvm").inspect_source("ll")
    layout = "\n".join(re.findall("^target .*$", text, re.MULTILINE))
    with scratch_folder() as folder:
        file = Path(folder) / "run_steps.ll"
        file.write_text(layout + "\n" + _CODE)
        return tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")(str(file), "ll")[SYMBOL]
