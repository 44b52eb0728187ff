"""The C interface of `model.so`, by ctypes.

A library is loaded once in a process, however often its model is: it is known by its SHA-256. All libraries share the
threads of the first one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ArtifactError
from .inputs import Array, address_of
from .sizes import Size

INTERFACE = 1
"""The version of the C interface."""


class Tensor(ctypes.Structure):
    """`stormdrop_tensor`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("output", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
    )


_Tensors = ctypes.POINTER(ctypes.POINTER(Tensor))
_Pointers = ctypes.POINTER(ctypes.c_void_p)

_Arrays = (ctypes.c_int32, _Tensors, _Pointers)
PartFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, *_Arrays, *_Arrays)
"""`stormdrop_part_function`."""


class _Options(ctypes.Structure):
    _fields_ = (
        ("interface", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("constants", ctypes.c_void_p),
        ("constants_bytes", ctypes.c_size_t),
        ("unchecked", ctypes.c_int32),
        ("part", PartFunction),
        ("pool", ctypes.c_void_p),
    )


class Library:
    """A loaded `model.so`.

    Args:
        descriptor: The file. It stays open, because the system's loader knows libraries by their paths.

    Attributes:
        descriptor: The file.
        interface: The version of its interface. With another one than `INTERFACE` nothing else of it can be called.
        needs_tvm: Whether its kernels call functions of TVM: such a model cannot be opened.

    Raises:
        OSError: It cannot be loaded.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._library = library = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        library.stormdrop_interface.restype = ctypes.c_uint32
        self.interface = int(library.stormdrop_interface())
        if self.interface != INTERFACE:
            return
        signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "needs_tvm": (ctypes.c_int32, ()),
            "error": (ctypes.c_char_p, ()),
            "open": (ctypes.c_void_p, (ctypes.c_char_p, ctypes.POINTER(_Options))),
            "close": (None, (ctypes.c_void_p,)),
            "threads": (ctypes.c_int32, (ctypes.c_void_p,)),
            "pool_of": (ctypes.c_void_p, (ctypes.c_void_p,)),
            "steps": (ctypes.c_int32, (ctypes.c_void_p, ctypes.c_int32)),
            "step": (ctypes.c_char_p, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)),
            "sizes": (ctypes.c_int32, (ctypes.c_void_p,)),
            "input": (ctypes.POINTER(Tensor), (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)),
            "output": (ctypes.POINTER(Tensor), (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)),
            "run": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32, *[ctypes.c_void_p] * 3)),
            "profile": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int32, *[ctypes.c_void_p] * 4)),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(library, f"stormdrop_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, f"_{name}", function)
        self.needs_tvm = bool(self._needs_tvm())

    def __getattr__(self, name: str) -> Any:
        """A function of the interface, as `_open`."""
        raise AttributeError(name)

    def error(self) -> str:
        """Why the last function that failed in this thread did so."""
        return str(self._error().decode(errors="replace"))


class NativeModel:
    """A model that is open. It is closed with the object.

    Args:
        library: Its library.
        weights: The path of its constants, or their bytes, which have been checked; None if there are none.
        threads: The most threads of a call; 0 for all usable cores.
        part: Runs its parts, if it has some.

    Attributes:
        run: The C function: model, size, inputs, outputs, call.
        handle: The model, for this function.
        threads: The most threads of a call.

    Raises:
        ArtifactError: The library refuses to open it.
    """

    def __init__(
        self, library: Library, weights: str | Array | None, threads: int, part: Callable[..., int] | None
    ) -> None:
        self._library, self._weights = library, weights
        self._part = PartFunction(part) if part else PartFunction()  # lives as long as the model
        options = _Options(INTERFACE, threads, None, 0, 0, self._part)
        path = weights.encode() if isinstance(weights, str) else None
        if weights is not None and not isinstance(weights, str):
            options.constants, options.constants_bytes, options.unchecked = address_of(weights), weights.nbytes, 1
        with _opening:  # so that the first two models do not each have threads of their own
            options.pool = _pool.value
            self.handle = library._open(path, ctypes.byref(options))
            if not self.handle:
                raise ArtifactError(library.error())
            _pool.keep(library, self.handle)
        self.run = library._run
        self.threads = int(library._threads(self.handle))

    def profile(self, size: int, inputs: Any, outputs: Any) -> list[tuple[str, float]]:
        """Runs the model. Returns the name of each step, and its seconds.

        Raises:
            ArtifactError: A step fails.
        """
        count = self._library._steps(self.handle, size)
        seconds = (ctypes.c_double * count)()
        if self._library._profile(self.handle, size, inputs, outputs, None, seconds):
            raise ArtifactError(self.error())
        names = [self._library._step(self.handle, size, step).decode() for step in range(count)]
        return list(zip(names, seconds, strict=True))

    def tensors(self, size: int, inputs: int, outputs: int) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, type and shape of each input and output at a size, as the library has them."""
        found = [self._library._input(self.handle, size, index) for index in range(inputs)]
        found += [self._library._output(self.handle, size, index) for index in range(outputs)]
        return [
            (each.contents.name.decode(), each.contents.type.decode(), tuple(each.contents.shape[: each.contents.rank]))
            for each in found
            if each
        ]

    def check_agreement(self, name: str, sizes: Sequence[Size]) -> None:
        """Checks that the library reads and writes what the metadata of a model say.

        Args:
            name: What messages call the model.
            sizes: The sizes of the metadata.

        Raises:
            ArtifactError: It has other inputs or outputs, as that of another model.
        """
        agreed = self._library._sizes(self.handle) == len(sizes)
        for index, size in enumerate(sizes if agreed else ()):
            stated = [(info.name, info.dtype, info.shape) for info in itertools.chain(size.inputs, size.outputs)]
            agreed = agreed and self.tensors(index, len(size.inputs), len(size.outputs)) == stated
        if not agreed:
            raise ArtifactError(f"{name}: its library is that of another model")

    def error(self) -> str:
        """Why the last call that failed in this thread did so."""
        return self._library.error()

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library._close(self.handle)


class _Pool:
    """The threads that all models of this process share: those of the first one, whose library is never unloaded.

    Attributes:
        value: The address; None before a model is open, and in a process that was forked since.
    """

    def __init__(self) -> None:
        self.value: int | None = None

    def keep(self, library: Library, handle: int) -> None:
        """Keeps the threads of the first model, also after it has been closed."""
        if self.value is None:
            self.value = library._pool_of(handle)
            _PoolReference.from_address(self.value).retain(self.value)

    def cores(self) -> int | None:
        """The cores that the threads of all open models share; None before a model is open."""
        return None if self.value is None else int(_PoolReference.from_address(self.value).cores)

    def forget(self) -> None:
        """Forgets threads that are in the process which was forked."""
        self.value = None


class _PoolReference(ctypes.Structure):
    """The beginning of `stormdrop_pool`."""

    _fields_ = (
        ("interface", ctypes.c_uint32),
        ("cores", ctypes.c_int32),
        ("retain", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


_pool = _Pool()
_libraries: dict[str, Library] = {}
_lock, _opening = threading.Lock(), threading.Lock()


def _after_fork() -> None:
    """In a process that was forked no thread holds a lock, and there are none of the pool."""
    global _lock, _opening
    _lock, _opening = threading.Lock(), threading.Lock()
    _pool.forget()


os.register_at_fork(after_in_child=_after_fork)


def pool_cores() -> int | None:
    """The cores that all models of this process share; None before one is open."""
    return _pool.cores()


def library_of(name: str, descriptor: int, digest: str) -> Library:
    """Loads the library of a saved model, which has been checked.

    Args:
        name: What messages call the model.
        descriptor: The file, which is open, and which nobody can change. The function closes it, or the library has it.
        digest: Its SHA-256.

    Raises:
        ArtifactError: It cannot be loaded, or has another interface.
    """
    with _lock:
        if digest in _libraries:
            os.close(descriptor)
            return _libraries[digest]
        try:
            library = Library(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise ArtifactError(f"{name}: its library cannot be loaded: {error}") from error
        except AttributeError as error:  # it is loaded, so that its descriptor is in use
            raise ArtifactError(f"{name}: its library is not one of stormdrop: {error}") from error
        if library.interface != INTERFACE:
            raise ArtifactError(
                f"{name}: its library has the interface {library.interface}, not {INTERFACE}: tune or compile it again"
            )
        _libraries[digest] = library
        return library
