"""Makes a bundle of stormdrop for a machine without a network: its source, and the packages that such a machine lacks.

    bundle.py --out FOLDER [--assumed numpy,scipy,...] [--extras opencl] [--python 3.12] [--part-mb 45]

pip decides what is needed, and downloads it as wheels for x86-64 Linux. Packages that the machine is assumed to have
stay out. Two archives are made, compressed by `xz` and cut into parts: `packages`, a folder of installed packages, and
`source`, the folders of this checkout's last commit that run there. FOLDER then holds the parts, `manifest.json` with
the size and the SHA-256 of each, and `unpack.py`, which unpacks them with nothing but Python. onnx2torch comes, too,
without what it needs: it uses the machine's torch.

An archive whose parts are there and right, and whose contents have not changed, is not made again. Left out, because
nothing uses it at run time: the sources of CUTLASS, TVM's files for browsers, the tests of SymPy, SQLAlchemy and
ONNX Script, and compiled Python files.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from unpack import MANIFEST, BundleError, check_part, read_manifest

ROOT = Path(__file__).parents[3]
ASSUMED = "numpy,scipy,ml-dtypes,onnx,onnxruntime,cuda-bindings,protobuf,typing-extensions,packaging"
ALONE = "onnx2torch"  # by which torch is a peer of models; torch and torchvision, which it needs, are there
SOURCES = ("src", "benchmarks", "tests/stand_ins")
DROPPED = (
    "bin",
    "tvm/3rdparty",
    "tvm/web",
    "sympy/**/tests",
    "sqlalchemy/testing",
    "onnxscript/**/*_test.py",
    "**/__pycache__",
)
"""Patterns of what is left out of the folder of packages."""

_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)] + ["manylinux2014_x86_64"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the parts")
    parser.add_argument("--assumed", default=ASSUMED, help="packages that the machine has (%(default)s)")
    parser.add_argument("--extras", default="opencl", help="extras of stormdrop; may be empty (%(default)s)")
    parser.add_argument("--python", default="3.12", help="the Python of the machine (%(default)s)")
    parser.add_argument("--part-mb", type=float, default=45, help="the most megabytes of a part (%(default)s)")
    options = parser.parse_args()
    try:
        make(options.out, options.assumed.split(","), options.extras, options.python, int(options.part_mb * 1e6))
    except (BundleError, OSError) as error:
        sys.exit(str(error))


def make(out: Path, assumed: list[str], extras: str, python: str, most: int) -> None:
    """Makes what is missing of a bundle.

    Args:
        out: The folder of the bundle.
        assumed: The names of packages that the machine has.
        extras: Extras of stormdrop, separated by commas; may be empty.
        python: The version of Python there, such as "3.12".
        most: The most bytes of a part.

    Raises:
        BundleError: pip, git or xz is missing or fails, or the manifest of a bundle that is there is damaged.
        OSError: The folder cannot be read or written.
    """
    pip = _Pip(python)
    needed = pip.needed(f"{ROOT}[{extras}]" if extras else str(ROOT)) | pip.needed(ALONE, "--no-deps")
    there = {_normal(name) for name in assumed}
    wheels = {name: package for name, package in needed.items() if name not in there}
    commit = _run(["git", "rev-parse", "HEAD"]).strip()
    if _run(["git", "status", "--porcelain", "--", *SOURCES]):
        print("changes that are not committed stay behind", file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("unpack.py"), out)
    bundle = Bundle(out, most)
    bundle.manifest |= {"python": python, "commit": commit, "assumed": sorted(there & needed.keys())}
    contents = {name: package["version"] for name, package in wheels.items()}
    hashes = [package["sha256"] for package in wheels.values()]
    bundle.archive("packages", [sorted(hashes), DROPPED], lambda file: _pack(pip, contents, file))
    bundle.manifest["packages"] = contents
    bundle.archive("source", [commit, SOURCES], _source)
    parts = [part["bytes"] for archive in bundle.manifest["archives"].values() for part in archive["parts"]]
    print(f"{out}: {len(parts)} parts, {sum(parts) / 1e6:.0f} MB; {len(contents)} packages, commit {commit[:8]}")


class Bundle:
    """A folder with parts and their manifest.

    Args:
        out: The folder.
        most: The most bytes of a part.
    """

    def __init__(self, out: Path, most: int) -> None:
        self._out, self._most, self._file = out, most, out / MANIFEST
        self.manifest: dict[str, Any] = {"archives": {}}
        if self._file.exists():
            self.manifest = read_manifest(out)

    def archive(self, name: str, key: Any, write: Callable[[BinaryIO], None]) -> None:
        """Makes an archive, unless all its parts are there and right.

        Args:
            name: The name of the archive.
            key: What its contents follow from, as a value for JSON.
            write: Writes the archive without compression.

        Raises:
            BundleError: There is no `xz`, or it fails.
            OSError: The folder cannot be written.
        """
        digest = hashlib.sha256(json.dumps([key, self._most]).encode()).hexdigest()
        if self._is_right(self.manifest["archives"].get(name), digest):
            print(f"{name}: as it was", file=sys.stderr)
        else:
            self.manifest["archives"][name] = {"key": digest, **self._made(name, write)}
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps(self.manifest, indent=1) + "\n")
        temporary.replace(self._file)

    def _is_right(self, archive: dict[str, Any] | None, digest: str) -> bool:
        if archive is None or archive["key"] != digest:
            return False
        try:
            for part in archive["parts"]:
                check_part(self._out, part)
        except BundleError as error:
            print(f"{error}: it is made again", file=sys.stderr)
            return False
        return True

    def _made(self, name: str, write: Callable[[BinaryIO], None]) -> dict[str, Any]:
        for old in self._out.glob(f"{name}.tar.xz.*"):
            old.unlink()
        with tempfile.TemporaryFile() as plain, tempfile.TemporaryFile() as packed:
            write(plain)
            size = plain.seek(0, io.SEEK_END)
            plain.seek(0)
            _run(["xz", "-6", "-T2", "--stdout"], stdin=plain, stdout=packed)
            packed.seek(0)
            parts: list[dict[str, Any]] = []
            while chunk := packed.read(self._most):
                part = f"{name}.tar.xz.{len(parts):02}"
                (self._out / part).write_bytes(chunk)
                parts.append({"name": part, "bytes": len(chunk), "sha256": hashlib.sha256(chunk).hexdigest()})
        return {"bytes": size, "parts": parts}


class _Pip:
    """pip, asked for packages of another machine.

    Markers such as `python_version < "3.12"` are read for the Python that runs this script: one that is older than
    the machine's may bring a package too many.
    """

    def __init__(self, python: str) -> None:
        self._install = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        self._install += ["--implementation", "cp", "--python-version", python]
        self._install += [f"--platform={platform}" for platform in _PLATFORMS]

    def needed(self, requirement: str, *flags: str) -> dict[str, dict[str, str]]:
        """Version and SHA-256 of the wheel of each package that a requirement needs, itself left out, by name."""
        arguments = ["--dry-run", "--ignore-installed", "--target", str(ROOT), "--report", "-", *flags, requirement]
        report = _run([*self._install, *arguments])
        try:
            return {
                _normal(item["metadata"]["name"]): {
                    "version": item["metadata"]["version"],
                    "sha256": item["download_info"]["archive_info"]["hashes"]["sha256"],
                }
                for item in json.loads(report)["install"]
                if "archive_info" in item["download_info"]
            }
        except (ValueError, KeyError) as error:
            raise BundleError(f"pip's report on {requirement} cannot be read: {error!r}") from error

    def install(self, versions: dict[str, str], folder: Path) -> None:
        """Installs these versions, and nothing that they need, into a folder."""
        names = [f"{name}=={version}" for name, version in versions.items()]
        _run([*self._install, "--no-deps", "--no-compile", "--target", str(folder), *names])


def _pack(pip: _Pip, versions: dict[str, str], file: BinaryIO) -> None:
    """Writes an archive of these packages. It is the same, whenever it is made."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "site-packages")
        pip.install(versions, folder)
        for pattern in DROPPED:
            for path in list(folder.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(folder, folder.name, filter=plain)  # in the order of the names


def _source(file: BinaryIO) -> None:
    """Writes an archive of the last commit."""
    command = ["git", "archive", "--format=tar", "--prefix=source/", "HEAD", "--", *SOURCES]
    _run(command, stdout=file)


def _run(command: list[str], stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> str:
    """What a program prints, unless it goes into a file. Raises `BundleError` with its last line if it fails."""
    pipe = subprocess.PIPE
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdin=stdin, stdout=stdout or pipe, stderr=pipe, text=True, check=False
        )
    except OSError as error:
        raise BundleError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise BundleError(f"{' '.join(command[:4])} failed: {last}")
    return done.stdout


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    main()
