"""Random ONNX graphs: each is compiled and compared with onnxruntime, and what fails is shrunk. See `fuzz`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from contract import Case, Kind, Outcome
from fuzz.batch import Judges
from fuzz.drawing import Case as Graph
from fuzz.judge import Judgement, Verdict
from fuzz.shrink import shrink
from onnx import helper

RUNS = 3000
_BATCH = 50

_KINDS = {
    Verdict.UNEXPLAINED: Kind.OTHER,
    Verdict.WRONG: Kind.WRONG,
    Verdict.TRACEBACK: Kind.TRACEBACK,
    Verdict.CRASH: Kind.TRACEBACK,
    Verdict.HANG: Kind.HUNG,
}


@dataclass(frozen=True)
class Batch:
    """Graphs that one child process judges after the other.

    Args:
        seed: Of the batch. Those of its graphs are "seed/0", "seed/1" and so on.
        count: How many graphs.
    """

    seed: int
    count: int = _BATCH

    def run(self, folder: Path) -> Outcome:
        outcome = Outcome("random graphs", runs=self.count)
        verdicts, reasons, foreign, drawn = Counter[str](), Counter[str](), 0, Counter[str]()
        with Judges() as judges:
            for number in range(self.count):
                seed = f"{self.seed}/{number}"
                graph, tally = judges.draw(seed)
                judgement = judges.judge(graph)
                if judgement is None:
                    raise RuntimeError(f"the graph of seed {seed} is valid only where it is drawn")
                verdicts[judgement.verdict.value] += 1
                foreign += judgement.foreign > 0
                drawn += Counter(nodes=tally.tried, nodes_refused=tally.refused, graphs=tally.graphs)
                drawn += Counter(unstable=tally.unstable, invalid=tally.invalid)
                if judgement.verdict is Verdict.REFUSED:
                    reasons[f"{seed}: {judgement.reason}"] += 1
                elif judgement.verdict is not Verdict.RIGHT:
                    smaller = shrunk(judges, graph, judgement)
                    save(smaller, folder / f"{seed.replace('/', '_')}.onnx")
                    text = f"seed {seed}: {judgement.verdict.value}: {judgement.reason}"
                    outcome.add(_KINDS[judgement.verdict], f"{text}; shrunk: {described(smaller)}")
        outcome.notes = {"verdicts": dict(verdicts), "refused": list(reasons), "foreign": foreign, "drawn": dict(drawn)}
        return outcome


def shrunk(judges: Judges, graph: Graph, judgement: Judgement, seconds: float = 120.0) -> Graph:
    """The smallest graph that fails alike."""

    def fails(smaller: Graph) -> bool:
        found = judges.judge(smaller)
        return found is not None and found.is_like(judgement)

    return shrink(graph, fails, judges.values, seconds)


def save(graph: Graph, path: Path) -> None:
    """Saves a graph, and beside it its inputs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(graph.model, path)
    feeds: dict[str, Any] = dict(graph.feeds)
    np.savez(path.with_suffix(".npz"), **feeds)


def described(graph: Graph) -> str:
    """A small graph in one line."""
    inputs = [f"{name}: {value.dtype} {list(value.shape)}" for name, value in graph.feeds.items()]
    nodes = [_described(node) for node in graph.model.graph.node if node.op_type != "Constant"]
    return f"opset {graph.model.opset_import[0].version}, {', '.join(inputs)} -> {'; '.join(nodes)}"


def _described(node: onnx.NodeProto) -> str:
    given = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    plain = {name: value for name, value in given.items() if not isinstance(value, onnx.GraphProto)}
    return f"{node.op_type}({', '.join(node.input)}{''.join(f', {k}={v}' for k, v in plain.items())})"


def runs(rng: random.Random) -> Iterator[Case]:
    """Batches of graphs."""
    while True:
        yield Batch(rng.randrange(10**6))
