"""`Decoder`: a language model with its cache generates tokens."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from weakref import WeakSet

import numpy as np

from ...errors import InputError, one_line
from ..calling import CallableModel
from ..inputs import Array
from .form import MASK, POSITIONS, Form, form_of
from .sampling import Sampling, drawn, likeliest
from .steps import Steps

Stop = Collection[int] | Callable[[list[int]], bool]
"""What ends a generation: tokens, each of which is the last one; or says of the new tokens whether they are all."""

_LEVEL = 3e-2
"""The largest difference between logits of two sizes, relative to the largest logit, that is one of rounding."""

_TRIAL = (1, 2, 1)
"""The tokens that are tried, once for each model."""

_tried: WeakSet[CallableModel] = WeakSet()


class Decoder:
    """A language model with the keys and values of the tokens so far.

    The model was compiled for some lengths of chunks and some capacities of its cache. A step takes the smallest cache
    that holds the sequence; if that is full, the cache moves to the next larger one. A prompt is taken in chunks, the
    last one filled up.

    A decoder has one sequence, and one thread uses it at a time. Several decoders may share a model: each has a cache
    of its own, and the weights are there once.

    Args:
        model: A model that was compiled. It takes input_ids, attention_mask, perhaps position_ids, and
            its states, and makes logits and the states with the new rows, as Optimum exports decoders.
        state: Which output is which input of the next step, where the names do not say it: by "*" for several, as in
            `{"present.*": "past_key_values.*"}`.

    Attributes:
        model: The model.
        capacity: The most tokens of a sequence.
        in_place: Whether a step writes the new rows where they stay; otherwise it copies the cache.
        length: How many tokens the cache holds.

    Raises:
        InputError: The model is no such decoder, its states do not fit together, or it makes other logits of the same
            tokens in another cache. That is tried with the first decoder of a model.

    Example:
        ```text
        shapes = {"input_ids": (1, (1, 32)), "past_key_values.0.key": (1, 12, (64, 1024), 64)}
        model = sd.compile_model("gpt2.onnx", shapes=shapes)
        decoder = sd.Decoder(model)
        print(tokenizer.decode(decoder.generate(tokenizer.encode("Once upon a time"), 100)))
        ```
    """

    def __init__(self, model: CallableModel, state: Mapping[str, str] | None = None) -> None:
        self.model = model
        states = tuple(replace(each, order=()) for each in model._calls.states)
        self._form: Form = form_of(model.metadata.name, model.sizes, model.metadata.ignored, states, state)
        self._steps = Steps(self._form, model.sizes, model._calls)
        self._next: int | None = None
        if model not in _tried:
            self._try()
            _tried.add(model)

    @property
    def capacity(self) -> int:
        """The most tokens that the cache holds."""
        return self._form.capacity

    @property
    def in_place(self) -> bool:
        """Whether a step writes the new rows into the cache; otherwise each step copies the whole cache."""
        return self._steps.in_place

    @property
    def length(self) -> int:
        """How many tokens the cache holds. The last token of a generation is not among them before it is continued."""
        return self._steps.cache.length

    def reset(self) -> None:
        """Begins another sequence."""
        self._steps.cache.shorten(0)
        self._next = None

    def feed(self, ids: Iterable[int]) -> Array:
        """Appends tokens to the sequence.

        Args:
            ids: The tokens, one or more. The last token of a generation, if there is one, goes before them.

        Returns:
            The logits behind the last one: a number for each token of the vocabulary. The array is the caller's.

        Raises:
            InputError: There are none, or more than the cache has room for; or one is no token.
            ArtifactError: As a call of the model.
        """
        tokens = self._with_next(self._checked(ids))
        self._expect_room(len(tokens), 1)
        logits: Array = self._fed(tokens).copy()
        return logits

    def generate(
        self,
        ids: Iterable[int],
        max_new_tokens: int | None = None,
        *,
        sampling: Sampling | None = None,
        on_token: Callable[[int], object] | None = None,
        stop: Stop = (),
    ) -> list[int]:
        """Appends tokens to the sequence, and generates those that follow.

        Args:
            ids: The tokens of the prompt. After another generation they follow its tokens, and may be none.
            max_new_tokens: The most tokens to generate; None for as many as the cache has room for.
            sampling: How they are drawn; None takes the likeliest one each time.
            on_token: Is called with each new token as soon as it is known.
            stop: Ends the generation: tokens after which nothing follows, or a function that gets the new tokens so
                far and says whether they are all.

        Returns:
            The new tokens, with the one that ended the generation.

        Raises:
            InputError: The prompt has no tokens, or is longer than the model takes; the cache is full, or has no room
                for so many new tokens; or a token is none.
            ArtifactError: As a call of the model, or it makes logits that are no numbers.

        Example:
            ```text
            decoder.generate(prompt, 50, on_token=lambda token: print(tokenizer.decode([token]), end=""))
            ```
        """
        tokens = self._with_next(self._checked(ids))
        most = self._expect_room(len(tokens), max_new_tokens)
        ends = stop if callable(stop) else _ending(stop)
        rng = None if sampling is None else np.random.default_rng(sampling.seed)
        made: list[int] = []
        while True:
            logits = self._fed(tokens)
            token = likeliest(logits) if sampling is None or rng is None else drawn(logits, sampling, rng)
            self._next = token
            made.append(token)
            if on_token is not None:
                on_token(token)
            if len(made) == most or ends(made):
                return made
            tokens = [token]

    def _checked(self, ids: Iterable[int]) -> list[int]:
        """Tokens of a caller. Raises `InputError` if they are none of the model's."""
        tokens = _numbers(ids)
        words = self.model.outputs[self._form.logits].shape[-1]
        for token in tokens:
            if not 0 <= token < words:
                raise InputError(f"{self._form.name}: {token} is no token: its tokens are 0 to {words - 1}")
        return tokens

    def _with_next(self, tokens: list[int]) -> list[int]:
        return tokens if self._next is None else [self._next, *tokens]

    def _fed(self, tokens: list[int]) -> Array:
        """The logits behind tokens, one or more, for which there is room."""
        self._next = None
        before = self.length
        try:
            while True:
                logits = self._steps.run(tokens[self.length - before :])
                if self.length - before == len(tokens):
                    return logits
        except BaseException:
            self._steps.cache.shorten(before)  # interrupted, or a kernel has failed: as if nothing had been fed
            raise

    def _expect_room(self, tokens: int, wanted: int | None) -> int:
        """How many tokens may follow. Raises `InputError` if they are fewer than wanted; see `generate`."""
        name = self._form.name
        if not tokens:
            raise InputError(f"{name}: there are no tokens to continue: give one or more")
        if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1):
            raise InputError(
                f"max_new_tokens={wanted!r}: must be a whole number from 1 on, or None for all there is room for"
            )
        if tokens > self.capacity:
            raise InputError(
                f"{name}: the prompt has {tokens} tokens, and the model takes {self.capacity}: shorten it, or compile "
                "the model for a larger cache"
            )
        room = self.capacity - self.length - tokens + 1  # the last token needs no slot
        if room < 1:
            raise InputError(
                f"{name}: the cache is full: it holds {self.length} tokens of {self.capacity}, and {tokens} more do "
                "not fit; begin anew with reset(), or compile the model for a larger cache"
            )
        if wanted is not None and wanted > room:
            raise InputError(
                f"{name}: the cache has {self.capacity} slots, so that {room} tokens can follow, not {wanted}: give "
                f"max_new_tokens={room} or less, or compile the model for a larger cache"
            )
        return room if wanted is None else wanted

    def _try(self) -> None:
        """Checks that the same tokens are alike in the smallest cache and in the largest one, whose chunk is filled up.

        Raises:
            InputError: They are not, or there are no two sizes to see by that a model places tokens by the mask.
        """
        form, steps = self._form, self._steps
        if len(form.steps) < 2:
            if form.positions is None:
                raise InputError(
                    f"{form.name}: takes no {POSITIONS}, and has one size: whether it places tokens by {MASK} cannot "
                    "be seen; compile it for two"
                )
            return
        logits, sizes = [], (form.steps[0], form.steps[-1])
        tokens = _TRIAL[: min(step.capacity for step in sizes)]
        for step in sizes:
            while steps.cache.length < len(tokens):
                last = steps.run(tokens[steps.cache.length :], step)
            logits.append(last.astype(np.float64))
            steps.cache.shorten(0)
        error = np.abs(logits[0] - logits[1]).max() / max(np.abs(logits[0]).max(), np.finfo(np.float64).tiny)
        if not error <= _LEVEL:
            one, other = (f"a cache of {step.capacity} and chunks of {step.chunk}" for step in sizes)
            places = "" if form.positions is not None else f", or it counts slots as places: export it with {POSITIONS}"
            raise InputError(
                f"{form.name}: logits of the same tokens differ by {error:.1g} of the largest one between {one}, and "
                f"{other}: {MASK} does not hide empty slots, or tokens see later ones{places}"
            )


def _numbers(ids: Iterable[int]) -> list[int]:
    """Tokens as numbers: of a list, of an array, or of one with a batch of one."""
    values = np.asarray(ids).tolist() if hasattr(ids, "__array__") else list(ids)
    if len(values) == 1 and isinstance(values[0], list):
        (values,) = values
    try:
        return [operator.index(value) for value in values]
    except TypeError as error:
        raise InputError(f"the tokens of one sequence are whole numbers: {one_line(error)}") from None


def _ending(tokens: Collection[int]) -> Callable[[list[int]], bool]:
    last = {operator.index(token) for token in tokens}
    return lambda made: made[-1] in last
