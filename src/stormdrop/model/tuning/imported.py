"""The first step of a tuning: the model is imported and verified, in the precision that is asked for.

Nothing is tuned before that: a model that cannot be verified is not worth it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...machine.contract import Machine
from ...machine.cpu import Cpu
from ...tuning.options import TuneOptions
from ..building.builder import source_of
from ..graph.graph import Graph
from ..importer.any_model import Model
from ..inputs.combinations import GivenShapes
from ..inputs.given import Data
from ..inputs.inputs import Values
from ..inputs.open_range import has_range
from ..inputs.samples import Feeds
from ..open_sizes.open_graph import import_for_sizes
from ..passes.attention import with_attention
from ..precision.choice import PrecisionChoice, in_precision
from ..precision.decoded_weights import with_decoded_weights
from ..states.declared import Declared, with_states
from ..verification.references import with_references
from ..verification.verify import Reference
from .latency import choose_parts
from .tuning_run import TuningRun

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Imported:
    """A model whose import was verified.

    Attributes:
        source: The file that it comes from; see `source_of`.
        precision: The model in its precision, with what it should compute.
    """

    source: Mapping[str, str]
    precision: PrecisionChoice

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.precision.graph

    @property
    def references(self) -> list[Reference]:
        """What it should compute, at each of its sizes."""
        return self.precision.references

    @property
    def feeds(self) -> list[Feeds]:
        """Its inputs at each of its sizes."""
        return [reference.feeds for reference in self.references]


def imported(
    model: Model,
    machine: Machine,
    options: TuneOptions,
    run: TuningRun,
    *,
    example_inputs: Any = None,
    shapes: GivenShapes | None = None,
    values: Values | None = None,
    state: Declared | None = None,
    samples: Data | None = None,
) -> Imported:
    """Imports a model, and verifies that.

    Args:
        model: As in `tune_model`.
        machine: The machine that it is for.
        options: How it is tuned.
        run: The run of the tuning.
        example_inputs: As in `tune_model`.
        shapes: As in `tune_model`.
        values: As in `tune_model`.
        state: As in `tune_model`.
        samples: As in `tune_model`.

    Raises:
        ModelError: It cannot be imported or verified, or not for this machine.
        InputError: The samples are none of its inputs, or what is declared is no state.
    """
    with run.phase("import"):
        run.say(f"importing {_title(model)}", checking=True)
        source = source_of(model)
        graph = with_states(import_for_sizes(model, shapes, example_inputs, values), state)
        _check_runs(graph, machine)
        graph = with_decoded_weights(graph, machine, options)
        graph = with_attention(graph, machine, options, alike=has_range(shapes))
        graph.foreign.examples = {}
    with run.phase("verify"):
        run.say(f"verifying the import of {len(graph.tasks)} kernels", checking=True)
        graph, references = with_references(graph, options.seed, samples, run.left)
    if graph.foreign.reports and isinstance(machine, Cpu):
        graph, references = _with_faster_parts(graph, references, machine, options.seed, samples, run)
    with run.phase("verify"):
        return Imported(source, in_precision(graph, references, options, machine))


def _title(model: Model) -> str:
    """What is imported, in a word."""
    return Path(model).name if isinstance(model, str | Path) else "the model"


def _check_runs(graph: Graph, machine: Machine) -> None:
    """Raises `ModelError` if a model cannot be verified and timed on the machine that it is for."""
    if machine.runner and graph.foreign.reports:
        operators = sorted({name for part in graph.foreign.reports for name in part.operators})
        raise ModelError(
            f"{graph.name}: onnxruntime runs {', '.join(operators)}, and TVM's server at {machine.runner} has none: "
            f"tune the model on that machine itself"
        )


def _with_faster_parts(
    graph: Graph, references: list[Reference], machine: Cpu, seed: int, samples: Data | None, run: TuningRun
) -> tuple[Graph, list[Reference]]:
    """A model of which onnxruntime runs parts, or all of it where that is faster, and its references."""
    with run.phase("race"):
        run.say("timing the parts that onnxruntime runs")
        whole = choose_parts(graph, machine, [reference.feeds for reference in references], run)
    if whole is graph:
        return graph, references
    with run.phase("verify"):
        return _verified(whole, seed, samples, run.left) or (graph, references)


def _verified(
    whole: Graph, seed: int, samples: Data | None, seconds: float | None = None
) -> tuple[Graph, list[Reference]] | None:
    """A model of which onnxruntime runs everything, and its references; None if it cannot be verified."""
    try:
        return with_references(whole, seed, samples, seconds)
    except ModelError as error:
        _logger.warning("%s; onnxruntime runs the parts of the model that it has to run", error)
        return None
