"""What the product makes of a graph."""

from __future__ import annotations

import enum
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from fuzz.drawing import Case
from fuzz.reference import Expected
from stormdrop.errors import StormdropError, one_line
from stormdrop.machine import threads

threads.configure()  # before TVM is loaded

from stormdrop.model.importer.import_onnx import load_graph  # noqa: E402
from stormdrop.model.untuned import compile_model_with  # noqa: E402
from stormdrop.tuning.options import TuneOptions  # noqa: E402


class Verdict(enum.Enum):
    """What became of a graph."""

    RIGHT = "right"
    REFUSED = "refused"  # in one line that names an operator of the graph
    UNEXPLAINED = "unexplained"  # refused in other words, or because what was compiled is wrong
    WRONG = "wrong"
    TRACEBACK = "traceback"  # something else than an error of the product's own
    CRASH = "crash"
    HANG = "hang"


@dataclass(frozen=True)
class Judgement:
    """A verdict, and one line that says why.

    Attributes:
        verdict: The verdict.
        reason: Why; empty if the graph is right.
        foreign: How many nodes onnxruntime runs inside of the compiled model.
    """

    verdict: Verdict
    reason: str = ""
    foreign: int = 0

    def is_like(self, other: Judgement) -> bool:
        """Whether another graph fails alike: the same verdict in the same words, apart from names and numbers."""
        return self.verdict is other.verdict and _kind(self.reason) == _kind(other.reason)


def judge(case: Case) -> Judgement | None:
    """Compile a graph in this process with default schedules, run it twice, and compare it with onnxruntime.

    Args:
        case: The graph and its inputs.

    Returns:
        What became of it; None if onnxruntime does not take it, or it makes too much of rounding.
    """
    try:
        expected = Expected(case.model, case.feeds)
    except Exception:  # noqa: BLE001  onnxruntime's exceptions have no base class
        return None
    if not expected.is_stable:
        return None
    try:
        # The process that imports a model is there to survive hostile files, and takes seconds to start.
        with mock.patch("stormdrop.model.untuned.import_for_sizes", lambda model, *_, **__: load_graph(model)):
            compiled = compile_model_with(case.model, None, TuneOptions(fresh=True)).model
        feeds = {info.name: case.feeds[info.name] for info in compiled.inputs}
        outputs = [compiled.run(feeds) for _ in range(2)]
    except StormdropError as error:
        return _refused(str(error), case)
    except Exception as error:  # noqa: BLE001  this is what the verdict is about
        return Judgement(Verdict.TRACEBACK, f"{one_line(error)} [{_place(error)}]")
    foreign = sum(part.nodes for part in compiled.metadata.foreign)
    for times, values in enumerate(outputs):
        if difference := expected.difference(values):
            return Judgement(Verdict.WRONG, f"{difference}{' in the second call' * times}", foreign)
    return Judgement(Verdict.RIGHT, "", foreign)


_OF_VERIFICATION = ("is allowed", "computes something else", "cannot be verified")


def _refused(message: str, case: Case) -> Judgement:
    operators = {node.op_type for node in case.model.graph.node}
    named = operators.intersection(re.findall(r"\w+", message))
    if named and len(message.splitlines()) == 1 and not any(words in message for words in _OF_VERIFICATION):
        return Judgement(Verdict.REFUSED, message)
    return Judgement(Verdict.UNEXPLAINED, message)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "stormdrop" in frame.filename]
    return f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"


def _kind(reason: str) -> str:
    """A reason without what differs between two graphs that fail alike: names, numbers, shapes."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|\w*\d[\w.+-]*|\([\d, ]*\)", "*", reason)[:120]
