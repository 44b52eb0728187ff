"""A whole random graph from a seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

import fuzz.codes
import fuzz.flow
import fuzz.images
import fuzz.moving
import fuzz.pointwise
import fuzz.products
import fuzz.reducing  # noqa: F401  these register their operators
from fuzz.drawing import Case, Drawing
from fuzz.reference import Expected
from fuzz.registry import OPERATORS
from fuzz.telling import Rejected

OPSETS = (7, 23)


@dataclass
class Tally:
    """What was drawn.

    Attributes:
        tried: Nodes of which onnxruntime was asked.
        refused: Those that it did not take.
        graphs: Whole graphs that were drawn.
        unstable: Those that make too much of rounding.
        invalid: Those that onnxruntime did not take, though it took each node.
        reasons: Why nodes were given up, by operator.
    """

    tried: int = 0
    refused: int = 0
    graphs: int = 0
    unstable: int = 0
    invalid: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def draw(rng: np.random.Generator, tally: Tally | None = None, only: str | None = None) -> Case:
    """Draw a graph and its inputs.

    Args:
        rng: Decides everything.
        tally: Counts what is drawn.
        only: An operator that every graph is to have.
    """
    tally = Tally() if tally is None else tally
    while True:
        tally.graphs += 1
        drawing = Drawing(rng, int(rng.integers(OPSETS[0], OPSETS[1] + 1)))
        try:
            case = _drawn(drawing, tally, only)
        except Rejected:
            continue
        finally:
            tally.tried += drawing.tried
            tally.refused += drawing.refused
        try:
            expected = Expected(case.model, case.feeds)
        except Exception:  # noqa: BLE001  onnxruntime's exceptions have no base class
            tally.invalid += 1
            continue
        if expected.is_stable:
            return case
        tally.unstable += 1


def _drawn(drawing: Drawing, tally: Tally, only: str | None) -> Case:
    known = [each for each in OPERATORS.values() if each.since <= drawing.opset]
    weights = np.array([each.weight for each in known])
    weights /= weights.sum()
    wanted = drawing.choice([1, 1, 2, 2, 2, 3, 3, 4, 5, 7])
    required = [each for each in known if each.name == only]
    if only is not None and not required:
        raise Rejected(f"{only} is newer")
    made = 0
    for _ in range(4 * wanted):
        if made == wanted:
            break
        each = required[0] if required else known[int(drawing.rng.choice(len(known), p=weights))]
        try:
            with drawing.attempt():
                each.draw(drawing, each.name)
        except Rejected as error:
            tally.reasons[f"{each.name}: {error}"] += 1
            continue
        made += 1
        required = []
    if required:
        raise Rejected(f"no {only} was possible")
    return drawing.finish()
