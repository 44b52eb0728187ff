"""The inputs of a call: checked, made contiguous, and given a size.

shapes of a call  ->  a size that has them
                  ->  the nearest larger size, if the model was found to compute each row by itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArtifactError, InputError, one_line
from .metadata import Metadata, Size, shapes_in_words

Array = NDArray[Any]


class Wanted:
    """A size of a model, as calls need it.

    Args:
        index: Its position.
        size: The size.

    Attributes:
        index: Its position.
        inputs: Name, type and shape of each input.
        outputs: Those of each output.
    """

    def __init__(self, index: int, size: Size) -> None:
        self.index = index
        self.inputs = [(info.name, dtype_of(info.dtype), info.shape) for info in size.inputs]
        self.outputs = [(info.name, dtype_of(info.dtype), info.shape) for info in size.outputs]


class CallInputs:
    """Checks the inputs of calls. Several threads may use one object.

    Args:
        metadata: What the model says about itself.

    Attributes:
        names: The names of the inputs.

    Raises:
        ArtifactError: NumPy knows a type only by a package that is not installed.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._sizes = [Wanted(index, size) for index, size in enumerate(metadata.sizes)]
        self._only = self._sizes[0] if len(self._sizes) == 1 else None
        self._by_shapes: dict[tuple[tuple[int, ...], ...], tuple[Wanted, int | None]] = {
            size.shapes: (wanted, None) for size, wanted in zip(metadata.sizes, self._sizes, strict=True)
        }
        self.names = [info.name for info in metadata.inputs]

    def __call__(self, feeds: Any) -> tuple[Wanted, int | None, list[Array]]:
        """What runs a call, and with which arrays.

        Args:
            feeds: What the caller gives for each input, by name.

        Returns:
            The size; how many rows the inputs have, if these are fewer than those of the size; the inputs as
            contiguous arrays of the size.

        Raises:
            InputError: An input is missing, unknown, masked, no array, on another device, or of another shape or type.
        """
        only = self._only
        if only is not None and type(feeds) is dict and len(feeds) == len(only.inputs):
            arrays = []
            for name, dtype, shape in only.inputs:
                value = feeds.get(name)
                if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                    break
                arrays.append(value if value.flags.c_contiguous else np.ascontiguousarray(value))
            else:
                return only, None, arrays  # nearly every call is right at this first look
        given = self._given(feeds)
        wanted, rows = self._dispatched(given)
        return wanted, rows, [self._array(*each, rows) for each in zip(wanted.inputs, given, strict=True)]

    def _given(self, feeds: Any) -> list[Array]:
        """The inputs as arrays, in their order."""
        name = self._metadata.name
        if not isinstance(feeds, Mapping):
            first = f"{{{self.names[0]!r}: x}}" if self.names else "{}"
            raise InputError(
                f"{name}: run takes its inputs by name, as {first}, not a {type(feeds).__name__}; call "
                f"the model itself to give them in order"
            )
        if feeds.keys() != set(self.names):
            self._refuse_unknown(feeds.keys() - set(self.names) - set(self._metadata.ignored))
        given = []
        for info in self._metadata.inputs:
            if info.name not in feeds:
                raise InputError(f"{name}: input {info.name!r} is missing")
            given.append(_as_array(f"{name}: input {info.name!r}", feeds[info.name]))
        return given

    def _dispatched(self, given: Sequence[Array]) -> tuple[Wanted, int | None]:
        if self._only is not None:
            return self._only, None  # the check of each input has the better message
        shapes = tuple([value.shape for value in given])
        known = self._by_shapes.get(shapes)
        if known is None:
            known = self._by_shapes[shapes] = self._padded(shapes)
        return known

    def _array(self, wanted: tuple[str, Any, tuple[int, ...]], value: Array, rows: int | None) -> Array:
        """An input of the right shape and type, in the byte order of this machine."""
        name, dtype, shape = wanted
        if value.dtype != dtype:
            if value.dtype.newbyteorder("=") != dtype:
                kind = "an array of Python objects" if value.dtype == object else value.dtype.name
                raise InputError(f"{self._metadata.name}: input {name!r} is {kind}, not {dtype.name}")
            value = value.astype(dtype)  # from the byte order of another machine
        if value.shape == shape:
            return value if value.flags.c_contiguous else np.ascontiguousarray(value)
        if rows is None:
            raise InputError(f"{self._metadata.name}: input {name!r} has shape {value.shape}, not {shape}")
        copied = np.empty(shape, dtype)
        copied[:rows], copied[rows:] = value, value[-1:]  # the last row again: its values are such as the model takes
        return copied

    def _padded(self, shapes: tuple[tuple[int, ...], ...]) -> tuple[Wanted, int]:
        """The size with the fewest rows that holds inputs of these shapes, and how many rows they have."""
        metadata = self._metadata
        batched = [position for position, info in enumerate(metadata.inputs) if info.name in metadata.batched]
        rows = {shapes[position][0] for position in batched if shapes[position]}
        holding = []
        for wanted, size in zip(self._sizes, metadata.sizes, strict=True) if len(rows) == 1 and min(rows) > 0 else ():
            shortened = list(size.shapes)
            for position in batched:
                shortened[position] = (min(rows), *shortened[position][1:])
            if tuple(shortened) == shapes:
                holding.append((size.shapes[batched[0]][0], wanted.index))
        holding = [(count, index) for count, index in holding if count > min(rows)]
        if not holding:
            wanted_shapes = shapes_in_words(list(zip(self.names, shapes, strict=True)))
            raise InputError(f"{metadata.name} {metadata.lacks(wanted_shapes)}")
        return self._sizes[min(holding)[1]], min(rows)

    def _refuse_unknown(self, unknown: Set[Any]) -> None:
        """Raises `InputError` if there are names that no input has."""
        if unknown:
            known = ", ".join(map(repr, self.names))
            raise InputError(f"{self._metadata.name} has no input {min(unknown, key=str)!r}; its inputs are {known}")


def dtype_of(name: str) -> Any:
    """NumPy's type of a name.

    Raises:
        ArtifactError: It is known by a package that is not installed.
    """
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise ArtifactError("an input or output is bfloat16, for which NumPy needs ml_dtypes") from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _as_array(what: str, feed: Any) -> Array:
    """An input as an array: in place if it exports DLPack. Raises `InputError` if no model can read it.

    Args:
        what: What messages call it.
        feed: What the caller gives.
    """
    if isinstance(feed, np.ma.MaskedArray):
        if np.ma.is_masked(feed):
            raise InputError(f"{what} has masked elements, and a model knows no masks: fill them, as in x.filled(0)")
        return np.asarray(feed)
    if isinstance(feed, np.ndarray):
        return np.asarray(feed)
    # DLPack does not carry torch's marks of a negated or conjugated tensor.
    if getattr(feed, "is_conj", bool)():
        feed = feed.resolve_conj()
    if getattr(feed, "is_neg", bool)():
        feed = feed.resolve_neg()
    exports = hasattr(feed, "__dlpack__")
    try:
        return np.from_dlpack(feed) if exports else np.asarray(feed)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = "array in the memory of the CPU" if exports else "array"
        raise InputError(f"{what} is no {kind}: {one_line(error)}") from error
