"""Imports a model in a child process with bounds on memory and time, because a file may be hostile.

    parent                                            child, with bounds
    import_graph(model, shapes)   -- path, shapes ->  load_graph in its own process
                 values              and values
                                  <- main as JSON --  the module without its constants, or one line that says why not
                                  <- a file --------  the constants, as TVM saves parameters

If several sizes are asked for, the child imports them one after the other, and answers for each. A constant that is
equal in several of them is written once.

A file of 200 bytes may ask for 2**40 elements, for a loop without end, or for recursion that overflows a native stack.
What computes with a model's content (onnx's converter and shape inference, onnxscript's folding, TVM's importer and
passes) therefore runs in the child only. If it crashes, runs out of memory or takes too long, that is one
`ModelError`. The parent parses the file only after the child has imported it.

The child is no sandbox: it has the rights of its user. What comes back is TVM's own form of the module and its
parameters, written by our code. Only the answer's frame is pickled, and it holds text and numbers alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from ...errors import ModelError, one_line, shown
from ...machine.child_process import ChildProcess
from ...machine.memory import CHILD_SHARE, limit_memory, usable_memory
from ...machine.scratch import scratch_folder
from ..metadata import ForeignPart, TensorInfo
from .combinations import GivenShapes, Shapes
from .inputs import Values
from .source import Source, read_source, shapes_of_sizes

if TYPE_CHECKING:
    from .graph import Graph

IMPORT_SECONDS = 600.0
"""An import that takes longer is ended. One of 1,500 nodes takes 8 to 14 s."""

LOADS = tuple(f"{__package__}.{name}" for name in ("constants", "frontend", "graph"))
"""What the child needs besides this module; see `fork_server`."""

_MESSAGE = 500  # characters of a message, at most
_SERVE = f"{__name__}:serve"
_MODULE, _CONSTANTS, _SOURCE = "module.json", "constants.bin", "source.onnx"


@dataclass(frozen=True)
class _Imported:
    """What the child answers for a size, beside the files that it has written.

    Attributes:
        shapes: The size.
        folder: Where its files are.
        constants: The names of its constants in the file of all constants, in the order of the parameters.
        left: How many further sizes will follow.
    """

    name: str
    shapes: Shapes
    folder: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    constants: tuple[str, ...]
    converted: bool
    foreign: tuple[ForeignPart, ...]
    left: int


def import_graph(
    model: str | Path | onnx.ModelProto, shapes: GivenShapes | None = None, values: Values | None = None
) -> Graph:
    """Import an ONNX model in a child process with bounds on memory and time.

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
        from .together import together

        with scratch_folder() as folder:
            if isinstance(model, onnx.ModelProto):
                name, in_memory = shown(model.graph.name) or "model", True
                file = _saved(name, model, folder)
            else:
                name, in_memory, file = Path(model).stem, False, Path(model)
            answers = list(self._answers(name, file, in_memory, shapes or {}, values or {}, folder))
            constants = _constants(folder)
            return together([_graph(one, _source(model, one, values), constants) for one in answers])

    def close(self) -> None:
        """Ends the process. Closing twice is harmless."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Importer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(
        self, name: str, file: Path, in_memory: bool, shapes: GivenShapes, values: Values, folder: Path
    ) -> Iterator[_Imported]:
        if self._child is None:
            self._child = ChildProcess(_SERVE, (self._memory,), loads=(__name__,))
        self._child.send((name, str(file), in_memory, dict(shapes), dict(values), str(folder)))
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
    file = folder / "model.onnx"
    try:
        file.write_bytes(model.SerializeToString())
    except Exception as error:
        # Protocol buffers raise several types for a message of 2 GiB and more; the disk may be full.
        raise ModelError(
            f"{name}: cannot be handed to the import: {one_line(error)}; save it with external data and give its path"
        ) from error
    return file


def _source(model: str | Path | onnx.ModelProto, imported: _Imported, values: Values | None) -> Source:
    """The model as it was read for a size; as it was converted, if its opset is old."""
    source = read_source(model, imported.shapes, values)
    if not imported.converted:
        return source
    return replace(source, model=read_source(Path(imported.folder) / _SOURCE).model)


def _constants(folder: Path) -> Mapping[str, Any]:
    import tvm

    return tvm.runtime.load_param_dict_from_file(str(folder / _CONSTANTS))  # type: ignore[no-any-return]


def _without_elements(kind: Any) -> Any:
    """The constant of a type with no elements."""
    import tvm

    return tvm.runtime.empty([int(extent) for extent in kind.shape], str(kind.dtype))


def _graph(imported: _Imported, source: Source, constants: Mapping[str, Any]) -> Graph:
    """The graph that the child has written."""
    import tvm

    from ..foreign import ForeignParts
    from .graph import Graph
    from .tasks import extract_tasks

    folder = Path(imported.folder)
    mod = tvm.ir.load_json((folder / _MODULE).read_text())
    main = mod["main"]
    variables = main.params[len(main.params) - len(imported.constants) :]
    values = {
        variable: constants[name] if name in constants else _without_elements(variable.ty)
        for variable, name in zip(variables, imported.constants, strict=True)
    }
    mod["main"] = main.bind_params(values)
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
            for answer in _served(*connection.recv()):
                connection.send(answer)
    os._exit(0)  # skips the clean-up of TVM and LLVM, which is not needed


def _served(
    name: str, path: str, in_memory: bool, shapes: GivenShapes, values: Values, folder: str
) -> Iterator[_Imported | str]:
    """Imports a model at each size and writes it into a folder. Yields one line if it cannot be imported."""
    from .graph import load_graph

    try:
        model = onnx.load_from_string(Path(path).read_bytes()) if in_memory else path
        sizes = shapes_of_sizes(model, shapes)
        writer = _Writer(Path(folder), several=len(sizes) > 1)
        for position, size in enumerate(sizes):
            imported = writer.write(load_graph(model, size, values), size, len(sizes) - position - 1)
            if not imported.left:
                writer.close(name)
            yield imported
    except ModelError as error:
        yield str(error)
    except MemoryError:
        yield f"{name}: its import needs more than a share of {CHILD_SHARE:g} of this machine's memory"


@dataclass
class _Writer:
    """Writes the graphs of a model's sizes to a folder, and then the constants of all of them."""

    folder: Path
    several: bool
    constants: dict[str, Any] = field(default_factory=dict)

    def write(self, graph: Graph, size: Shapes, left: int) -> _Imported:
        from .constants import without_constants

        folder = self.folder / str(left)
        mod, values = without_constants(graph.mod)
        # To find out which constants are equal takes time, and is in vain for one size.
        names = tuple(map(_name_of, values.values())) if self.several else tuple(values)
        self.constants |= dict(zip(names, values.values(), strict=True))
        _write_graph(graph, mod, folder)
        parts = graph.foreign.reports
        return _Imported(
            graph.name, size, str(folder), graph.inputs, graph.outputs, names, graph.converted, parts, left
        )

    def close(self, name: str) -> None:
        import tvm

        # TVM cannot read those without elements. Their types stand in the module.
        values = {key: value for key, value in self.constants.items() if 0 not in value.shape}
        try:
            tvm.runtime.save_param_dict_to_file(values, str(self.folder / _CONSTANTS))
        except (OSError, RuntimeError) as error:  # the latter is TVM's
            raise ModelError(f"{name}: its import cannot be written to {self.folder}: {one_line(error)}") from error


def _name_of(constant: Any) -> str:
    """A name for a constant that equal ones have, too."""
    value = constant.numpy()
    digest = hashlib.blake2b(value.tobytes(), digest_size=20)
    return f"{digest.hexdigest()} {constant.dtype} {tuple(value.shape)}"


def _write_graph(graph: Graph, mod: Any, folder: Path) -> None:
    import tvm

    text = tvm.ir.save_json(mod)
    try:
        folder.mkdir()
        (folder / _MODULE).write_text(text)
        if graph.converted:
            assert isinstance(graph.source, onnx.ModelProto)  # only an ONNX model is converted
            (folder / _SOURCE).write_bytes(graph.source.SerializeToString())
        for part, model in zip(graph.foreign.reports, graph.foreign.models, strict=True):
            (folder / part.file).write_bytes(model)
    except (OSError, RuntimeError) as error:  # the latter is TVM's
        raise ModelError(f"{graph.name}: its import cannot be written to {folder}: {one_line(error)}") from error
