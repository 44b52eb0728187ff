"""A compiled model: NumPy in, NumPy out; saved to a folder, loaded without a compiler in another process.

folder/
  metadata.json   what it is, for which machine, its inputs and outputs, checksums of the other files
  model.vm        the sequence of kernel calls, and the constants
  kernels.bc      the kernels as LLVM bitcode, made machine code when loaded
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax

from ..errors import ArtifactError, InputError
from .messages import first_line
from .metadata import Metadata, TensorInfo, host_features

_METADATA, _PROGRAM, _KERNELS = "metadata.json", "model.vm", "kernels.bc"


class CompiledModel:
    """A model ready to run on this machine. Not to be called from several threads at once.

    y = model(x)                                  inputs in order, or by keyword
    outputs = model.run({"data": x})              by name, all outputs
    """

    def __init__(self, module: Any, metadata: Metadata) -> None:
        """`module` is TVM's executable (or its module) whose function `main` takes the inputs in order."""
        self.metadata = metadata
        self._module = module.mod if hasattr(module, "mod") else module
        try:
            self._main = relax.VirtualMachine(module if hasattr(module, "jit") else self._module, tvm.cpu())["main"]
        except Exception as error:
            # The virtual machine raises whatever the linker of the JIT or the deserialiser raise.
            raise ArtifactError(f"{metadata.name}: cannot be made ready to run: {first_line(error)}") from error

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self.metadata.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self.metadata.outputs

    def __call__(self, *arguments: NDArray[Any], **named: NDArray[Any]) -> Any:
        """The output for these inputs, or a tuple of them where there are several. Raises `InputError`."""
        if len(arguments) > len(self.inputs):
            raise InputError(f"{self.metadata.name} takes {len(self.inputs)} inputs, not {len(arguments)}")
        feeds = {info.name: value for info, value in zip(self.inputs, arguments, strict=False)}
        for name in sorted(feeds.keys() & named.keys()):
            raise InputError(f"{self.metadata.name}: input {name!r} is given twice")
        results = tuple(self.run({**feeds, **named}).values())
        return results[0] if len(results) == 1 else results

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """All outputs by name. Raises `InputError` for a missing or unknown input, a wrong shape or type."""
        unknown = [name for name in feeds if name not in {info.name for info in self.inputs}]
        if unknown:
            known = ", ".join(repr(info.name) for info in self.inputs)
            raise InputError(f"{self.metadata.name} has no input {unknown[0]!r}; its inputs are {known}")
        result = self._main(*(tvm.runtime.tensor(self._checked(info, feeds)) for info in self.inputs))
        values = [result] if len(self.outputs) == 1 else list(result)
        return {info.name: value.numpy() for info, value in zip(self.outputs, values, strict=True)}

    def _checked(self, info: TensorInfo, feeds: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        if info.name not in feeds:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is missing")
        value = np.asarray(feeds[info.name])
        if value.shape != info.shape:
            raise InputError(f"{self.metadata.name}: input {info.name!r} has shape {value.shape}, not {info.shape}")
        if value.dtype.name != info.dtype:
            raise InputError(f"{self.metadata.name}: input {info.name!r} is {value.dtype.name}, not {info.dtype}")
        return np.ascontiguousarray(value)

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, whole or not at all; an older model there is replaced.

        Raises `ArtifactError` where the path holds something else, or cannot be written.
        """
        path = Path(folder)
        if path.exists() and not (path / _METADATA).is_file() and (not path.is_dir() or any(path.iterdir())):
            raise ArtifactError(f"{path}: exists and is no stormdrop model; it is left as it is")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
                new, old = Path(scratch) / "new", Path(scratch) / "old"
                new.mkdir()
                self._write(new)
                if path.exists():
                    os.replace(path, old)
                os.replace(new, path)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
        return path

    def _write(self, folder: Path) -> None:
        with _quiet():
            self._module.write_to_file(str(folder / _PROGRAM), "vm")
        (kernels,) = self._module.imports
        kernels.write_to_file(str(folder / _KERNELS), "bc")
        checksums = {name: _checksum(folder / name) for name in (_PROGRAM, _KERNELS)}
        (folder / _METADATA).write_text(self.metadata.to_json(checksums))

    @classmethod
    def load(cls, folder: str | Path) -> CompiledModel:
        """A saved model. Needs no compiler and no `PATH`; takes a second or more to make machine code.

        Raises `ArtifactError` for damaged files, another version of TVM, and a CPU that lacks instructions that the
        kernels use.
        """
        path = Path(folder)
        if not (path / _METADATA).is_file():
            raise ArtifactError(f"{path}: " + ("no stormdrop model" if path.exists() else "no such folder"))
        try:
            metadata, checksums = Metadata.from_json((path / _METADATA).read_text())
            damaged = [name for name in (_PROGRAM, _KERNELS) if _checksum(path / name) != checksums.get(name)]
        except FileNotFoundError as error:
            raise ArtifactError(f"{path}: {Path(error.filename).name} is missing") from error
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise ArtifactError(f"{path}: cannot be read: {first_line(error)}") from error
        if damaged:
            raise ArtifactError(f"{path}: {damaged[0]} is damaged: its checksum differs")
        if metadata.tvm != tvm.__version__:
            raise ArtifactError(f"{path}: was made with TVM {metadata.tvm}; this is {tvm.__version__}; tune it again")
        lacking = sorted(set(metadata.features) - host_features())
        if lacking:
            raise ArtifactError(f"{path}: was made for {metadata.cpu}; this CPU lacks {', '.join(lacking)}")
        with _quiet():
            program = _loader("relax.VMExecutable")(str(path / _PROGRAM))
        program.import_module(_loader("ll")(str(path / _KERNELS), "bc"))
        return cls(program, metadata)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop the warning "Scope ..." that TVM writes to file descriptor 2 for every constant; all else is passed on."""
    try:
        stderr = os.dup(2)
    except OSError:
        yield  # a process without standard error has nothing to keep quiet
        return
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            sink.seek(0)
            for line in sink:
                if b"Warning: Scope " not in line:
                    os.write(2, line)


def _loader(kind: str) -> Any:
    return tvm_ffi.get_global_func(f"ffi.Module.load_from_file.{kind}")


def _checksum(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
