"""A model on the machine behind a runner, or on a board of a rack: it is built here, and runs and is timed there.

    a compiled program, or the files of a saved model  --machine code in an archive-->  TVM's server links it there
    inputs  -->  the function of its size there  -->  outputs

The server needs a C compiler for that, as it does for kernels. TVM's protocol has no way to look into a model while it
runs there: `LEFT_OUT` says what that costs.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.support import tar

from ...errors import MeasureError, one_line
from ...machine.remote import rpc, tracker
from ...measure.timing import SAMPLE_SECONDS
from ...runtime.calls import Observer
from ...runtime.program import main_name
from ...runtime.sizes import TensorInfo
from ..artifact.artifact import CompiledModel
from ..artifact.call_inputs import placed
from ..artifact.loading import load_program
from ..artifact.metadata import Metadata
from ..artifact.onnxruntime_parts import OnnxruntimeParts
from ..inputs.samples import Feeds
from ..program.compiled import CompiledProgram
from .linked_main import linked_main

T = TypeVar("T")

ANSWER_SECONDS = 600.0
"""A board that has not done what it was asked for within this time hangs: it takes a model, or executes it once."""

LEFT_OUT = (
    "the model is verified by its outputs alone: what its last kernels read cannot be seen there",
    "the finalists of all kernels were compared inside the model together, not kernel by kernel",
    "the kernels were not timed inside the model",
    "nobody watched whether something else used the machine there",
)
"""What is not done for a model that runs behind a runner, one sentence each."""


class Board:
    """A connection to the machine behind a runner, or to one board of a rack, that a process has to itself.

    Args:
        address: The address of the runner, or of the rack, of which a free board is taken; it is waited for.

    Attributes:
        address: The same.

    Raises:
        TargetError: It does not answer, or no board becomes free.
    """

    def __init__(self, address: str) -> None:
        if tracker.is_rack(address):
            tracker.wait_for_boards(address)
        self.address = address
        self._session: Any = rpc.connect(address)
        self._numbers = itertools.count()
        self._programs: dict[BoardModel, _Sent] = {}

    def program(self, model: BoardModel) -> _Sent:
        """The program of a model there. It is sent at the first call.

        Args:
            model: The model.
        """
        if model not in self._programs:
            self._programs[model] = self._sent(model.compiled, model.metadata)
        return self._programs[model]

    def _sent(self, compiled: CompiledProgram, metadata: Metadata) -> _Sent:
        library = library_of(compiled, metadata)
        name = f"model{next(self._numbers)}.tar"
        with tempfile.TemporaryDirectory(prefix="stormdrop-") as folder:
            library.export_library(str(Path(folder) / name), fcompile=tar.tar)
            self._session.upload(str(Path(folder) / name), name)
        loaded, device = self._session.load_module(name), self._session.cpu(0)
        self._session.remove(name)
        return _Sent(loaded, device, compiled)

    def answer(self, work: Callable[[], T]) -> T:
        """What `work` returns, which asks the board for something.

        Args:
            work: Is called in a thread, because TVM waits for an answer without end.

        Raises:
            MeasureError: There is no answer in time, the connection is broken, or the board reports an error.
        """
        if self._session is None:
            raise MeasureError(f"the connection to {self.address} is closed: load the model on that machine")
        answers: list[T] = []
        errors: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(work())
            except Exception as error:  # noqa: BLE001  raised below; TVM raises whatever the other side did
                errors.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(ANSWER_SECONDS)
        if errors:
            raise MeasureError(f"{self.address}: the model does not run there: {one_line(errors[0])}") from errors[0]
        if not answers:
            raise MeasureError(f"{self.address}: no answer within {ANSWER_SECONDS:g} s: it hangs or cannot be reached")
        return answers[0]

    def close(self) -> None:
        """Gives the board back. Its models cannot be run any more."""
        self._programs.clear()
        self._session = None

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BoardModel(CompiledModel):
    """A compiled model that runs on a board. It is sent there when it is first run.

    Args:
        board: The board.
        program: The program.
        metadata: What the model says about itself.
        symbols: The index of the task of each kernel, by the kernel's name.
        foreign: The parts that onnxruntime runs, of which it has none.
    """

    def __init__(
        self,
        board: Board,
        program: CompiledProgram,
        metadata: Metadata,
        symbols: Mapping[str, int] | None = None,
        foreign: OnnxruntimeParts | None = None,
    ) -> None:
        self._board = board
        super().__init__(program, metadata, symbols, foreign)

    @property
    def compiled(self) -> CompiledProgram:
        """The program, with the machine code of its kernels."""
        return self._program

    def _make_ready(self) -> None:
        """Does nothing: the program is for another machine."""

    def reloaded(self, folder: Path) -> CompiledModel:
        """See `CompiledModel.reloaded`: what is sent to the board comes from the files."""
        program, metadata, digest, foreign = load_program(folder, here=False)
        loaded = BoardModel(self._board, program, metadata, self.symbols, foreign)
        loaded.digest = digest
        return loaded

    def observed(self, observer: Observer) -> CompiledModel:
        """The model itself. `observer` is never called, because TVM's protocol takes no callbacks."""
        return self

    def _results(self, feeds: Any) -> Sequence[NDArray[Any]]:
        """The outputs, which the board has computed. See `CompiledModel.run`.

        Raises:
            InputError: An input is missing, unknown, or of another shape or type.
            MeasureError: The board does not answer, or the model fails there.
        """
        size, arrays, rows = self._call(feeds)
        values = self._board.answer(lambda: self._board.program(self).run(size, arrays))
        return values if rows is None else [value[:rows] for value in values]

    def stopwatch(self, feeds: Feeds) -> Callable[[int], float]:
        """Times the model on these inputs, without the way there and back.

        Args:
            feeds: Its inputs by name.

        Returns:
            A function that takes a number of executions and returns the mean seconds of one of them. It executes the
            model once more before. `run` and other stopwatches of the same size must not come in between.

        Raises:
            MeasureError: The board does not answer, or the model fails there.
        """
        size, arrays, _ = self._call(feeds)
        self._board.answer(lambda: self._board.program(self).take(size, arrays))
        return lambda number: self._board.answer(lambda: self._board.program(self).seconds(size, number))

    def _call(self, feeds: Mapping[str, Any]) -> tuple[int, list[NDArray[Any]], int | None]:
        """The size that runs a call, its inputs, and how many rows are wanted if the size has more."""
        wanted, rows, arrays = self._inputs(feeds)
        pairs = zip(self._inputs.sizes[wanted.index].inputs, arrays, strict=True)
        return wanted.index, [placed(info, one, self.metadata.anywhere, {})[1] for info, one in pairs], rows


def library_of(compiled: CompiledProgram, metadata: Metadata) -> Any:
    """A module with the functions of a program and its kernels, which can be exported as one library.

    Args:
        compiled: The program.
        metadata: Says for which machine it was compiled.
    """
    triple = metadata.target.get("triple")
    module = linked_main(compiled.program, {"kind": "llvm", "mtriple": triple} if triple else "llvm")
    for kernels in compiled.modules:
        module.import_module(kernels)
    return module


class _Sent:
    """A program on a board."""

    def __init__(self, library: Any, device: Any, compiled: CompiledProgram) -> None:
        self._library, self._device, self._program = library, device, compiled.program
        self._constants = tvm.runtime.tensor(_in_one_piece(compiled), device)
        self._tensors: dict[int, list[Any]] = {}  # storage, constants, inputs and outputs of each size

    def take(self, size: int, arrays: Sequence[NDArray[Any]]) -> list[Any]:
        """Sends the inputs of a size. Returns what its function takes."""
        tensors = self._of_size(size)
        for tensor, array in zip(tensors[2:], arrays, strict=False):
            tensor.copyfrom(np.asarray(array, order="C"))
        return tensors

    def run(self, size: int, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The outputs of a size."""
        tensors = self.take(size, arrays)
        self._library[main_name(size)](*tensors)
        return [tensor.numpy() for tensor in tensors[2 + len(arrays) :]]

    def seconds(self, size: int, number: int) -> float:
        """The mean seconds of so many executions on the inputs that were sent last."""
        evaluate = self._library.time_evaluator(main_name(size), self._device, number=number, repeat=1)
        return float(evaluate(*self._of_size(size)).mean)

    def _of_size(self, size: int) -> list[Any]:
        if size not in self._tensors:
            program = self._program.sizes[size]
            storage = tvm.runtime.empty((max(program.block_offsets[-1], 1),), "uint8", self._device)
            own = [self._empty(info) for info in (*program.inputs, *program.outputs)]
            self._tensors[size] = [storage, self._constants, *own]
        return self._tensors[size]

    def _empty(self, info: TensorInfo) -> Any:
        return tvm.runtime.empty(info.shape, info.dtype, self._device)


def _in_one_piece(compiled: CompiledProgram) -> NDArray[np.uint8]:
    """The constants as they lie in a file."""
    memory = np.zeros(max(compiled.program.constant_bytes, 1), np.uint8)
    for place, value in zip(compiled.program.constants, compiled.constants, strict=True):
        memory[place.offset : place.offset + place.bytes] = value
    return memory


def in_turns(calls: Sequence[tuple[CompiledModel, Feeds]], rounds: int) -> list[list[float]]:
    """Times models on their board in turns.

    Args:
        calls: Models, which are `BoardModel`, and their inputs at one of their sizes.
        rounds: How often each is timed.

    Returns:
        For each round the seconds of an execution of each call: the mean of so many that a sample is long enough.

    Raises:
        MeasureError: The board does not answer, or a model fails there.
    """
    watches = [model.stopwatch(feeds) for model, feeds in calls if isinstance(model, BoardModel)]
    numbers = [max(1, math.ceil(SAMPLE_SECONDS / max(watch(1), 1e-9))) for watch in watches]
    return [[watch(number) for watch, number in zip(watches, numbers, strict=True)] for _ in range(rounds)]
