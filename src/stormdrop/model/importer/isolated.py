"""Imports a model in a child process with bounds on memory and time, because a file may be hostile.

    parent                                            child, with bounds
    import_graph(model, shapes)   -- path, shapes ->  load_graph in its own process
                 values              and values
                                  <- main as JSON --  the module without its constants, or one line that says why not
                                  <- files ---------  the constants, and the model as it was read, without its weights

The constants, and the large weights of the model, stand in files that both processes map: neither of them holds a copy
of its own, and the files of the user that hold weights are not read as a whole.

If several sizes are asked for, the child imports them one after the other, and answers for each. A constant that is
equal in several of them is written once.

A file of 200 bytes may ask for 2**40 elements, for a loop without end, or for recursion that overflows a native stack.
What computes with a model's content (onnx's converter and shape inference, onnxscript's folding, TVM's importer and
passes) therefore runs in the child only. If it crashes, runs out of memory or takes too long, that is one
`ModelError`. The parent never parses the file: it reads what the child has made of it.

The child is no sandbox: it has the rights of its user. What comes back is TVM's own form of the module and its
parameters, written by our code. Only the answer's frame is pickled, and it holds text and numbers alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ...errors import ModelError, one_line, shown
from ...machine.process.child_process import ChildProcess
from ...machine.process.memory import CHILD_SHARE, limit_memory, usable_memory
from ...machine.process.no_torch import hide_torch
from ...machine.process.scratch import scratch_folder
from ...runtime.sizes import TensorInfo
from ..artifact.layers import Layer
from ..artifact.metadata import OnnxruntimePart
from ..inputs.combinations import GivenShapes, Shapes, all_shapes
from ..inputs.inputs import Values, dimension_names
from ..onnx.source import read_model, refuse_external_data
from ..onnx.weights import FileState, large_tensors, move_out

if TYPE_CHECKING:
    from ..artifact.constants_file import ConstantsReader, ConstantsWriter
    from ..graph.graph import Graph

IMPORT_SECONDS = 600.0
"""An import that takes longer is ended. One of 1,500 nodes takes 8 to 14 s."""

LOADS = (f"{__package__}.frontend", f"{__package__}.import_onnx", "stormdrop.model.graph.constants")
"""What the child needs besides this module; see `fork_server`."""

_MESSAGE = 500  # characters of a message, at most
_SERVE = f"{__name__}:serve"
_MODULE, _CONSTANTS, _SOURCE, _WEIGHTS = "module.json", "constants.bin", "source.onnx", "weights.bin"


@dataclass(frozen=True)
class _Imported:
    """What the child answers for a size, beside the files that it has written.

    Attributes:
        shapes: The size.
        folder: Where its files are.
        constants: Where its constants begin in the file of all constants, in the order of the parameters.
        layers, calls: The computing nodes of the model, and which of them each call of a kernel computes.
        left: How many further sizes will follow.
    """

    name: str
    shapes: Shapes
    folder: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    constants: tuple[int, ...]
    converted: bool
    ignored: tuple[str, ...]
    foreign: tuple[OnnxruntimePart, ...]
    layers: tuple[Layer, ...]
    calls: tuple[tuple[int, ...], ...]
    left: int


def import_graph(
    model: str | Path | onnx.ModelProto, shapes: GivenShapes | None = None, values: Values | None = None
) -> Graph:
    """Imports an ONNX model in a child process with bounds on memory and time.

    Args:
        model: The path of an ONNX file, or a model in memory.
        shapes: The shapes of inputs whose shape the model leaves open, by input name. In the place of a size there may
            be several; see `combinations`.
        values: The values of inputs that become constants, by input name.

    Raises:
        ModelError: The file cannot be read, a shape is open, an operator is not supported, or the import crashed or
            passed a bound. The message is one line.
        MeasureError: No child process can be started.
    """
    with Importer() as importer:
        return importer.load(model, shapes, values)


class Importer:
    """A child process that imports models, one after the other. It is replaced if it ends.

    Args:
        memory: The most bytes of address space that it may take; by default a share of the usable memory.
        seconds: The most time that the import of a size may take.
    """

    def __init__(self, memory: int | None = None, seconds: float = IMPORT_SECONDS) -> None:
        self._memory = int(CHILD_SHARE * usable_memory()) if memory is None else memory
        self._seconds = seconds
        self._child: ChildProcess | None = None

    def load(
        self, model: str | Path | onnx.ModelProto, shapes: GivenShapes | None = None, values: Values | None = None
    ) -> Graph:
        """See `import_graph`."""
        from ..artifact.constants_file import ConstantsReader
        from .together import together

        with scratch_folder() as folder:
            if isinstance(model, onnx.ModelProto):
                name = shown(model.graph.name) or "model"
                file = _saved(name, model, folder)
            else:
                name, file = Path(model).stem, Path(model)
            answers = list(self._answers(name, file, shapes or {}, values or {}, folder))
            constants = ConstantsReader(folder / _CONSTANTS)
            return together([_graph(one, constants) for one in answers])

    def close(self) -> None:
        """Ends the process. Closing twice is harmless."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self, name: str, file: Path, shapes: GivenShapes, values: Values, folder: Path) -> Iterator[_Imported]:
        if self._child is None:
            self._child = ChildProcess(_SERVE, (self._memory,), loads=(__name__,))
        self._child.send((name, str(file), dict(shapes), dict(values), str(folder)))
        left = 1
        while left:
            answer = self._answer(name)
            left = answer.left
            yield answer

    def _answer(self, name: str) -> _Imported:
        assert self._child is not None
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


def _saved(name: str, model: onnx.ModelProto, folder: Path) -> Path:
    """The file that a model in memory was saved to, beside one with its large weights."""
    refuse_external_data(model, name)
    file = folder / "model.onnx"
    try:
        file.write_bytes(move_out(model, folder / "model.bin", relative=True).SerializeToString())
    except Exception as error:
        # Protocol buffers raise several types for a message of 2 GiB and more; the disk may be full.
        raise ModelError(
            f"{name}: cannot be handed to the import: {one_line(error)}; save it with external data and give its path"
        ) from error
    return file


def _graph(imported: _Imported, constants: ConstantsReader) -> Graph:
    """The graph that the child has written."""
    import tvm  # noqa: F401  whose classes the module consists of
    from tvm_ffi.serialization import from_json_graph_str

    from ..artifact.onnxruntime_parts import OnnxruntimeParts
    from ..graph.graph import Graph
    from ..graph.layers import Layers
    from ..graph.onnx_origin import OnnxOrigin
    from ..graph.tasks import extract_tasks

    folder = Path(imported.folder)
    mod = from_json_graph_str((folder / _MODULE).read_text())
    main = mod["main"]
    variables = main.params[len(main.params) - len(imported.constants) :]
    values = {
        variable: constants.read(offset, variable.ty.shape, str(variable.ty.dtype))
        for variable, offset in zip(variables, imported.constants, strict=True)
    }
    mod["main"] = main.bind_params(values)
    layers = Layers(imported.layers, imported.calls)
    source = onnx.load(str(folder / _SOURCE), load_external_data=False)
    weights = large_tensors(source)
    return Graph(
        imported.name,
        mod,
        extract_tasks([mod], [layers]),
        imported.inputs,
        imported.outputs,
        OnnxOrigin(source, weights, FileState.of(source)) if weights else source,
        imported.converted,
        imported.ignored,
        OnnxruntimeParts(imported.foreign, [(folder / part.file).read_bytes() for part in imported.foreign]),
        layers=layers,
    )


# The child's side


def serve(connection: Connection, memory: int) -> None:
    """Imports models in a child process until the pipe closes.

    Args:
        connection: Brings paths and shapes, and takes the answers.
        memory: The most bytes of address space.
    """
    limit_memory(memory)
    hide_torch()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            for answer in _served(*connection.recv()):
                connection.send(answer)
    os._exit(0)  # skips the clean-up of TVM and LLVM, which is not needed


def _served(name: str, path: str, shapes: GivenShapes, values: Values, folder: str) -> Iterator[_Imported | str]:
    """Imports a model at each size and writes it into a folder. Yields one line if it cannot be imported."""
    from ..artifact.constants_file import ConstantsWriter
    from .import_onnx import load_graph

    try:
        sizes = all_shapes(shapes, lambda: dimension_names(read_model(Path(path))), name)
        with ConstantsWriter(Path(folder, _CONSTANTS)) as constants:
            for left, size in reversed(list(enumerate(reversed(sizes)))):
                own = Path(folder, str(left))
                own.mkdir()
                graph = load_graph(path, size, values, name, own / _WEIGHTS)
                yield _written(graph, size, left, own, constants)
    except ModelError as error:
        yield str(error)
    except MemoryError:
        yield f"{name}: its import needs more than a share of {CHILD_SHARE:g} of this machine's memory"
    except OSError as error:
        yield f"{name}: cannot be imported: {one_line(error)}"


def _written(graph: Graph, size: Shapes, left: int, folder: Path, constants: ConstantsWriter) -> _Imported:
    """What the parent has to know of a graph, whose module, source and onnxruntime parts are written to a folder."""
    from tvm_ffi.serialization import to_json_graph_str

    from ..graph.constants import without_constants

    assert isinstance(graph.source, onnx.ModelProto)
    mod, values = without_constants(graph.mod)
    offsets = constants.write(values.values())
    (folder / _MODULE).write_text(to_json_graph_str(mod))
    (folder / _SOURCE).write_bytes(graph.source.SerializeToString())
    for part, model in zip(graph.foreign.reports, graph.foreign.models, strict=True):
        (folder / part.file).write_bytes(model)
    return _Imported(
        graph.name,
        size,
        str(folder),
        graph.inputs,
        graph.outputs,
        offsets,
        graph.converted,
        graph.ignored,
        graph.foreign.reports,
        graph.layers.all,
        graph.layers.calls,
        left,
    )
