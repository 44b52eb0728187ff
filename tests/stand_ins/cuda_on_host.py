"""Executes the generated CUDA source on this machine's cores: g++ compiles it with a header of ours.

`cuda_on_host.h` has the threads of a block, barriers, shuffles of a warp, half precision and the fragments of tensor
cores, `ptx_on_host.h` the instructions that `inline_ptx` knows; they say what they do not model. ThreadSanitizer finds
data races of a block, AddressSanitizer accesses out of bounds. So this covers what OpenCL cannot show, in the very
source that `nvcc` would get.
"""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.tirx import PrimFunc

from stand_ins.inline_ptx import without_asm
from stand_ins.opencl_execution import Execution
from stormdrop.codegen.cuda import cuda_source
from stormdrop.codegen.gpu_lowering import KernelLaunch, argument_bytes, launches_of, lower_for_gpu
from stormdrop.errors import MeasureError
from stormdrop.ir.stages import shape_of
from stormdrop.machine.gpu import Gpu
from stormdrop.machine.process.scratch import scratch_folder

Array = NDArray[Any]

SANITIZERS = ("thread", "address")
"""The sanitizers of g++ that find what a fault on a GPU would do."""

UNWRITTEN = 77
"""What each element of an output is before a kernel writes it."""

_HEADER = Path(__file__).with_name("cuda_on_host.h")
_OPTIONS = ("-std=c++20", "-O1", "-g", "-fno-strict-aliasing", "-pthread", "-w")
_ALSO = {"address": ("-fsanitize=alignment", "-fno-sanitize-recover=alignment")}  # of vectors, which a GPU needs
_CONFLICTS = "bank conflicts"  # a file
_SECONDS = 600.0  # of compiling one kernel, at most
_ANY = "struct host_any { void* data; template <typename T> operator T*() const { return (T*)data; } };"
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\)')
_SHARED_AT_LAUNCH = re.compile(r"extern __shared__ ([^\[]*)\[\];")
_MOST_SHARED = 227 << 10  # bytes that a block can ask for
_KINDS = re.compile(
    r"(?:WARNING|ERROR): (?:Thread|Address)Sanitizer: ([\w-]+(?: [a-z]+)*)|(host fault: [^(]+|misaligned address)"
)


def execute_on_host(
    function: PrimFunc,
    device: Gpu,
    inputs: Sequence[Array],
    sanitizers: Sequence[str] = ("",),
    edit: Callable[[str], str] = lambda source: source,
    blocks: int | None = None,
    seconds: float = 600.0,
) -> tuple[Execution, ...]:
    """Executes a function that was scheduled for an NVIDIA GPU on this machine's cores, once for each sanitizer.

    Args:
        function: The scheduled function.
        device: The GPU.
        inputs: The arrays of its first parameters. The others are outputs.
        sanitizers: Of `SANITIZERS`; an empty name is for none. They work side by side.
        edit: Changes the source before it is compiled, to put in a fault on purpose.
        blocks: The most blocks of the last kernel that are executed: its first, its last, and some evenly in between.
            What the others would write keeps the value `UNWRITTEN`. None for all blocks.
        seconds: The most that an execution may take.

    Returns:
        For each sanitizer the outputs, and what it or the header complained of.

    Raises:
        MeasureError: There is no g++, or it does not compile the source, or this has inline PTX that is not known.
    """
    host, kernels = lower_for_gpu(function, device.tvm())
    names = [str(buffer.name) for buffer in function.params]
    given = dict(zip(names, inputs, strict=False))
    outputs = {
        name: np.full(shape_of(buffer), UNWRITTEN, str(buffer.dtype))
        for name, buffer in zip(names, function.params, strict=True)
        if name not in given
    }
    source = edit(_without_cuda(cuda_source(function, device)))
    launches, sizes = launches_of(host, kernels), argument_bytes(kernels)
    return execute_source_on_host(source, launches, given, outputs, sanitizers, sizes, blocks, seconds)


def execute_source_on_host(
    source: str,
    launches: Sequence[KernelLaunch],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    sanitizers: Sequence[str] = ("",),
    sizes: Mapping[str, int] = MappingProxyType({}),
    blocks: int | None = None,
    seconds: float = 600.0,
) -> tuple[Execution, ...]:
    """Executes CUDA source on this machine's cores, once for each sanitizer.

    Args:
        source: The source that TVM generates.
        launches: How its kernels are launched, with the names of arrays as arguments.
        inputs: The arrays by name.
        outputs: What the outputs are before, by name.
        sanitizers: Of `SANITIZERS`; an empty name is for none. They work side by side.
        sizes: The bytes of other arrays, which one kernel writes and another reads.
        blocks: The most blocks of the last kernel that are executed, as for `execute_on_host`.
        seconds: The most that an execution may take.

    Returns:
        For each sanitizer the outputs, and what it or the header complained of.

    Raises:
        MeasureError: There is no g++, or it does not compile the source, or this has inline PTX that is not known.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise MeasureError("there is no g++ on the PATH")
    arrays = {**inputs, **outputs}
    every = {**sizes, **{name: array.nbytes for name, array in arrays.items()}}
    main = _main(launches, every, outputs, inputs, blocks)
    shared = max(launch.shared for launch in launches)
    program = f'#include "{_HEADER.name}"\n{_for_host(source, shared)}\n{main}'
    headers = [_compiled_header(compiler, sanitizer) for sanitizer in sanitizers]
    with ThreadPoolExecutor() as pool:
        return tuple(
            pool.map(lambda *of: _execute(compiler, program, arrays, tuple(outputs), seconds, *of), sanitizers, headers)
        )


def library_of(source: str, folder: Path) -> Path:
    """A library with the kernels of a CUDA source, for `stand_ins.cuda_driver`.

    Args:
        source: The source that TVM generates.
        folder: Where the library is put.

    Raises:
        MeasureError: There is no g++, or it does not compile the source, or this has inline PTX that is not known.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise MeasureError("there is no g++ on the PATH")
    kernels = {name: parameters.count(",") + 1 for name, parameters in _KERNEL.findall(source)}
    listed = "".join(f"{name} {count}\\n" for name, count in kernels.items())
    lines = [
        f'#include "{_HEADER.name}"',
        _for_host(source),
        _ANY,
        f'extern "C" {{ const char* host_kernels = "{listed}";',
    ]
    for name, count in kernels.items():
        arguments = ", ".join(f"host_any{{a[{position}]}}" for position in range(count))
        launch = f"host_launch({{e[0], e[1], e[2]}}, {{e[3], e[4], e[5]}}, [=] {{ {name}({arguments}); }});"
        lines.append(f"void host_run_{name}(void** a, const int* e) {{ {launch} }}")
    (folder / "kernels.cc").write_text("\n".join([*lines, "}"]))
    _compile(compiler, "", folder, f"-I{_HEADER.parent}", "-shared", "-fPIC", "-o", "kernels.so", "kernels.cc")
    return folder / "kernels.so"


@cache
def _compiled_header(compiler: str, sanitizer: str) -> Path:
    """A folder with the header, compiled once for all programs of this process: that saves two thirds of the time."""
    folder = _headers.enter_context(scratch_folder())
    _compile(compiler, sanitizer, folder, "-x", "c++-header", "-o", f"{_HEADER.name}.gch", str(_HEADER))
    return folder


_headers = ExitStack()
atexit.register(_headers.close)


def _compile(compiler: str, sanitizer: str, folder: Path, *arguments: str) -> None:
    """Raises `MeasureError` with the first error of the compiler."""
    flags = [f"-fsanitize={sanitizer}", *_ALSO.get(sanitizer, ())] if sanitizer else []
    command = [compiler, *_OPTIONS, *flags, *arguments]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if built.returncode != 0:
        lines = [line for line in built.stderr.splitlines() if "error" in line] or ["g++ failed"]
        raise MeasureError(f"g++: {lines[0]}")


def _execute(
    compiler: str,
    program: str,
    arrays: Mapping[str, Array],
    outputs: Sequence[str],
    seconds: float,
    sanitizer: str,
    header: Path,
) -> Execution:
    with scratch_folder() as folder:
        for name, array in arrays.items():
            np.ascontiguousarray(array).tofile(folder / name)
        (folder / "kernels.cc").write_text(program)
        _compile(compiler, sanitizer, folder, f"-I{header}", f"-I{_HEADER.parent}", "-o", "kernels", "kernels.cc")
        try:
            ran = subprocess.run(
                ["./kernels"],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
                env={"TSAN_OPTIONS": "exitcode=0", "ASAN_OPTIONS": "detect_leaks=0"},
            )
        except subprocess.TimeoutExpired:
            return Execution((), f"takes more than {seconds:.0f} s", ())
        found = {(sanitized or fault).strip() for sanitized, fault in _KINDS.findall(ran.stderr)}
        if ran.returncode != 0:
            error = (ran.stderr.strip().splitlines() or ["no message"])[0]
            return Execution((), f"ended with {ran.returncode}: {error}", tuple(sorted(found)))
        results = (
            np.fromfile(folder / f"{name}.out", arrays[name].dtype).reshape(arrays[name].shape) for name in outputs
        )
        conflicts = int(np.fromfile(folder / _CONFLICTS, np.int64)[0])
        return Execution(tuple(results), "", tuple(sorted(found)), conflicts)


def _for_host(source: str, shared: int = _MOST_SHARED) -> str:
    """What g++ compiles instead of a CUDA source.

    Args:
        source: The CUDA source.
        shared: Bytes of shared memory that a launch asks for.
    """
    return without_asm(_SHARED_AT_LAUNCH.sub(rf"static \1[{shared}];", _without_cuda(source)))


def _without_cuda(source: str) -> str:
    """The kernels and their functions, without the headers and definitions before them, which the header replaces."""
    before, kernel, rest = source.partition('extern "C" __global__')
    return before.rpartition("#endif\n")[2] + kernel + rest


def _variable(name: str) -> str:
    """The variable of a buffer; TVM calls partial sums "t0.rf"."""
    return name.replace(".", "_")


def _main(
    launches: Sequence[KernelLaunch],
    sizes: Mapping[str, int],
    outputs: Mapping[str, Array],
    given: Mapping[str, Array],
    blocks: int | None,
) -> str:
    """A program that reads the arguments, launches the kernels, and writes the outputs."""
    lines = [_ANY, "int main() {"]
    for name, size in sizes.items():
        path = f'"{name}"' if name in outputs or name in given else "nullptr"
        lines.append(f"  host_any {_variable(name)}{{host_read({path}, {size})}};")
    for launch in launches:
        grid, block = (", ".join(map(str, extents)) for extents in (launch.groups, launch.items))
        call = f"{launch.kernel}({', '.join(map(_variable, launch.arguments))})"
        most = f", {blocks}" if blocks is not None and launch is launches[-1] else ""
        lines.append(f"  host_launch({{{grid}}}, {{{block}}}, [=] {{ {call}; }}{most});")
    lines += [f'  host_write("{name}.out", {name}.data, {sizes[name]});' for name in outputs]
    lines.append(f'  long conflicts = host_bank_conflicts; host_write("{_CONFLICTS}", &conflicts, sizeof conflicts);')
    return "\n".join([*lines, "}"])
