"""Calls between the sizes of a model, padded to the next larger one: sequences beside a mask that hides the padding.

A compiled model pads rows of a batch by itself, because it is proven that rows are independent. Nothing proves that
what a model makes of 100 words is not changed by 28 zeros behind them: that is up to the mask that it takes. The user
says which input the mask is, and it is tried before the first call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, shown
from ..ir.relative_error import relative_error
from ..runtime.sizes import Size, shapes_in_words
from .artifact.artifact import CompiledModel
from .inputs.samples import sample_feeds

Arrays = Mapping[str, NDArray[Any]]

_Place = tuple[int, int]  # an input, by its number, and one of its axes

_LEVEL, _LEVEL_OF_BFLOAT16 = 1e-3, 5e-2
"""The largest error between an input and the same one padded, whose kernels round differently, by the precision."""


class PaddedModel:
    """A model of several sizes that also takes inputs between them, such as sequences of any length up to the longest.

    Inputs are padded with zeros at their ends to the smallest size that holds them, the mask as well, and the outputs
    are cut back. Only axes that differ between sizes are padded. Two of them that are equal at all sizes, such as those
    of two sequences, have to be equal in a call, too, if an output has their length: nothing says which of the two it
    belongs to. Several threads may call one object.

    A call costs what the larger size costs, and the copies: tune sizes that are close where calls are frequent.

    Args:
        model: The model. It keeps its own rules: it refuses what lies between its sizes.
        mask: The input whose zeros say what is padding. None says that zeros behind an input change nothing before
            them even without a mask, as in a decoder whose words see earlier ones only.

    Raises:
        InputError: The model has no such input, or no sizes to pad to; it is not known which part of an output belongs
            to an input; or the outputs of a size change if its inputs are padded to a larger one.

    Example:
        ```python
        import numpy as np
        from stormdrop.model import PaddedModel

        sizes = (1, (32, 64, 128))
        model = stormdrop.compile_model("words.onnx", shapes={"ids": sizes, "mask": sizes})
        ids = np.ones((1, 100), "int64")
        y = PaddedModel(model, mask="mask").run({"ids": ids, "mask": np.ones_like(ids)})["y"]
        assert y.shape[1] == 100
        ```
    """

    def __init__(self, model: CompiledModel, mask: str | None) -> None:
        self.model, self.mask = model, mask
        names = [info.name for info in model.inputs]
        if mask is not None and mask not in names:
            raise InputError(f"{model.metadata.name} has no input {shown(mask)!r}; its inputs are {', '.join(names)}")
        if len(model.sizes) < 2:
            raise InputError(f"{model.metadata.name} has one size: there is none to pad to; tune it for several")
        self._sources = _sources(model)
        places = _places(model)
        self._fixed = [place for place in places if len(set(_lengths(model.sizes, *place))) == 1]
        self._known: dict[tuple[tuple[int, ...], ...], Size] = {}
        self._try_padding()

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Runs the model on inputs by name.

        Args:
            feeds: Each input by name. Together they have the shapes of a size, or fit into one.

        Returns:
            All outputs by name, of the shapes that belong to those of the inputs.

        Raises:
            InputError: As `CompiledModel.run`; no size holds the inputs; or they differ in a length that an output has,
                and that is the same at all sizes.
        """
        infos = self.model.inputs
        if not all(info.name in feeds for info in infos):
            return self.model.run(feeds)  # which says what is missing
        shapes = tuple(np.shape(feeds[info.name]) for info in infos)
        if any(each.parameters(shapes) for each in self.model.opens):
            return self.model.run(feeds)
        size = self._known.get(shapes)
        if size is None:
            size = self._holding(shapes)
            self._expect_one_length(shapes)
            self._known[shapes] = size
        if size.shapes == shapes:
            return self.model.run(feeds)
        padded = dict(feeds)
        for info in size.inputs:
            padded[info.name] = _padded(np.asarray(feeds[info.name]), info.shape)
        return self._cut(self.model.run(padded), shapes)

    def __call__(self, *arguments: NDArray[Any], **named: NDArray[Any]) -> Any:
        """Runs the model on inputs in order or by keyword; see `CompiledModel`."""
        names = [info.name for info in self.model.inputs]
        if len(arguments) > len(names) or set(names[: len(arguments)]) & set(named):
            return self.model(*arguments, **named)  # which says what is wrong
        results = tuple(self.run({**dict(zip(names, arguments, strict=False)), **named}).values())
        return results[0] if len(results) == 1 else results

    def _holding(self, shapes: Sequence[tuple[int, ...]]) -> Size:
        """The smallest size that holds inputs of these shapes."""
        holding = [size for size in self.model.sizes if self._can_pad(shapes, size)]
        if not holding:
            infos = self.model.inputs
            wanted = shapes_in_words({info.name: shape for info, shape in zip(infos, shapes, strict=True)})
            raise InputError(f"{self.model.metadata.name} {self.model.metadata.lacks(wanted)}, and what fits into one")
        return min(holding, key=lambda size: sum(map(math.prod, size.shapes)))

    def _can_pad(self, shapes: Sequence[tuple[int, ...]], size: Size) -> bool:
        """Whether inputs of these shapes fit into a size, and what no size varies is as long as it is there."""
        return all(map(_holds, size.shapes, shapes)) and all(
            shapes[index][axis] == size.shapes[index][axis] for index, axis in self._fixed
        )

    def _expect_one_length(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raises `InputError` if an axis of an output may have one length or another."""
        infos = self.model.inputs
        for output, axes in zip(self.model.outputs, self._sources, strict=True):
            for axis, sources in enumerate(axes):
                if len({shapes[index][place] for index, place in sources}) > 1:
                    given = ", ".join(
                        f"axis {place} of {shown(infos[index].name)} is {shapes[index][place]}"
                        for index, place in sources
                    )
                    raise InputError(
                        f"{self.model.metadata.name}: {given}: axis {axis} of output {shown(output.name)} may belong "
                        "to each of them, as they are equal at all sizes; tune a size at which they differ"
                    )

    def _cut(self, outputs: Arrays, shapes: Sequence[tuple[int, ...]]) -> dict[str, NDArray[Any]]:
        cut = {}
        for (name, value), axes in zip(outputs.items(), self._sources, strict=True):
            slices = [slice(shapes[sources[0][0]][sources[0][1]] if sources else None) for sources in axes]
            cut[name] = np.ascontiguousarray(value[tuple(slices)])
        return cut

    def _try_padding(self) -> None:
        """Compares each size with the next larger one that holds it."""
        model = self.model
        level = _LEVEL_OF_BFLOAT16 if "precision" in model.metadata.provenance else _LEVEL
        for size in model.sizes:
            larger = [each for each in model.sizes if each is not size and all(map(_holds, each.shapes, size.shapes))]
            if not larger:
                continue
            next_size = min(larger, key=lambda each: sum(map(math.prod, each.shapes)))
            feeds = dict(sample_feeds(model.metadata.at({info.name: info.shape for info in size.inputs})))
            if self.mask is not None:
                feeds[self.mask] = np.ones_like(feeds[self.mask])
            padded = {info.name: _padded(feeds[info.name], info.shape) for info in next_size.inputs}
            outputs, again = model.run(feeds), self._cut(model.run(padded), size.shapes)
            error = max(relative_error(again[name], value) for name, value in outputs.items())
            if not error <= level:
                by = "nothing hides" if self.mask is None else f"{shown(self.mask)} does not hide"
                sizes = [shapes_in_words({info.name: info.shape for info in each.inputs}) for each in (size, next_size)]
                raise InputError(
                    f"{model.metadata.name}: {by} padding: outputs of {sizes[0]} change by {error:.1g} of the largest "
                    f"one if the inputs are padded to {sizes[1]}"
                )


def _holds(larger: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(larger) == len(shape) and all(0 < b <= a for a, b in zip(larger, shape, strict=True))


def _padded(value: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The value with zeros at its ends."""
    return np.pad(value, [(0, wanted - given) for wanted, given in zip(shape, value.shape, strict=True)])


def _sources(model: CompiledModel) -> list[list[list[_Place]]]:
    """For each axis of each output the axes of inputs that are as long as it at all sizes; none if it is constant.

    Raises:
        InputError: An axis that varies is as long as that of no input.
    """
    found = []
    for position, info in enumerate(model.outputs):
        axes: list[list[_Place]] = []
        for axis in range(len(info.shape)):
            lengths = [size.outputs[position].shape[axis] for size in model.sizes]
            varies = len(set(lengths)) > 1
            alike = [place for place in _places(model) if varies and _lengths(model.sizes, *place) == lengths]
            if varies and not alike:
                raise InputError(
                    f"{model.metadata.name}: axis {axis} of output {shown(info.name)!r} is that of no input"
                )
            axes.append(alike)
        found.append(axes)
    return found


def _places(model: CompiledModel) -> list[_Place]:
    """All axes of all inputs."""
    return [(index, axis) for index, info in enumerate(model.inputs) for axis in range(len(info.shape))]


def _lengths(sizes: Sequence[Size], index: int, axis: int) -> list[int]:
    """How long an axis of an input is at each size."""
    return [size.inputs[index].shape[axis] for size in sizes]
