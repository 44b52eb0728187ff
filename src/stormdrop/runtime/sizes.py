"""The inputs and outputs of a model at each of its sizes, and how messages say them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..errors import shown

OPEN = -1
"""The size of a dimension that depends on the values of the inputs."""

TYPES = frozenset(
    [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    + ["float16", "float32", "float64", "bool", "bfloat16"]
)
"""The types of tensors, by the names of NumPy's types."""

_MOST_ELEMENTS = 2**40


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model.

    Attributes:
        name: Its name in the user's model.
        shape: Its shape. Only a dimension of an output may depend on the values of the inputs: its size is -1.
        dtype: The name of its NumPy type, such as "float32".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """For example "data float32[1, 3, 224, 224]"."""
        return f"{shown(self.name)} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Size:
    """A size that a model was compiled for.

    Attributes:
        inputs: The inputs with their shapes at this size.
        outputs: The outputs with theirs.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs."""
        return tuple(info.shape for info in self.inputs)


def described(tensors: Sequence[TensorInfo], most: int = 4) -> str:
    """The first few tensors in one line, and how many more there are."""
    line = ", ".join(map(str, tensors[:most]))
    return f"{line} and {len(tensors) - most} more" if len(tensors) > most else line


def shapes_in_words(shapes: Mapping[str, Sequence[int]]) -> str:
    """Shapes of inputs as `--shape` takes them: "ids=1x32,mask=1x32"."""
    return ",".join(f"{shown(name)}={'x'.join(map(str, shape))}" for name, shape in shapes.items())


def sizes_in_words(sizes: Sequence[Size], most: int = 8) -> list[str]:
    """Each size by the shapes in which it differs from others, as `--shape` takes them: "x=4x3x224x224".

    Args:
        sizes: All sizes of a model.
        most: The most sizes that are written out; another entry says how many more there are.
    """
    shapes = zip(*(size.shapes for size in sizes), strict=True)
    differing = [position for position, of_input in enumerate(shapes) if len(set(of_input)) > 1]
    texts = []
    for size in sizes[:most]:
        infos = [size.inputs[position] for position in differing]
        texts.append(shapes_in_words({info.name: info.shape for info in infos}))
    return [*texts, f"{len(sizes) - most} more"] if len(sizes) > most else texts


def lacking_size(sizes: Sequence[Size], batched: Collection[str], wanted: str) -> str:
    """The end of a message about a size that a model does not have.

    Args:
        sizes: All sizes of the model.
        batched: The inputs of which a call may have fewer rows than a size.
        wanted: The size.
    """
    if len(sizes) == 1:
        return f"has no size {wanted}; it has one: {described(sizes[0].inputs)}"
    fewer = f", and fewer rows of {', '.join(map(shown, batched))}" if batched else ""
    return f"has no size {wanted}; its sizes are {'; '.join(sizes_in_words(sizes))}{fewer}"


def check_sizes(sizes: Sequence[Size], batched: Collection[str]) -> None:
    """Checks what a file says of a model's sizes.

    Args:
        sizes: All sizes.
        batched: The inputs of which a call may have fewer rows than a size.

    Raises:
        ValueError: They are not those of one model.
    """
    first = sizes[0]
    for size in sizes:
        for infos, of_first in ((size.inputs, first.inputs), (size.outputs, first.outputs)):
            _check_tensors(infos)
            if [(info.name, info.dtype) for info in infos] != [(info.name, info.dtype) for info in of_first]:
                raise ValueError("its sizes have different inputs or outputs")
        for info in size.inputs:
            if OPEN in info.shape:
                raise ValueError(f"input {info.name!r} has an open dimension: {info.shape}")
    if len({size.shapes for size in sizes}) < len(sizes):
        raise ValueError("a size is there twice")
    if not {info.name for info in first.inputs}.issuperset(batched):
        raise ValueError("an input that is no input has rows")


def _check_tensors(infos: Sequence[TensorInfo]) -> None:
    """Raises ValueError for tensors that no model has."""
    names = [info.name for info in infos]
    if len(set(names)) < len(names):
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    for info in infos:
        extents = [abs(extent) for extent in info.shape if OPEN <= extent < 2**31]
        if len(extents) < len(info.shape) or math.prod(extents) > _MOST_ELEMENTS:
            raise ValueError(f"{info.name!r} has an impossible shape: {info.shape}")
        if info.dtype not in TYPES:
            raise ValueError(f"{info.name!r} has an unknown type: {info.dtype!r}")
