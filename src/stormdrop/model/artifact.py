"""A compiled model: NumPy arrays in, NumPy arrays out; saved to a folder, loaded without a compiler elsewhere.

folder/
  metadata.json   what the model is, for which machine, its inputs and outputs, checksums of the other files; the digest
                  of all this is the digest of the model
  model.vm        the sequence of kernel calls, and the constants
  kernels.bc      the kernels as LLVM bitcode, which loading turns into machine code
  kernels.so      in a native model instead of kernels.bc: machine code, for which loading needs no LLVM
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm.runtime.vm import VirtualMachine
from tvm.support.cc import create_shared, get_cc

from ..errors import ArtifactError, InputError, one_line
from . import artifact_files
from .artifact_files import KERNELS, METADATA, NATIVE, PROGRAM, check_free, checksum
from .atomic_folder import replace_folder
from .loading import load_program, without_scope_warnings
from .metadata import Metadata, TensorInfo

WORKSPACE = "workspace"
"""The name of the program's function that allocates the tensors which `main` takes after its inputs."""

_ALIGNMENT = 64  # bytes: TVM's code assumes this of a tensor unless its function says otherwise

_running_process: int | None = None
"""The process in which a model has run first. TVM's threads are there, and a fork does not copy threads."""


class CompiledModel:
    """A model that is ready to run on this machine.

    `stormdrop.tune_model` makes one, `stormdrop.load` reads one from a folder. Several threads may call one model: the
    calls run one after the other, because each takes all cores. After a fork only one of the two processes can run
    models: start other processes with `multiprocessing.get_context("spawn")`, or fork before the first run.

    Attributes:
        metadata: What the model says about itself: inputs, outputs, machine, versions, provenance.
        symbols: The index of the task of each kernel, by the kernel's name. Empty for a model that was loaded.
        digest: The digest of all files of the folder that the model was loaded from or was saved to last: 64
            hexadecimal digits. None if there is no such folder. Give it to `stormdrop.load` to get this very model.

    Example:
        ```python
        model = stormdrop.load("resnet50.sd")
        y = model(x)                              # inputs in order, or by keyword
        outputs = model.run({"data": x})          # inputs by name; all outputs by name
        model.save("copy.sd")
        ```
    """

    def __init__(self, module: Any, metadata: Metadata, symbols: Mapping[str, int] | None = None) -> None:
        """Make a program ready to run.

        Args:
            module: TVM's executable, or its module. Its function `main` takes the inputs in order.
            metadata: What the model says about itself.
            symbols: The index of the task of each kernel, by the kernel's name.

        Raises:
            ArtifactError: The code cannot be linked into this process.
        """
        self.metadata = metadata
        self.symbols = dict(symbols or {})
        self.digest: str | None = None
        self._lock = threading.Lock()  # TVM's machine and the copies of the inputs are for one call at a time
        self._input_copies: dict[str, tuple[Any, NDArray[Any]]] = {}
        self._types = {info.name: np.dtype(info.dtype) for info in metadata.inputs}
        self._executable, self._module = module, module.mod if hasattr(module, "mod") else module
        try:
            self._main = _main_function(self._new_machine(), len(metadata.inputs))
        except Exception as error:
            # The virtual machine raises whatever the linker of the JIT or the deserialiser raises.
            raise ArtifactError(f"{metadata.name}: cannot be made ready to run: {one_line(error)}") from error

    @classmethod
    def load(cls, folder: str | Path, digest: str | None = None) -> CompiledModel:
        """Load a saved model. This runs code of the folder: load what you trust, or check its digest.

        Loading needs no compiler and no `PATH`. It takes a second or more if the kernels are LLVM bitcode, which has
        to become machine code. A native model needs TVM's runtime library only (`TVM_USE_RUNTIME_LIB=1`, or a TVM
        package without the compiler).

        Args:
            folder: What `save` wrote.
            digest: The digest that the model must have; see `CompiledModel.digest`. Nothing of the folder runs if it
                has another one.

        Raises:
            ArtifactError: The folder holds no model or one with another digest, its files are damaged, they were made
                with another version of TVM, or this CPU lacks instructions that the kernels use.
            InputError: `digest` is no digest.
        """
        program, metadata, found = load_program(Path(folder), digest)
        model = cls(program, metadata)
        model.digest = found
        return model

    def save(self, folder: str | Path, native: bool = False) -> Path:
        """Write the model to a folder, whole or not at all. An older model there is replaced, in one step.

        Whatever ends the process meanwhile, the folder is the older model or the new one. `digest` is then that of the
        folder.

        Args:
            folder: Where to write it. Its parent folders are made if they do not exist.
            native: Write machine code instead of LLVM bitcode. That needs a linker (cc) now and no LLVM later, and
                loads faster.

        Returns:
            The folder.

        Raises:
            ArtifactError: The folder holds something else than a model or cannot be written, the linker fails, or
                this model was loaded from a native one, whose folder can be copied instead.

        Example:
            ```python
            model.save("resnet50.sd", native=True)
            ```
        """
        path, digest = Path(folder), ""

        def write(new: Path) -> None:
            nonlocal digest
            digest = self._write(new, native)
            check_free(path)  # once more: somebody may have put a file there meanwhile

        try:
            check_free(path)
            replace_folder(path, write)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
        self.digest = digest
        return path

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and type of each input, in the order in which a call takes them."""
        return self.metadata.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and type of each output, in the order in which a call returns them."""
        return self.metadata.outputs

    def __call__(self, *arguments: NDArray[Any], **named: NDArray[Any]) -> Any:
        """Run the model on inputs in order or by keyword; otherwise as `run`.

        Args:
            *arguments: The first inputs, in the order of `inputs`.
            **named: The other inputs by name.

        Returns:
            The output as a NumPy array, or a tuple of arrays in the order of `outputs` if there are several.

        Raises:
            InputError: An input is missing, unknown, given twice, or of another shape or type.

        Example:
            ```python
            probabilities = model(image)
            ```
        """
        if len(arguments) > len(self.inputs):
            raise InputError(f"{self.metadata.name} takes {len(self.inputs)} inputs, not {len(arguments)}")
        feeds = {info.name: value for info, value in zip(self.inputs, arguments, strict=False)}
        for name in sorted(feeds.keys() & named.keys()):
            raise InputError(f"{self.metadata.name}: input {name!r} is given twice")
        results = tuple(self.run({**feeds, **named}).values())
        return results[0] if len(results) == 1 else results

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the model on inputs by name.

        A contiguous input is read in place; another one, and a read-only NumPy array, is copied first. An input that
        something else than a kernel reads is also copied if its memory does not begin at a multiple of 64 bytes
        (`aligned` makes such arrays, `Metadata.anywhere` names the inputs for which this does not matter).

        Args:
            feeds: Each input by name: a NumPy array, or anything that exports DLPack from the memory of the CPU.

        Returns:
            All outputs by name. The arrays belong to the caller: later calls do not change them.

        Raises:
            InputError: An input is missing, unknown, on another device, or of another shape or type.
            ArtifactError: A model has run in this process before it was forked.

        Example:
            ```python
            outputs = model.run({"data": image})
            ```
        """
        if _running_process != os.getpid():
            _begin_running()
        unknown = feeds.keys() - self._types.keys()
        if unknown:
            known = ", ".join(repr(info.name) for info in self.inputs)
            raise InputError(f"{self.metadata.name} has no input {min(unknown)!r}; its inputs are {known}")
        with self._lock:
            result = self._main(*(self._input_tensor(info, feeds) for info in self.inputs))
            values = [result] if len(self.outputs) == 1 else list(result)
            return {info.name: value.numpy() for info, value in zip(self.outputs, values, strict=True)}

    def instrumented(self, callback: Callable[..., int]) -> CompiledModel:
        """The same model, whose virtual machine calls `callback` before and after each of its calls; see `profile`."""
        model = copy.copy(self)
        model._lock, model._input_copies = threading.Lock(), {}
        machine = self._new_machine()
        machine.set_instrument(tvm_ffi.convert(callback))
        model._main = _main_function(machine, len(self.inputs))
        return model

    def _new_machine(self) -> Any:
        return VirtualMachine(self._executable if hasattr(self._executable, "jit") else self._module, tvm.cpu())

    def _input_tensor(self, info: TensorInfo, feeds: Mapping[str, Any]) -> Any:
        """An input as TVM's tensor: the caller's memory if the kernels can read it, else a copy."""
        if info.name not in feeds:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is missing")
        feed = _without_lazy_bits(feeds[info.name])
        value = feed if isinstance(feed, np.ndarray) else _as_array(info.name, feed)
        contiguous = self._checked(info, value)
        # NumPy does not export read-only memory.
        exports = hasattr(feed, "__dlpack__") and (feed is not value or value.flags.writeable)
        alignment = value.itemsize if info.name in self.metadata.anywhere else _ALIGNMENT
        if exports and contiguous is value and value.size and value.ctypes.data % alignment == 0:
            return tvm_ffi.from_dlpack(feed)
        # The copy goes into memory that is kept, because touching fresh pages takes longer than copying.
        if info.name not in self._input_copies:
            tensor = tvm.runtime.empty(info.shape, info.dtype)
            self._input_copies[info.name] = tensor, np.from_dlpack(tensor)
        tensor, view = self._input_copies[info.name]
        np.copyto(view, contiguous)
        return tensor

    def _checked(self, info: TensorInfo, value: NDArray[Any]) -> NDArray[Any]:
        """An input of the right shape and type, contiguous."""
        if value.shape != info.shape:
            raise InputError(f"{self.metadata.name}: input {info.name!r} has shape {value.shape}, not {info.shape}")
        if value.dtype != self._types[info.name]:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is {value.dtype.name}, not {info.dtype}")
        return np.asarray(value, order="C")

    def _write(self, folder: Path, native: bool) -> str:
        """Write the files into an empty folder. Returns their digest."""
        (kernels,) = self._module.imports
        if kernels.kind != "llvm":
            raise ArtifactError(
                f"{self.metadata.name}: was loaded from a native model and cannot be saved: copy its folder"
            )
        with without_scope_warnings():
            artifact_files.write_module(self._module, "vm", folder / PROGRAM)
        if native:
            self._link(kernels, folder / NATIVE)
        else:
            artifact_files.write_module(kernels, "bc", folder / KERNELS)
        checksums = {name: checksum(folder / name) for name in (PROGRAM, NATIVE if native else KERNELS)}
        text = self.metadata.to_json(checksums)
        (folder / METADATA).write_text(text)
        return Metadata.from_json(text.encode())[2]

    def _link(self, kernels: Any, library: Path) -> None:
        compiler = needs_linker()
        objects = library.with_suffix(".o")
        artifact_files.write_module(kernels, "o", objects)
        try:
            create_shared(str(library), [str(objects)], cc=compiler)
        except (RuntimeError, OSError) as error:
            lines = [line for line in str(error).splitlines() if line.strip() and "Compilation error" not in line]
            reason = next((line for line in lines if "error" in line.lower()), (lines or ["it gives no reason"])[0])
            raise ArtifactError(f"{self.metadata.name}: {compiler} does not link it: {reason}") from error
        objects.unlink()


def needs_linker() -> str:
    """Find the compiler that links native models.

    Returns:
        Its path.

    Raises:
        ArtifactError: There is none on the PATH.
    """
    compiler = get_cc()
    if compiler is None:
        raise ArtifactError("a native model needs a linker, and there is no cc on the PATH")
    return str(compiler)


def aligned(value: NDArray[Any]) -> NDArray[Any]:
    """Copy an array into memory that a model reads in place: contiguous, beginning at a multiple of 64 bytes."""
    memory = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    copied = memory[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
    copied[...] = value
    return copied


def _begin_running() -> None:
    """Note that TVM's threads are in this process from now on. Raises `ArtifactError` if they are in another one."""
    global _running_process
    if _running_process not in (None, os.getpid()):  # another thread may have just noted it
        raise ArtifactError(
            "a model has run before this process was forked, and TVM's threads do not survive a fork: start processes "
            "with multiprocessing's method 'spawn', or fork before a model runs"
        )
    _running_process = os.getpid()


def _main_function(machine: VirtualMachine, inputs: int) -> Callable[..., Any]:
    """The function `main` of the inputs alone: if the program has a workspace, it is allocated here and passed on."""
    has_workspace = machine.module.implements_function(WORKSPACE)
    main, tensors = machine["main"], tuple(machine[WORKSPACE]()) if has_workspace else ()
    taken = int(machine.module["get_function_arity"]("main")) - len(tensors)
    if taken != inputs:
        raise ArtifactError(f"the program takes {taken} inputs, not {inputs}")
    return (lambda *arguments: main(*arguments, *tensors)) if tensors else main


def _without_lazy_bits(feed: Any) -> Any:
    """A tensor of torch that is negated or conjugated only by a mark, as what the mark means.

    DLPack does not carry the mark: torch exports the memory of a negated tensor without a word.
    """
    if getattr(feed, "is_conj", bool)():
        feed = feed.resolve_conj()
    return feed.resolve_neg() if getattr(feed, "is_neg", bool)() else feed


def _as_array(name: str, feed: Any) -> NDArray[Any]:
    """An input that is no NumPy array as one. Raises `InputError` if it is on another device."""
    if not hasattr(feed, "__dlpack__"):
        return np.asarray(feed)
    try:
        return np.from_dlpack(feed)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"input {name!r} is no array in the memory of the CPU: {one_line(error)}") from error
