"""Which tensors of a model are compared, and what messages call them: its outputs, and what its last kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..graph.graph import Graph
from ..tensors import Array
from .exact import ExactModel, Site


def output_name(name: str) -> str:
    """What an output is called in messages."""
    return f"output {name!r}"


def read_before_outputs(graph: Graph, exact: ExactModel) -> dict[str, tuple[Any, Site]]:
    """What the last kernels of a graph read, by what it is called: the variable, and where it is read."""
    return {
        f"input {site.argument} of {graph.tasks[site.task].name} for output {output!r}": (variable, site)
        for output, read in exact.before.items()
        for variable, site in read
    }


def variables_of(inside: Mapping[str, tuple[Any, Site]]) -> dict[str, Any]:
    """The variables of what `read_before_outputs` found, by what they are called."""
    return {name: variable for name, (variable, _) in inside.items()}


def named_tensors(
    variables: Mapping[str, Any], outputs: Mapping[str, Array], kept: Mapping[Any, Array]
) -> dict[str, Array]:
    """Tensors by what they are called in messages.

    Args:
        variables: Variables of the graph, by what they are called.
        outputs: The outputs by name.
        kept: The values of variables.
    """
    found = {name: kept[variable] for name, variable in variables.items() if variable in kept}
    return {**{output_name(name): value for name, value in outputs.items()}, **found}


class AfterSaturation:
    """What outputs behind a softmax or sigmoid should be, as far as a model jumps, given what was made before them.

    A step of one large logit, which may be right, turns such an output into another one.

    Args:
        exact: The model; None if NumPy does not know it.
        inside: What `read_before_outputs` found.
        outputs: The names of the outputs behind a function that saturates.
    """

    def __init__(
        self, exact: ExactModel | None, inside: Mapping[str, tuple[Any, Site]], outputs: Iterable[str]
    ) -> None:
        self._exact, self._inside = exact, inside
        self._outputs = tuple(outputs) if exact is not None and exact.jumps else ()

    def __call__(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """What these outputs should be.

        Args:
            tensors: What the last kernels read, by what it is called; anything else is passed over.
        """
        found: dict[str, Array] = {}
        for output in self._outputs:
            read = self.read_for(output)
            if self._exact is not None and read and all(name in tensors for name in read):
                values = {variable: tensors[name] for name, variable in read.items()}
                found[output_name(output)] = self._exact.last(output, values)
        return found

    def read_for(self, output: str) -> dict[str, Any]:
        """What the last kernel of an output reads: the variables, by what they are called."""
        sites = {site for _, site in self._exact.before.get(output, ())} if self._exact is not None else set()
        return {name: variable for name, (variable, site) in self._inside.items() if site in sites}
