"""A program as tables in C, which the runtime walks through.

static const int64_t shape_0[] = {1, 16, 16, 1};       a shape, and how far neighbours are apart
static const sd_view views_0[] = {...};                the views of a size
extern int __tvm_ffi_add(...);                         a kernel, which is in one of the object files
static const sd_step steps_0[] = {...};                the steps of a size
const sd_program sd_the_program = {...};
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ...errors import ArtifactError, shown
from ...runtime.program import ALIGNMENT, Program, SizeProgram, Step, View, bits_of, bytes_of
from ...runtime.sizes import OPEN, TensorInfo

PIECE = 1 << 20
"""Bytes of constants that have a digest of their own: `SD_PIECE` of program.h."""

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_MEMORIES = {"input": "SD_INPUT", "output": "SD_OUTPUT", "storage": "SD_STORAGE", "constant": "SD_CONSTANT"}
_KINDS = {"kernel": "SD_KERNEL", "part": "SD_PART", "copy": "SD_COPY"}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def source_of(
    program: Program,
    *,
    name: str,
    features: Sequence[str],
    units: Sequence[str],
    constants_digests: Sequence[str],
    keep_denormals: bool,
    anywhere: Sequence[str] = (),
    needs_tvm: bool = False,
) -> str:
    """Writes a program in C.

    Args:
        program: The program.
        name: The name of the model, for messages.
        features: The instruction set extensions that its kernels may use, by LLVM's names.
        units: Those of them that the operating system has to permit are among these.
        constants_digests: The SHA-256 of each `PIECE` bytes of the constants, in hexadecimal digits.
        keep_denormals: Whether its kernels compute with denormals.
        anywhere: The inputs that may begin at any element, by name.
        needs_tvm: Whether a kernel calls a function of TVM: the library then runs only where TVM is.

    Returns:
        The content of the file.

    Raises:
        ArtifactError: The name of a kernel is none in C.
    """
    for kernel in program.kernels:
        if not _IDENTIFIER.fullmatch(kernel):
            raise ArtifactError(f"{shown(name)}: {shown(kernel)!r} is no name of a kernel in C")
    shapes = _Shapes()
    sizes = [_Size(program, size, index, shapes) for index, size in enumerate(program.all_sizes)]
    inputs = program.sizes[0].inputs if program.sizes else ()
    alignments = [np.dtype(_numpy(each.dtype)).itemsize if each.name in anywhere else ALIGNMENT for each in inputs]
    opened = any(OPEN in view.shape for size in program.sizes for view in size.views)
    parts = opened or any(step.kind == "part" for size in program.sizes for step in size.steps)
    fields = {
        "name": _text(name),
        "sizes": "sizes",
        "alignments": "alignments",
        "size_count": len(sizes),
        "listed_count": len(program.sizes),
        "input_count": len(inputs),
        "output_count": len(program.sizes[0].outputs) if program.sizes else 0,
        "parts": _boolean(parts),
        "keep_denormals": _boolean(keep_denormals),
        "needs_tvm": _boolean(needs_tvm),
        "constants_bytes": f"{program.constant_bytes}u",
        "constants_digests": "digests",
        "features": "features",
        "units": "units",
    }
    return "\n".join(
        [
            '#include "program.h"',
            "",
            f'_Static_assert(SD_PIECE == {PIECE}, "another size of pieces");',
            *(
                f"extern int __tvm_ffi_{kernel}(void *, const sd_any *, int32_t, sd_any *);"
                for kernel in program.kernels
            ),
            *shapes.lines,
            *itertools.chain.from_iterable(size.lines for size in sizes),
            _table("sd_size", "sizes", (_struct(size.fields) for size in sizes)),
            _table("uint8_t", "alignments", map(str, alignments)),
            _table("char *const", "digests", map(_text, constants_digests)),
            _table("char *const", "features", [*map(_text, features), "0"]),
            _table("char *const", "units", [*map(_text, units), "0"]),
            f"const sd_program sd_the_program = {_struct(fields)};",
            "",
        ]
    )


class _Shapes:
    """The shapes of all tensors, and their strides. Equal ones are one.

    Attributes:
        lines: What defines them.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[tuple[int, ...], str] = {}

    def of(self, shape: tuple[int, ...]) -> str:
        """The name of a shape; its strides follow it there."""
        if shape not in self._known:
            self._known[shape] = name = f"shape_{len(self._known)}"
            strides = itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1) if shape else ()
            self.lines.append(_table("int64_t", name, map(str, [*shape, *reversed(tuple(strides))])))
        return self._known[shape]


class _Size:
    """The tables of a size.

    Attributes:
        lines: What defines them.
        fields: Of its `sd_size`.
    """

    def __init__(self, program: Program, size: SizeProgram, index: int, shapes: _Shapes) -> None:
        self._shapes = shapes
        arguments: list[int] = []
        steps = []
        for step in size.steps:
            steps.append(_struct(_step(step, f"arguments_{index} + {len(arguments)}")))
            arguments.extend(step.arguments)
        callers = [at for at, view in enumerate(size.views) if view.memory in ("input", "output")]
        callers = [at for at in callers if OPEN not in size.views[at].shape]
        *blocks, storage_bytes = size.block_offsets
        tables = {
            "inputs": ("stormdrop_tensor", [self._tensor(info) for info in size.inputs]),
            "outputs": ("stormdrop_tensor", [self._tensor(info, at) for at, info in enumerate(size.outputs)]),
            "storage": ("uint64_t", [f"{block}u" for block in blocks]),
            "views": ("sd_view", [self._view(program, view) for view in size.views]),
            "callers": ("int32_t", [*map(str, callers), "-1"]),
            "arguments": ("int32_t", list(map(str, arguments))),
            "steps": ("sd_step", steps),
        }
        self.lines = [_table(kind, f"{name}_{index}", rows) for name, (kind, rows) in tables.items()]
        self.fields = {name: f"{name}_{index}" for name in tables if name != "arguments"} | {
            "storage_bytes": f"{storage_bytes}u",
            "view_count": len(size.views),
            "step_count": len(size.steps),
            "argument_count": len(arguments),
        }

    def _tensor(self, info: TensorInfo, output: int = -1) -> str:
        return self._described(info.shape, info.dtype, _text(info.name), output)

    def _described(self, shape: tuple[int, ...], dtype: str, name: str, output: int) -> str:
        size = 0 if OPEN in shape else bytes_of(shape, dtype)
        fields = {"name": name, "type": _text(dtype), "shape": self._shapes.of(shape), "rank": len(shape)}
        return _struct(fields | {"output": output, "bytes": f"{size}u"})

    def _view(self, program: Program, view: View) -> str:
        offset, index = view.offset, view.index
        if view.memory == "constant":
            offset += program.constants[index].offset
        output = index if view.memory == "output" else -1
        return _struct(
            {
                "tensor": self._described(view.shape, view.dtype, "0", output),
                "strides": f"{self._shapes.of(view.shape)} + {len(view.shape)}",
                "offset": f"{offset}u",
                "index": index,
                "memory": _MEMORIES[view.memory],
                "code": _CODES[view.dtype.rstrip("0123456789")],
                "bits": bits_of(view.dtype),
            }
        )


def _step(step: Step, arguments: str) -> dict[str, object]:
    return {
        "name": _text(step.symbol),
        "kernel": f"__tvm_ffi_{step.name}" if step.kind == "kernel" else 0,
        "arguments": arguments,
        "reads": len(step.reads),
        "writes": len(step.writes),
        "part": int(step.name) if step.kind == "part" else -1,
        "kind": _KINDS[step.kind],
    }


def _numpy(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


def _table(kind: str, name: str, rows: Iterable[str]) -> str:
    return f"static const {kind} {name}[] = {{{', '.join(rows) or '0'}}};"


def _struct(fields: Mapping[str, object]) -> str:
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _text(text: str) -> str:
    """A string in C: each byte that is no plain letter or digit as three octal digits."""
    plain = (
        chr(byte) if (chr(byte).isalnum() and byte < 128) or byte in b" ._-/:" else f"\\{byte:03o}"
        for byte in text.encode()
    )
    return '"' + "".join(plain) + '"'
