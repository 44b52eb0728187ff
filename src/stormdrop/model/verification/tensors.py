"""Which tensors of a model are compared beside its outputs: what its last kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..graph.graph import Graph
from ..tensors import Array
from .exact import ExactModel, output_name


class LastReads:
    """What the last kernels of a graph read, and what the outputs should be, given that.

    Args:
        graph: The graph.
        exact: The same by NumPy; None if NumPy does not know it: then nothing is known of what its kernels read.
        saturating: The names of the outputs behind a function that saturates.

    Attributes:
        variables: The variables of the graph, by what messages call them.
        sites: Where they are read.
    """

    def __init__(self, graph: Graph, exact: ExactModel | None, saturating: Iterable[str]) -> None:
        self._exact = exact
        read = {
            f"input {site.argument} of {graph.tasks[site.task].described} for output {output!r}": (variable, site)
            for output, before in (() if exact is None else exact.before.items())
            for variable, site in before
        }
        self.variables = {name: variable for name, (variable, _) in read.items()}
        self.sites = {name: site for name, (_, site) in read.items()}
        self._outputs = tuple(saturating) if exact is not None and exact.jumps else ()

    def after_saturation(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """What outputs behind a softmax or sigmoid should be, as far as a model jumps, given what was made before them.

        A step of one large logit, which may be right, turns such an output into another one.

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
        return {name: self.variables[name] for name, site in self.sites.items() if site in sites}
