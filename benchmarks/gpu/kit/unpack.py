"""Unpacks a bundle that `bundle.py` has made. It needs Python and nothing else: no pip, no network.

    python3 unpack.py PARTS --into FOLDER

PARTS is the folder of the parts and of `manifest.json`. Each part is checked before anything is unpacked. FOLDER then
holds the packages, the source, and `activate`, a script that sets what Python and the loader need:

    . FOLDER/activate
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import io
import json
import os
import platform
import shlex
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
CUDA_RUNTIME = "libcudart.so.13"  # that TVM's runtime for CUDA loads


class BundleError(Exception):
    """A bundle cannot be made or unpacked; one line that says why."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path, help="the folder of the parts")
    parser.add_argument("--into", type=Path, required=True, help="the folder to unpack into: a new or empty one")
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        script = unpack(options.parts, options.into.absolute())
    except (BundleError, OSError) as error:
        sys.exit(str(error))
    print(f"unpacked in {time.monotonic() - begin:.0f} s; now: . {shlex.quote(str(script))}")
    print(script.read_text(), end="")


def unpack(parts: Path, into: Path) -> Path:
    """Checks and unpacks a bundle.

    Args:
        parts: The folder of the parts.
        into: The folder to unpack into. What an earlier call has unpacked there is replaced.

    Returns:
        The script that sets the environment.

    Raises:
        BundleError: A part is missing or damaged, the bundle is for another Python or machine, the folder holds
            something else, or there is no room.
        OSError: A folder cannot be read or written.
    """
    manifest = read_manifest(parts)
    _check_python(manifest["python"])
    archives = manifest["archives"]
    for archive in archives.values():
        for part in archive["parts"]:
            check_part(parts, part)
    _check_folder(into, sum(archive["bytes"] for archive in archives.values()))
    into.mkdir(parents=True, exist_ok=True)
    shutil.copy(parts / MANIFEST, into)
    for name, archive in archives.items():
        with _Joined([parts / part["name"] for part in archive["parts"]]) as file:
            try:
                with tarfile.open(fileobj=file, mode="r|xz") as members:
                    members.extractall(into, filter="data")
            except tarfile.CompressionError:
                raise BundleError("this Python cannot read xz: it was built without the module lzma") from None
            except (OSError, tarfile.TarError) as error:
                raise BundleError(f"{name} cannot be unpacked into {into}: {error}") from error
    for name in manifest["assumed"]:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            print(f"{name} is not installed here: make the bundle without it in --assumed", file=sys.stderr)
    script = into / "activate"
    script.write_text(_activation(into))
    return script


def check_part(folder: Path, part: dict[str, Any]) -> None:
    """Raises `BundleError` if a part of a folder is missing or is not what the manifest says."""
    path = folder / part["name"]
    if not path.is_file():
        raise BundleError(f"{path} is missing")
    if path.stat().st_size != part["bytes"]:
        raise BundleError(f"{path} has {path.stat().st_size} bytes, not {part['bytes']}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != part["sha256"]:
        raise BundleError(f"{path} is damaged: its SHA-256 is not that of {MANIFEST}")


def read_manifest(parts: Path) -> dict[str, Any]:
    """The manifest of a folder of parts. Raises `BundleError` if it is missing, damaged, or something else."""
    path = parts / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise BundleError(f"{path} is missing") from None
    except ValueError:
        raise BundleError(f"{path} is damaged: it is no JSON") from None
    try:
        _ = manifest["python"], manifest["assumed"]
        for archive in manifest["archives"].values():
            _ = archive["key"], archive["bytes"] + 0
            for part in archive["parts"]:
                _ = parts / part["name"], part["bytes"], part["sha256"]
    except (AttributeError, KeyError, TypeError):
        raise BundleError(f"{path} is no manifest of a bundle") from None
    return manifest


def _check_python(wanted: str) -> None:
    here = ".".join(platform.python_version_tuple()[:2])
    if here != wanted:
        raise BundleError(f"the bundle is for Python {wanted}, and this is Python {here}: bundle.py --python {here}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise BundleError(f"the bundle is for x86-64 Linux, and this is {platform.machine()} {platform.system()}")


def _check_folder(into: Path, size: int) -> None:
    if into.exists() and not into.is_dir():
        raise BundleError(f"{into} is no folder")
    if into.exists() and any(into.iterdir()):
        if not (into / MANIFEST).exists():
            raise BundleError(f"{into} holds something else: choose a new folder")
        for name in ("site-packages", "source"):
            shutil.rmtree(into / name, ignore_errors=True)
    existing = next(folder for folder in (into, *into.parents) if folder.exists())
    if (free := shutil.disk_usage(existing).free) < size:
        raise BundleError(f"no room in {existing}: {free / 1e6:.0f} MB are free, and {size / 1e6:.0f} MB are needed")


class _Joined(io.RawIOBase):
    """Files that are read as if they were one."""

    def __init__(self, paths: list[Path]) -> None:
        self._files = [path.open("rb") for path in paths]

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._files[0].read(size)
        while not chunk and len(self._files) > 1:
            self._files.pop(0).close()
            chunk = self._files[0].read(size)
        return chunk

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()


def _activation(into: Path) -> str:
    """The script for the shell."""
    lines = [_before("PYTHONPATH", f"{into}/source/src", f"{into}/site-packages")]
    tools = next((folder for folder in _toolkits() if (folder / "bin" / "nvcc").exists()), None)
    if shutil.which("nvcc") is None and tools is not None:
        lines.append(_before("PATH", f"{tools}/bin"))
    if not _loads(CUDA_RUNTIME):
        library = next((folder for folder in _library_folders() if (folder / CUDA_RUNTIME).exists()), None)
        if library is None:
            lines.append(f"# There is no {CUDA_RUNTIME} here: set LD_LIBRARY_PATH to its folder for CUDA.")
        else:
            lines.append(_before("LD_LIBRARY_PATH", str(library)))
    return "\n".join([*lines, ""])


def _before(variable: str, *folders: str) -> str:
    return f"export {variable}={shlex.quote(':'.join(folders))}${{{variable}:+:${variable}}}"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _toolkits() -> Iterator[Path]:
    """Where CUDA's toolkit may be."""
    yield from (Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ)
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).resolve().parents[1]
    yield Path("/usr/local/cuda")
    yield from sorted(Path("/usr/local").glob("cuda-13*"), reverse=True)


def _library_folders() -> Iterator[Path]:
    """Where CUDA's libraries may be: in the toolkit, or in NVIDIA's packages for Python, as torch brings them."""
    for toolkit in _toolkits():
        yield from (toolkit / "lib64", toolkit / "targets" / "x86_64-linux" / "lib")
    for folder in map(Path, sys.path):
        yield from (folder / "nvidia" / "cu13" / "lib", folder / "nvidia" / "cuda_runtime" / "lib")


if __name__ == "__main__":
    main()
