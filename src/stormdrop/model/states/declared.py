"""Which outputs of a model are inputs of its next step, as the user declares it or their names say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...runtime.decoding.states import find_states, states_by_name
from ...runtime.sizes import Size
from ..graph.graph import Graph

Declared = Mapping[str, str]
"""Inputs by their outputs; a "*" in both stands for the same text: `{"present.*": "past_key_values.*"}`."""


def with_states(graph: Graph, declared: Declared | None) -> Graph:
    """The graph that knows its states.

    Args:
        graph: The model.
        declared: What the user declares; otherwise names decide, if the tensors fit.

    Raises:
        InputError: What is declared is not there, or is no state; see `find_states`.
    """
    sizes = [Size(each.inputs, each.outputs) for each in graph.sizes]
    return replace(graph, states=find_states(graph.name, sizes, declared) if declared else states_by_name(sizes))
