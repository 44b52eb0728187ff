"""Which inputs and outputs of a decoder are what, and which steps its sizes allow.

A size takes a chunk of tokens and a cache with a number of slots, its capacity. Slots that hold no token yet are hidden
by the mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import InputError, shown
from ..program import State
from ..sizes import Size, described, sizes_in_words
from .states import find_states

TOKENS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
"""What exporters call the tokens of a chunk, the mask over slots and chunk, the places of tokens, and the result."""


@dataclass(frozen=True)
class StepSize:
    """A size of a decoder.

    Attributes:
        index: The position of the size.
        capacity: The slots of the cache.
        chunk: The tokens of a step.
    """

    index: int
    capacity: int
    chunk: int


@dataclass(frozen=True)
class Form:
    """What the inputs and outputs of a decoder are.

    Attributes:
        name: The name of the model.
        tokens: The position of the input with the tokens.
        mask: The position of the mask.
        positions: The position of the input with the places of tokens; None if the model finds them by the mask.
        logits: The position of the output with the logits.
        states: The states.
        steps: The sizes, the smallest capacity first, of one capacity the shortest chunk.
    """

    name: str
    tokens: int
    mask: int
    positions: int | None
    logits: int
    states: tuple[State, ...]
    steps: tuple[StepSize, ...]

    @property
    def capacity(self) -> int:
        """The most tokens that a cache holds."""
        return max(step.capacity for step in self.steps)

    def step(self, length: int, tokens: int) -> StepSize:
        """The size for the next tokens of a sequence.

        Args:
            length: How many tokens the cache holds.
            tokens: How many are to follow. `length + tokens` is no more than `capacity`.

        Returns:
            Of each capacity the shortest chunk that has all of the tokens, else the longest one; of these the smallest
            capacity that also holds the tokens of the chunk.
        """
        for capacity in sorted({step.capacity for step in self.steps}):
            steps = [step for step in self.steps if step.capacity == capacity]
            step = next((step for step in steps if step.chunk >= tokens), steps[-1])
            if length + min(tokens, step.chunk) <= capacity:
                return step
        raise AssertionError(f"{length} + {tokens} tokens are more than {self.capacity}")


def form_of(
    model: str,
    sizes: Sequence[Size],
    ignored: Sequence[str],
    known: tuple[State, ...] = (),
    declared: Mapping[str, str] | None = None,
) -> Form:
    """What the inputs and outputs of a decoder are.

    Args:
        model: Its name, for messages.
        sizes: Its sizes.
        ignored: The inputs that it has and does not use.
        known: The states that the model writes in place, if it does so: it was compiled with them.
        declared: What the caller says; see `find_states`. Otherwise they are what is known, or what names say.

    Raises:
        InputError: It is no decoder with a cache.
    """
    first = sizes[0]
    states = find_states(model, sizes, declared) if declared or not known else known
    if not states:
        raise InputError(
            f"{model}: no output is the next step's input by its name, as present.0.key is past_key_values.0.key; "
            f"declare the states, as in state={{'present.*': 'past_key_values.*'}}; its inputs are "
            f"{described(first.inputs)}, its outputs {described(first.outputs)}"
        )
    of_states = {state.input for state in states}
    others = {info.name: position for position, info in enumerate(first.inputs) if position not in of_states}
    for needed in (TOKENS, MASK):
        if needed not in others:
            why = "has it and does not use it" if needed in ignored else f"takes {', '.join(map(shown, others))}"
            hides = ": nothing hides the slots of the cache that hold no token" if needed == MASK else ""
            raise InputError(f"{model}: a decoder takes {needed} besides its states, and this model {why}{hides}")
    for name in others:
        if name not in (TOKENS, MASK, POSITIONS):
            raise InputError(
                f"{model}: takes {shown(name)!r}; a decoder takes {TOKENS}, {MASK}, perhaps {POSITIONS}, and its states"
            )
    results = {info.name: position for position, info in enumerate(first.outputs)}
    logits = results.get(LOGITS)
    if logits is None or len(first.outputs[logits].shape) != 3:
        raise InputError(f"{model}: has no output {LOGITS} of three axes; its outputs are {described(first.outputs)}")
    form = Form(model, others[TOKENS], others[MASK], others.get(POSITIONS), logits, states, ())
    steps = [step for index, size in enumerate(sizes) if (step := _step_of(form, index, size)) is not None]
    if not steps:
        batches = sorted({size.inputs[form.tokens].shape[0] for size in sizes})
        raise InputError(
            f"{model}: decodes one sequence at a time, and none of its sizes has the batch 1 and fits together; "
            f"its batches are {', '.join(map(str, batches))}; its sizes are {'; '.join(sizes_in_words(sizes))}"
        )
    steps.sort(key=lambda step: (step.capacity, step.chunk))
    return replace(form, steps=tuple(steps))


def _step_of(form: Form, index: int, size: Size) -> StepSize | None:
    """A size as a step; None if its batch is not 1, or it has not one cache and one chunk."""
    batch, *chunk = size.inputs[form.tokens].shape
    if batch != 1 or len(chunk) != 1:
        return None
    capacities = {size.inputs[state.input].shape[state.axis] for state in form.states}
    added = {size.outputs[state.output].shape[state.axis] for state in form.states}
    capacity = min(capacities)
    if len(capacities) != 1 or added != {capacity + chunk[0]}:
        return None
    if size.inputs[form.mask].shape != (1, capacity + chunk[0]) or size.outputs[form.logits].shape[:2] != (1, *chunk):
        return None
    if form.positions is not None and size.inputs[form.positions].shape != (1, *chunk):
        return None
    return StepSize(index, capacity, chunk[0])
