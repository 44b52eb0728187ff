"""The inputs of a call: checked, and given a size.

shapes of a call  ->  a size that has them
                  ->  the nearest larger size, if the model was found to compute each row by itself
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArtifactError, InputError, one_line
from .open_size import OpenSize, Sizes
from .program import ALIGNMENT, State
from .sizes import Size, lacking_size, shapes_in_words

Array = NDArray[Any]

_KNOWN = 4096  # shapes of calls of which it is kept what runs them

_from_buffer, _address_of = ctypes.c_char.from_buffer, ctypes.addressof


class Wanted:
    """A size of a model, as calls need it.

    Args:
        index: Its position.
        size: The size.
        opened: The range that it is of, and its parameters; None for a size that the model was compiled for.

    Attributes:
        index: Its position among those that the model was compiled for; -1 for a size of a range.
        size: The size.
        opened: As given.
        inputs: Name, type and shape of each input.
        outputs: Name, type and shape of each output.
    """

    def __init__(self, index: int, size: Size, opened: tuple[OpenSize, Sizes] | None = None) -> None:
        self.index, self.size, self.opened = index, size, opened
        self.inputs = [(info.name, dtype_of(info.dtype), info.shape) for info in size.inputs]
        self.outputs = [(info.name, dtype_of(info.dtype), info.shape) for info in size.outputs]


class Given(NamedTuple):
    """The inputs of a call, checked.

    Attributes:
        wanted: The size that runs it.
        rows: How many rows the batched inputs have, if these are fewer than those of the size.
        arrays: The inputs in their order, of the types of the size and, but for the rows, of its shapes.
    """

    wanted: Wanted
    rows: int | None
    arrays: list[Array]


class CallInputs:
    """Checks the inputs of calls. Several threads may use one object.

    Args:
        name: The name of the model, for messages.
        sizes: All of its sizes.
        batched: The inputs along whose first axis a call may have fewer rows than a size.
        ignored: The names of the inputs that the user's model has and does not use: a call may give them.
        opens: The ranges of sizes at which it runs, too.
        listed: Whether a call at one of `sizes` is one of that size. Else it is one of its range.

    Attributes:
        names: The names of the inputs.
        sizes: The sizes.

    Raises:
        ArtifactError: NumPy knows a type only by a package that is not installed.
    """

    def __init__(
        self,
        name: str,
        sizes: Sequence[Size],
        batched: Sequence[str] = (),
        ignored: Sequence[str] = (),
        opens: Sequence[OpenSize] = (),
        listed: bool = True,
    ) -> None:
        self.sizes = sizes
        self.names = [info.name for info in sizes[0].inputs]
        self._name, self._batched, self._ignored, self._opens = name, batched, ignored, opens
        self._wanted = [Wanted(index, size) for index, size in enumerate(sizes)]
        self._only = self._wanted[0] if len(sizes) == 1 and not opens else None
        self._by_shapes: dict[tuple[tuple[int, ...], ...], tuple[Wanted, int | None]] = {
            size.shapes: (wanted, None) for size, wanted in zip(sizes, self._wanted, strict=True) if listed
        }

    def __call__(self, feeds: Any) -> Given:
        """What runs a call, and with which arrays.

        Args:
            feeds: What the caller gives for each input, by name.

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
                arrays.append(value)
            else:
                return Given(only, None, arrays)  # nearly every call is right at this first look
        given = self._given(feeds)
        wanted, rows = self._dispatched(given)
        return Given(wanted, rows, [self._checked(*each, rows) for each in zip(wanted.inputs, given, strict=True)])

    def elsewhere(self, feeds: Mapping[str, Any]) -> tuple[int, list[Any]]:
        """The size of a call whose inputs are in another memory, and the inputs in their order, otherwise unchecked.

        Args:
            feeds: What the caller gives for each input, by name.

        Raises:
            InputError: An input is missing or unknown, or no size has their shapes.
        """
        self._check_names(feeds)
        values = [feeds[name] for name in self.names]
        if self._only is not None:
            return 0, values  # the check of each input has the better message
        shapes = tuple(map(_shape_of, values))
        wanted, rows = self._by_shapes.get(shapes, (None, None))
        if wanted is None or rows is not None:
            given = shapes_in_words(dict(zip(self.names, shapes, strict=True)))
            raise InputError(f"{self._name} {lacking_size(self.sizes, (), given)}")
        return wanted.index, values

    def _check_names(self, feeds: Any) -> None:
        """Raises `InputError` if an input is missing or unknown."""
        if not isinstance(feeds, Mapping):
            first = f"{{{self.names[0]!r}: x}}" if self.names else "{}"
            raise InputError(
                f"{self._name}: run takes its inputs by name, as {first}, not a {type(feeds).__name__}; call "
                f"the model itself to give them in order"
            )
        if feeds.keys() != set(self.names):
            self._refuse_unknown(feeds.keys() - set(self.names) - set(self._ignored))
        for name in self.names:
            if name not in feeds:
                raise InputError(f"{self._name}: input {name!r} is missing")

    def _given(self, feeds: Any) -> list[Array]:
        """The inputs as arrays, in their order."""
        self._check_names(feeds)
        return [_as_array(f"{self._name}: input {name!r}", feeds[name]) for name in self.names]

    def _dispatched(self, given: Sequence[Array]) -> tuple[Wanted, int | None]:
        if self._only is not None:
            return self._only, None  # the check of each input has the better message
        shapes = tuple([value.shape for value in given])
        known = self._by_shapes.get(shapes)
        if known is None:
            opened = self._opened(shapes)
            known = self._padded(shapes) if opened is None else (opened, None)
            if len(self._by_shapes) < _KNOWN:  # ranges may have very many sizes
                self._by_shapes[shapes] = known
        return known

    def _opened(self, shapes: tuple[tuple[int, ...], ...]) -> Wanted | None:
        """The size of a range with these shapes."""
        for each in self._opens:
            parameters = each.parameters(shapes)
            if parameters is not None:
                inputs = tuple(tensor.at(parameters) for tensor in each.inputs)
                outputs = tuple(tensor.at(parameters) for tensor in each.outputs)
                return Wanted(-1, Size(inputs, outputs), (each, parameters))
        return None

    def _checked(self, wanted: tuple[str, Any, tuple[int, ...]], value: Array, rows: int | None) -> Array:
        """An input of the right shape and type, in the byte order of this machine."""
        name, dtype, shape = wanted
        if value.dtype != dtype:
            if value.dtype.newbyteorder("=") != dtype:
                kind = "an array of Python objects" if value.dtype == object else value.dtype.name
                raise InputError(f"{self._name}: input {name!r} is {kind}, not {dtype.name}")
            value = value.astype(dtype)  # from the byte order of another machine
        if value.shape != shape and rows is None:
            raise InputError(f"{self._name}: input {name!r} has shape {value.shape}, not {shape}")
        return value

    def _padded(self, shapes: tuple[tuple[int, ...], ...]) -> tuple[Wanted, int]:
        """The size with the fewest rows that holds inputs of these shapes, and how many rows they have."""
        batched = [position for position, name in enumerate(self.names) if name in self._batched]
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
            wanted = shapes_in_words(dict(zip(self.names, shapes, strict=True)))
            raise InputError(f"{self._name} {lacking_size(self.sizes, self._batched, wanted)}{self.ranges}")
        return self._wanted[min(holding)[1]], min(rows)

    @property
    def ranges(self) -> str:
        """The end of a message that says from where to where the ranges go, one behind the other."""
        if not self._opens:
            return ""
        bounds = [
            shapes_in_words({tensor.name: tensor.at(sizes).shape for tensor in each.inputs})
            for each, sizes in ((self._opens[0], self._opens[0].first), (self._opens[-1], self._opens[-1].last))
        ]
        return f", and each from {bounds[0]} to {bounds[1]}"

    def _refuse_unknown(self, unknown: Set[Any]) -> None:
        """Raises `InputError` if there are names that no input has."""
        if unknown:
            known = ", ".join(map(repr, self.names))
            raise InputError(f"{self._name} has no input {min(unknown, key=str)!r}; its inputs are {known}")


def _shape_of(value: Any) -> tuple[int, ...]:
    """The shape that an array says it has; () for anything else, which the check of each input refuses."""
    described = getattr(value, "__cuda_array_interface__", None) or {}
    return tuple(described.get("shape", getattr(value, "shape", ())))


def copy_rows(value: Array, copy: Array) -> None:
    """Copies an input, which may have fewer rows than the copy.

    The last row is repeated, because its values are such as the model takes.
    """
    if value.shape == copy.shape:
        np.copyto(copy, value)
    else:
        copy[: len(value)], copy[len(value) :] = value, value[-1:]


def address_of(array: Array) -> int:
    """Where the memory of an array begins."""
    try:
        return _address_of(_from_buffer(array))  # type: ignore[arg-type]  # three times as fast as what is below
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a type that Python does not know
        return int(array.ctypes.data)


def check_memory(state: State, array: Array, shape: tuple[int, ...]) -> None:
    """Checks memory that a step of a decoder is to write.

    Args:
        state: The state that it is for.
        array: What the caller gives.
        shape: The shape of the output.

    Raises:
        ValueError: It has another shape, gaps, or begins where kernels cannot write.
    """
    if array.shape != state.in_memory(shape) or not array.flags.c_contiguous or address_of(array) % ALIGNMENT:
        raise ValueError(
            f"output {state.output} cannot be written to the memory of {array.shape} at {address_of(array):#x}"
        )


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
