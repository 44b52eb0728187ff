"""A step of a decoder: the model is called on a chunk, and the cache has its rows.

    mask       1 1 1 0 0 | 1 1 1    three tokens in a cache of five slots, and a chunk of three
    positions              3 4 5

Where the model writes its states in place, the chunk's rows lie behind all slots afterwards, and are moved to those of
the next tokens:

    before     k k k . . | . . .          after     k k k . . | n n .     ->     k k k n n | n n .

A chunk that has fewer tokens is filled up behind them. Tokens see earlier ones only, so that nothing of the filling
reaches them. The mask is 1 there, too: a row that sees nothing at all would be no number, and spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..calls import ModelCalls
from ..inputs import Array, Given, Wanted
from ..sizes import Size
from .cache import Cache
from .form import Form, StepSize

_UNREAD = np.zeros(0, np.uint8)


class Steps:
    """Runs the steps of one sequence.

    Args:
        form: What the inputs and outputs of the model are.
        sizes: Its sizes.
        calls: Calls it.

    Attributes:
        cache: The cache.
        in_place: Whether the model writes its states where they are; else each step copies them.
    """

    def __init__(self, form: Form, sizes: Sequence[Size], calls: ModelCalls) -> None:
        self._form, self._calls = form, calls
        self.in_place = [replace(state, order=()) for state in calls.states] == list(form.states)
        results = len(sizes[0].outputs)
        others = [index for index in range(results) if index not in {state.output for state in form.states}]
        self._logits = others.index(form.logits) if self.in_place else form.logits
        self._prepared = {step: _Prepared(form, step, sizes[step.index]) for step in form.steps}
        infos = sizes[form.steps[0].index].inputs
        states = calls.states if self.in_place else form.states
        shapes = [(state.in_memory(infos[state.input].shape), infos[state.input].dtype) for state in states]
        self.cache = Cache(shapes, [state.place for state in states])

    def run(self, tokens: Sequence[int], step: StepSize | None = None) -> Array:
        """Runs a step for the first of some tokens, as many as a step takes.

        Args:
            tokens: The tokens, one or more; the cache has room for them.
            step: The size; the one that fits best by default.

        Returns:
            The logits behind the last one of the tokens that were taken: a number for each token of the vocabulary.
            `cache.length` says how many were taken.

        Raises:
            ArtifactError: As a call of the model.
        """
        step = step or self._form.step(self.cache.length, len(tokens))
        prepared, count = self._prepared[step], min(len(tokens), step.chunk)
        prepared.fill(self.cache.length, tokens[:count])
        if self.in_place:
            self.cache.make_room(step.capacity + step.chunk)
            results = self._calls.step(prepared.unread, self.cache.arrays)
            self.cache.take(step.capacity, count)
        else:
            self.cache.make_room(step.capacity)
            results = self._calls(prepared.given(self.cache.arrays))
            self.cache.append([results[state.output] for state in self._form.states], step.capacity, count)
        logits: Array = results[self._logits][0, count - 1]
        return logits


class _Prepared:
    """The inputs of a size, but for the states.

    Attributes:
        unread: The inputs of a call that reads no states.
    """

    def __init__(self, form: Form, step: StepSize, size: Size) -> None:
        self._form, self._step = form, step
        self._wanted = Wanted(step.index, size)
        infos = size.inputs
        self._tokens = np.zeros(infos[form.tokens].shape, infos[form.tokens].dtype)
        self._mask = np.zeros(infos[form.mask].shape, infos[form.mask].dtype)
        self._mask[:, step.capacity :] = 1
        of_positions = form.positions
        self._positions = None if of_positions is None else np.zeros((1, step.chunk), infos[of_positions].dtype)
        self._arrays = {form.tokens: self._tokens, form.mask: self._mask}
        if of_positions is not None and self._positions is not None:
            self._arrays[of_positions] = self._positions
        self.unread = self.given([_UNREAD for _ in form.states])

    def fill(self, length: int, tokens: Sequence[int]) -> None:
        """Takes a chunk: `length` tokens lie before it."""
        self._tokens[0, : len(tokens)] = tokens
        self._tokens[0, len(tokens) :] = tokens[-1]
        self._mask[0, :length], self._mask[0, length : self._step.capacity] = 1, 0
        if self._positions is not None:
            self._positions[0] = np.arange(length, length + self._step.chunk)
            self._positions[0, len(tokens) :] = length + len(tokens) - 1  # a table of positions may end here

    def given(self, states: Sequence[Array]) -> Given:
        """The inputs of a call."""
        arrays = dict(self._arrays)
        arrays.update((state.input, array) for state, array in zip(self._form.states, states, strict=True))
        return Given(self._wanted, None, [arrays[position] for position in range(len(arrays))])
