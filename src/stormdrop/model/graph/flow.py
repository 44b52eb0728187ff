"""Follows layers through rewrites of a graph: which of them each value of the rewritten graph computes.

    before     conv (layer 0) -> batch_norm (1) -> relu (2)
    after      conv' -> add (1) -> relu (2)                       conv' and add are layers 0 and 1, relu is layer 2

A rewrite tells nothing of what it does. It leaves the names of most values, and this is enough:

1. What has its name still computes the layers that it did.
2. What is new belongs to who reads it: a rewrite takes an operator apart into several, the last of which has its name,
   and puts changes of a layout before the operator that needs them.
3. A layer none of whose values is left was absorbed by who read it. But if it depended on constants only, or moved
   nothing, then it is not computed any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Marks = dict[Hashable, frozenset[int]]
"""The layers that values compute, by the names of the values."""

_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Value:
    """What one operator of a graph makes.

    Attributes:
        makes: The names of its results.
        reads: The names of the values and inputs that it reads, without constants.
        passes: Whether it only gives another name to what it reads, or to a part of it.
        moves: Whether it computes something, or moves data.
    """

    makes: tuple[Hashable, ...]
    reads: tuple[Hashable, ...]
    passes: bool = False
    moves: bool = True


@dataclass(frozen=True)
class Flow:
    """The values of a graph that its outputs depend on.

    Attributes:
        values: The values, in the order in which they are computed.
    """

    values: tuple[Value, ...]

    @classmethod
    def of(cls, values: Sequence[Value], outputs: Iterable[Hashable]) -> Flow:
        """The values of a graph whose outputs have these names, without those that no output depends on."""
        needed, found = set(outputs), list[Value]()
        for value in reversed(values):
            if needed.intersection(value.makes):
                needed.update(value.reads)
                found.append(value)
        return cls(tuple(reversed(found)))


def followed(
    before: Flow,
    marks: Mapping[Hashable, frozenset[int]],
    after: Flow,
    stands_for: Mapping[Hashable, Collection[Hashable]] | None = None,
) -> Marks:
    """The layers that each value computes after a rewrite.

    Args:
        before: The graph before.
        marks: The layers that each of its values computes.
        after: The graph after the rewrite.
        stands_for: The names of the values before that a value after it stands for, if the rewrite has said so.
    """
    found = _named(marks, after.values, stands_for or {})
    _add_new(found, after.values)
    survive = {layer for layers in found.values() for layer in layers}
    absorbed = _absorbed(before.values, marks, survive)
    if absorbed:
        taken: dict[int, set[int]] = defaultdict(set)
        for layer, others in absorbed.items():
            for other in others:
                taken[other].add(layer)
        for name, layers in found.items():
            found[name] = layers.union(*(taken[layer] for layer in layers if layer in taken))
    return found


def _named(
    marks: Mapping[Hashable, frozenset[int]],
    after: Sequence[Value],
    stands_for: Mapping[Hashable, Collection[Hashable]],
) -> Marks:
    found: Marks = {}
    for value in after:
        names = [old for name in value.makes for old in stands_for.get(name, (name,))]
        layers = _union(marks.get(name, _NONE) for name in names)
        if layers:
            found.update(dict.fromkeys(value.makes, layers))
    return found


def _add_new(found: Marks, values: Sequence[Value]) -> None:
    """Adds the layers of values whose names are new."""
    new = [value for value in values if value.makes and value.makes[0] not in found]
    if not new:
        return
    for value in new:
        if value.passes:
            _give(found, value, value.reads)
    readers = _readers(values)
    for value in reversed(new):
        if value.makes[0] not in found:
            _give(found, value, (reader.makes[0] for name in value.makes for reader in readers[name]))
    for value in new:  # nobody reads what it makes: it is an output
        if value.makes[0] not in found:
            _give(found, value, value.reads)


def _give(found: Marks, value: Value, names: Iterable[Hashable]) -> None:
    """Gives a value the layers of the first of these that has some."""
    layers = next((found[name] for name in names if name in found), None)
    if layers:
        found.update(dict.fromkeys(value.makes, layers))


def _readers(values: Sequence[Value]) -> dict[Hashable, list[Value]]:
    readers: dict[Hashable, list[Value]] = defaultdict(list)
    for value in values:
        for name in dict.fromkeys(value.reads):
            if value.makes:
                readers[name].append(value)
    return readers


def _absorbed(
    before: Sequence[Value], marks: Mapping[Hashable, frozenset[int]], survive: Collection[int]
) -> dict[int, set[int]]:
    """The layers that were absorbed, and by which other ones."""
    lost = {layer for layers in marks.values() for layer in layers}.difference(survive)
    if not lost:
        return {}
    makers = {name: value for value in before for name in value.makes}
    readers = _readers(before)
    constant: set[Hashable] = set()
    for value in before:
        if all(name in constant for name in value.reads):
            constant.update(value.makes)
    found: dict[int, set[int]] = defaultdict(set)
    for value in before:
        layers = _union(marks.get(name, _NONE) for name in value.makes)
        gone = lost.intersection(layers)
        if not gone or not value.moves or constant.issuperset(value.makes):
            continue
        takers = _nearest(value, marks, survive, lambda one: [each for name in one.makes for each in readers[name]])
        takers = takers or _nearest(
            value, marks, survive, lambda one: [makers[name] for name in one.reads if name in makers]
        )
        for layer in gone:
            found[layer] |= takers
    return found


def _nearest(
    value: Value,
    marks: Mapping[Hashable, frozenset[int]],
    survive: Collection[int],
    neighbours: Callable[[Value], Sequence[Value]],
) -> set[int]:
    """The layers that survive of the nearest values in one direction."""
    found: set[int] = set()
    waiting, seen = list(neighbours(value)), set[Hashable]()
    while waiting:
        one = waiting.pop()
        if one.makes[0] in seen:
            continue
        seen.add(one.makes[0])
        left = _union(marks.get(name, _NONE) for name in one.makes).intersection(survive)
        if left:
            found |= left
        else:
            waiting += neighbours(one)
    return found


def _union(many: Iterable[frozenset[int]]) -> frozenset[int]:
    return _NONE.union(*many)
