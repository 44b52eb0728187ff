"""Imports a model in a child process with bounds on memory and time, because a file may be hostile.

    parent                                            child, with bounds
    import_graph(model, shapes)   -- path, shapes ->  load_graph in its own process
                                  <- main as JSON --  the module without its constants, or one line that says why not
                                  <- a file --------  the constants, as TVM saves parameters

A file of 200 bytes may ask for 2**40 elements, for a loop without end, or for recursion that overflows a native stack.
What computes with a model's content (onnx's converter and shape inference, onnxscript's folding, TVM's importer and
passes) therefore runs in the child only. If it crashes, runs out of memory or takes too long, that is one
`ModelError`. The parent parses the file only after the child has imported it.

The child is no sandbox: it has the rights of its user. What comes back is TVM's own form of the module and its
parameters, written by our code. Only the answer's frame is pickled, and it holds text and numbers alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ...errors import ModelError, one_line, shown
from ...machine.child_process import ChildProcess
from ...machine.memory import CHILD_SHARE, limit_memory, usable_memory
from ...machine.scratch import scratch_folder
from ..metadata import ForeignPart, TensorInfo
from .source import Source, read_source

if TYPE_CHECKING:
    from .graph import Graph

IMPORT_SECONDS = 600.0
"""An import that takes longer is ended. One of 1,500 nodes takes 15 s."""

_MESSAGE = 500  # characters of a message, at most
_SERVE = f"{__name__}:serve"
_MODULE, _CONSTANTS, _SOURCE = "module.json", "constants.bin", "source.onnx"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class _Imported:
    """What the child answers beside the files that it has written."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    constants: int
    converted: bool
    foreign: tuple[ForeignPart, ...]


def import_graph(model: str | Path | onnx.ModelProto, shapes: Shapes | None = None) -> Graph:
    """Import an ONNX model in a child process with bounds on memory and time.

    Args:
        model: The path of an ONNX file, or a model in memory.
        shapes: The shapes of inputs whose shape the model leaves open, by input name.

    Raises:
        ModelError: The file cannot be read, a shape is open, an operator is not supported, or the import crashed or
            passed a bound. The message is one line.
        MeasureError: No child process can be started.
    """
    with Importer() as importer:
        return importer.load(model, shapes)


class Importer:
    """A child process that imports models, one after the other. It is replaced if it ends.

    Args:
        memory: The most bytes of address space that it may take; by default a share of the usable memory.
        seconds: The most time that an import may take.
    """

    def __init__(self, memory: int | None = None, seconds: float = IMPORT_SECONDS) -> None:
        self._memory = int(CHILD_SHARE * usable_memory()) if memory is None else memory
        self._seconds = seconds
        self._child: ChildProcess | None = None

    def load(self, model: str | Path | onnx.ModelProto, shapes: Shapes | None = None) -> Graph:
        """See `import_graph`."""
        with scratch_folder() as folder:
            if isinstance(model, onnx.ModelProto):
                source = read_source(model, shapes)
                imported = self._answer(source.name, _saved(source, folder), True, None, folder)
            else:
                imported = self._answer(Path(model).stem, Path(model), False, shapes, folder)
                source = read_source(model, shapes)
            if imported.converted:
                source = replace(source, model=read_source(folder / _SOURCE).model)
            return _graph(imported, source, folder)

    def close(self) -> None:
        """Ends the process. Closing twice is harmless."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, name: str, file: Path, in_memory: bool, shapes: Shapes | None, folder: Path) -> _Imported:
        if self._child is None:
            self._child = ChildProcess(_SERVE, (self._memory,))
        self._child.send((name, str(file), in_memory, dict(shapes or {}), str(folder)))
        try:
            answer = self._child.answer(self._seconds)
        except TimeoutError:
            self.close()
            raise ModelError(f"{name}: its import takes more than {self._seconds:g} s") from None
        if answer is None:
            how, last = self._child.wait(), self._child.last_line()
            self.close()
            raise ModelError(f"{name}: cannot be imported: the import crashed ({how}): {shown(last)}")
        if not isinstance(answer, _Imported):
            raise ModelError(shown(str(answer), _MESSAGE))
        return answer


def _saved(source: Source, folder: Path) -> Path:
    file = folder / "model.onnx"
    try:
        file.write_bytes(source.model.SerializeToString())
    except Exception as error:
        # Protocol buffers raise several types for a message of 2 GiB and more; the disk may be full.
        raise ModelError(
            f"{source.name}: cannot be handed to the import: {one_line(error)}; save it with external data and give "
            f"its path"
        ) from error
    return file


def _graph(imported: _Imported, source: Source, folder: Path) -> Graph:
    """The graph that the child has written."""
    import tvm

    from ..foreign import ForeignParts
    from .graph import Graph
    from .tasks import extract_tasks

    mod = tvm.ir.load_json((folder / _MODULE).read_text())
    main = mod["main"]
    constants = tvm.runtime.load_param_dict_from_file(str(folder / _CONSTANTS))
    variables = main.params[len(main.params) - imported.constants :]
    mod["main"] = main.bind_params({variable: constants[variable.name] for variable in variables})
    return Graph(
        imported.name,
        mod,
        extract_tasks(mod),
        imported.inputs,
        imported.outputs,
        source.model,
        imported.converted,
        source.ignored,
        ForeignParts(imported.foreign, [(folder / part.file).read_bytes() for part in imported.foreign]),
    )


# The child's side


def serve(connection: Connection, memory: int) -> None:
    """Imports models in a child process until the pipe closes.

    Args:
        connection: Brings paths and shapes, and takes the answers.
        memory: The most bytes of address space.
    """
    limit_memory(memory)
    # If torch is installed, tvm_ffi imports it for conversions that are not made here. That costs 2 s and much memory.
    sys.modules["torch"] = None  # type: ignore[assignment]
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            connection.send(_served(*connection.recv()))
    os._exit(0)  # skips the clean-up of TVM and LLVM, which is not needed


def _served(name: str, path: str, in_memory: bool, shapes: Shapes, folder: str) -> _Imported | str:
    """Imports a model and writes it into a folder. Returns one line if it cannot be imported."""
    from .graph import load_graph

    try:
        graph = load_graph(onnx.load_from_string(Path(path).read_bytes()) if in_memory else path, shapes)
        return _written(graph, Path(folder))
    except ModelError as error:
        return str(error)
    except MemoryError:
        return f"{name}: its import needs more than a share of {CHILD_SHARE:g} of this machine's memory"


def _written(graph: Graph, folder: Path) -> _Imported:
    import tvm

    from .constants import without_constants

    mod, constants = without_constants(graph.mod)
    text = tvm.ir.save_json(mod)
    try:
        (folder / _MODULE).write_text(text)
        tvm.runtime.save_param_dict_to_file(constants, str(folder / _CONSTANTS))
        if graph.converted:
            assert isinstance(graph.source, onnx.ModelProto)  # only an ONNX model is converted
            (folder / _SOURCE).write_bytes(graph.source.SerializeToString())
        for part, model in zip(graph.foreign.reports, graph.foreign.models, strict=True):
            (folder / part.file).write_bytes(model)
    except (OSError, RuntimeError) as error:  # the latter is TVM's
        raise ModelError(f"{graph.name}: its import cannot be written to {folder}: {one_line(error)}") from error
    parts = graph.foreign.reports
    return _Imported(graph.name, graph.inputs, graph.outputs, len(constants), graph.converted, parts)
