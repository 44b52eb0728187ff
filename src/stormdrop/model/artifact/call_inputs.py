"""The inputs of a call of a compiled model: which size they have, whether they are right, and how kernels get them.

shapes of the inputs     -> one of the sizes that the model was compiled for, exactly
fewer rows than a size   -> the nearest larger size, if the model was found to compute each row by itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from ...errors import InputError, one_line
from ..program.executor import aligned_memory
from ..program.program import ALIGNMENT, TensorInfo, bytes_of
from .machines import Entry
from .metadata import Metadata, shapes_in_words

Given = tuple[Any, NDArray[Any]]
"""What a caller gives for an input, and the same as an array."""


class Dispatch(NamedTuple):
    """What runs a call.

    Attributes:
        size: The position of the size.
        rows: How many rows the inputs have, if these are fewer than those of the size.
    """

    size: int
    rows: int | None = None


_ONLY = Dispatch(0)


class CallInputs:
    """Checks the inputs of calls and says where kernels read them. Several threads may use one object.

    Args:
        metadata: What the model says about itself.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.sizes = metadata.all_sizes
        self.types = {info.name: np.dtype(info.dtype) for info in metadata.inputs}
        self._wanted = [(info.name, self.types[info.name], info.shape) for info in metadata.inputs]
        self._known = {size.shapes: Dispatch(position) for position, size in enumerate(self.sizes)}

    def given(self, feeds: Any) -> list[Given]:
        """The inputs in their order.

        Args:
            feeds: What the caller gives for each input, by name.

        Raises:
            InputError: They are no mapping; an input is missing, unknown, masked, no array or on another device.
        """
        if not isinstance(feeds, (dict, Mapping)):  # a dictionary is known at once
            first = f"{{{self.metadata.inputs[0].name!r}: x}}" if self.metadata.inputs else "{}"
            raise InputError(
                f"{self.metadata.name}: run takes its inputs by name, as {first}, not a {type(feeds).__name__}; call "
                f"the model itself to give them in order"
            )
        if feeds.keys() != self.types.keys():
            self._refuse_unknown(feeds.keys() - self.types.keys() - set(self.metadata.ignored))
        given = []
        for info in self.metadata.inputs:
            if info.name not in feeds:
                raise InputError(f"{self.metadata.name}: input {info.name!r} is missing")
            feed = feeds[info.name]
            plain = type(feed) is np.ndarray
            given.append((feed, feed) if plain else _given(f"{self.metadata.name}: input {info.name!r}", feed))
        return given

    def dispatched(self, given: Sequence[Given]) -> Dispatch:
        """What runs a call with these inputs.

        Raises:
            InputError: There is no such size, and no larger one that may run it.
        """
        if len(self.sizes) == 1:
            return _ONLY  # the check of each input has the better message
        shapes = tuple([value.shape for _, value in given])
        known = self._known.get(shapes)
        if known is None:
            known = self._known[shapes] = self._padded(shapes)
        return known

    def placed(self, info: TensorInfo, given: Given, entry: Entry, rows: int | None) -> tuple[int, NDArray[Any]]:
        """Where kernels read an input: in the caller's memory if they can, else in a copy.

        Args:
            info: The input at the size that runs the call.
            given: What the caller gives.
            entry: Has the memory for copies.
            rows: As in `Dispatch`. The last row is repeated, because its values are such as the model takes.

        Returns:
            The address, and the input as an array that begins there.

        Raises:
            InputError: The input has another shape or type.
        """
        feed, value = self._checked(info, given, rows)
        if value.shape != info.shape:
            address, copied = _copy_of(info, entry)
            copied[:rows], copied[rows:] = value, value[-1:]
            return address, copied
        flags = value.flags
        # NumPy does not export read-only memory.
        exports = flags.writeable if feed is value else hasattr(feed, "__dlpack__")
        if exports and flags.c_contiguous and value.size:
            # NumPy takes longer to say where an array is. What is no array may export another copy each time.
            address = tvm_ffi.from_dlpack(feed).data_ptr() if feed is value else int(value.ctypes.data)
            if address % (value.itemsize if info.name in self.metadata.anywhere else ALIGNMENT) == 0:
                return address, value
        address, copied = _copy_of(info, entry)
        np.copyto(copied, value)
        return address, copied

    def by_name(self, feeds: Any) -> dict[str, NDArray[Any]]:
        """The inputs of a model of one size as arrays, by name.

        Args:
            feeds: What the caller gives for each input, by name.

        Raises:
            InputError: As `given`; or an input has another shape or type.
        """
        if type(feeds) is dict and len(feeds) == len(self._wanted):
            for name, dtype, shape in self._wanted:
                value = feeds.get(name)
                if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                    break
            else:
                return feeds  # nearly every call is right at this first look, which takes half a microsecond
        given = zip(self.metadata.inputs, self.given(feeds), strict=True)
        return {info.name: self._checked(info, one, None)[1] for info, one in given}

    def _refuse_unknown(self, unknown: Set[Any]) -> None:
        """Raises `InputError` if there are names that no input has."""
        if unknown:
            known = ", ".join(repr(info.name) for info in self.metadata.inputs)
            raise InputError(f"{self.metadata.name} has no input {min(unknown, key=str)!r}; its inputs are {known}")

    def _checked(self, info: TensorInfo, given: Given, rows: int | None) -> Given:
        """An input of the right shape and type, in the byte order of this machine."""
        feed, value = given
        wanted = self.types[info.name]
        if value.dtype != wanted:
            if value.dtype.newbyteorder("=") != wanted:
                kind = "an array of Python objects" if value.dtype == object else value.dtype.name
                raise InputError(f"{self.metadata.name}: input {info.name!r} is {kind}, not {info.dtype}")
            feed = value = value.astype(wanted)  # from the byte order of another machine
        if value.shape != info.shape and rows is None:
            raise InputError(f"{self.metadata.name}: input {info.name!r} has shape {value.shape}, not {info.shape}")
        return feed, value

    def _padded(self, shapes: tuple[tuple[int, ...], ...]) -> Dispatch:
        """The size with the fewest rows that holds inputs of these shapes."""
        inputs = self.metadata.inputs
        batched = [position for position, info in enumerate(inputs) if info.name in self.metadata.batched]
        rows = {shapes[position][0] for position in batched if shapes[position]}
        holding = []
        for index, size in enumerate(self.sizes if len(rows) == 1 and min(rows) > 0 else ()):
            shortened = list(size.shapes)
            for position in batched:
                shortened[position] = (min(rows), *shortened[position][1:])
            if tuple(shortened) == shapes:
                holding.append((size.shapes[batched[0]][0], index))
        holding = [(count, index) for count, index in holding if count > min(rows)]
        if not holding:
            wanted = shapes_in_words({info.name: shape for info, shape in zip(inputs, shapes, strict=True)})
            raise InputError(f"{self.metadata.name} {self.metadata.lacks(wanted)}")
        return Dispatch(min(holding)[1], min(rows))


def aligned(value: NDArray[Any]) -> NDArray[Any]:
    """Copies an array into memory that a model reads in place: contiguous, beginning at a multiple of 64 bytes."""
    copied: NDArray[Any] = aligned_memory(value.nbytes).view(value.dtype).reshape(value.shape)
    copied[...] = value
    return copied


def _copy_of(info: TensorInfo, entry: Entry) -> tuple[int, NDArray[Any]]:
    """The memory for copies of an input. It is kept, because touching fresh pages takes longer than copying."""
    if info.name not in entry.copies:
        memory = aligned_memory(bytes_of(info.shape, info.dtype))
        entry.copies[info.name] = int(memory.ctypes.data), memory.view(info.dtype).reshape(info.shape)
    return entry.copies[info.name]


def _given(what: str, feed: Any) -> Given:
    """An input that is no plain NumPy array, and the same as an array. Raises `InputError` if no model can read it.

    Args:
        what: What messages call it.
        feed: What the caller gives.
    """
    if isinstance(feed, np.ma.MaskedArray):
        if np.ma.is_masked(feed):
            raise InputError(f"{what} has masked elements, and a model knows no masks: fill them, as in x.filled(0)")
        feed = np.asarray(feed)
    feed = _without_lazy_bits(feed)
    return feed, feed if isinstance(feed, np.ndarray) else _as_array(what, feed)


def _without_lazy_bits(feed: Any) -> Any:
    """A tensor of torch that is negated or conjugated only by a mark, as what the mark means.

    DLPack does not carry the mark: torch exports the memory of a negated tensor without a word.
    """
    if getattr(feed, "is_conj", bool)():
        feed = feed.resolve_conj()
    return feed.resolve_neg() if getattr(feed, "is_neg", bool)() else feed


def _as_array(what: str, feed: Any) -> NDArray[Any]:
    """An input that is no NumPy array as one. Raises `InputError` if it is none, or on another device."""
    exports = hasattr(feed, "__dlpack__")
    try:
        return np.from_dlpack(feed) if exports else np.asarray(feed)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = "array in the memory of the CPU" if exports else "array"
        raise InputError(f"{what} is no {kind}: {one_line(error)}") from error
