"""Which output of a step is which input of the next one: by name, and checked by shape and type.

present.0.key  ->  past_key_values.0.key
present.0.key  ->  past.0.key
present_0      ->  past_0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import InputError, shown
from ..program import State
from ..sizes import Size, TensorInfo

CONVENTIONS = (("present.", "past_key_values."), ("present.", "past."), ("present_", "past_"))
"""How the names of an output and of its input begin; the rest is the same."""


def find_states(model: str, sizes: Sequence[Size], declared: Mapping[str, str] | None = None) -> tuple[State, ...]:
    """Finds the states of a model.

    Args:
        model: Its name, for messages.
        sizes: Its sizes.
        declared: Inputs by their outputs, where their names do not follow a convention. A "*" in both stands for the
            same text: `{"present.*": "past_key_values.*"}`.

    Returns:
        The states in the order of the outputs; none if names say so and nothing is declared.

    Raises:
        InputError: What is declared is not there, or the two tensors of a state are no state: another type, or other
            shapes than those of rows and more rows.

    Example:
        >>> past = TensorInfo("past.k", (1, 2, 8, 4), "float32")
        >>> present = TensorInfo("present.k", (1, 2, 9, 4), "float32")
        >>> find_states("decoder", [Size((past,), (present,))])
        (State(input=0, output=0, axis=2, order=()),)
    """
    first = sizes[0]
    inputs = {info.name: position for position, info in enumerate(first.inputs)}
    outputs = {info.name: position for position, info in enumerate(first.outputs)}
    pairs = _declared(model, inputs, outputs, declared) if declared else _by_convention(inputs, outputs)
    return tuple(
        State(inputs[past], outputs[present], _growing_axis(model, sizes, inputs[past], outputs[present]))
        for present, past in pairs.items()
    )


def states_by_name(sizes: Sequence[Size]) -> tuple[State, ...]:
    """The states of a model whose names say so; none if its tensors of these names are no states."""
    try:
        return find_states("", sizes)
    except InputError:
        return ()


def _by_convention(inputs: Mapping[str, int], outputs: Mapping[str, int]) -> dict[str, str]:
    pairs = {}
    for present in outputs:
        for begin, of_input in CONVENTIONS:
            past = of_input + present.removeprefix(begin)
            if present.startswith(begin) and past in inputs:
                pairs[present] = past
                break
    return pairs


def _declared(
    model: str, inputs: Mapping[str, int], outputs: Mapping[str, int], declared: Mapping[str, str]
) -> dict[str, str]:
    pairs = {}
    for output, into in declared.items():
        if output.count("*") != into.count("*") or output.count("*") > 1:
            raise InputError(f"{model}: the state {shown(output)}={shown(into)} needs one * on each side, or none")
        begin, star, end = output.partition("*")
        alike = [name for name in outputs if name.startswith(begin) and name.endswith(end)] if star else [output]
        if not alike or not all(name in outputs for name in alike):
            raise InputError(f"{model}: no output is called {shown(output)!r}; its outputs are {_names(outputs)}")
        for present in alike:
            past = into.replace("*", present[len(begin) : len(present) - len(end)])
            if past not in inputs:
                raise InputError(
                    f"{model}: output {shown(present)!r} should go to input {shown(past)!r}, which is not there; "
                    f"its inputs are {_names(inputs)}"
                )
            pairs[present] = past
    taken = list(pairs.values())
    for past in taken:
        if taken.count(past) > 1:
            raise InputError(f"{model}: input {shown(past)!r} is declared to be that of {taken.count(past)} outputs")
    return pairs


def _growing_axis(model: str, sizes: Sequence[Size], past: int, present: int) -> int:
    """The one axis along which an output has more rows than its input, at all sizes."""
    grown: set[int] = set()
    for size in sizes:
        before, after = size.inputs[past], size.outputs[present]
        if before.dtype != after.dtype:
            raise _no_state(model, before, after, "they have different types")
        if len(before.shape) != len(after.shape):
            raise _no_state(model, before, after, "they have different numbers of axes")
        axes = [axis for axis, (a, b) in enumerate(zip(before.shape, after.shape, strict=True)) if a != b]
        if len(axes) != 1 or after.shape[axes[0]] < before.shape[axes[0]]:
            raise _no_state(model, before, after, "the output must have more rows along one axis, and be alike else")
        grown.update(axes)
        if len(grown) > 1:
            raise _no_state(model, before, after, "another axis grows than at another size")
    return grown.pop()


def _no_state(model: str, before: TensorInfo, after: TensorInfo, why: str) -> InputError:
    return InputError(f"{model}: {after} cannot become {before} of the next step: {why}")


def _names(tensors: Mapping[str, int], most: int = 8) -> str:
    names = [shown(name) for name in list(tensors)[:most]]
    return ", ".join(names) + (f" and {len(tensors) - most} more" if len(tensors) > most else "")
