"""Folders of a native model in which one file is not as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

KINDS = ("truncated", "extended", "altered", "missing", "swapped", "forged")
"""What happens to a file. One that is forged is altered, and the metadata are made to agree with it."""

UNREAD = ("stormdrop.h",)
"""Files for compilers, which loading does not read."""

CODE = ("model.so", "program.json")
"""Files that say what is executed."""

_METADATA = "metadata.json"


def mutate(model: Path, other: Path, mutated: Path, file: str, kind: str, rng: Any) -> bool:
    """Makes a folder that is `model` but for one file.

    Args:
        model: the folder of a native model.
        other: that of another one, which has the same files.
        mutated: the folder to make; what is there goes.
        file: the name of the file.
        kind: one of `KINDS`.
        rng: chooses places and bytes.

    Returns:
        Whether the file has changed: two models of one network have the same program.
    """
    shutil.rmtree(mutated, ignore_errors=True)
    shutil.copytree(model, mutated, copy_function=os.link)
    data = bytearray((model / file).read_bytes())
    place = int(rng.integers(len(data)))
    if kind == "truncated":
        del data[place:]
    elif kind == "extended":
        data += rng.bytes(int(rng.integers(1, 100)))
    elif kind == "swapped":
        data = bytearray((other / file).read_bytes())
    else:
        data[place] ^= 1 << int(rng.integers(8))
    (mutated / file).unlink()
    if kind != "missing":
        (mutated / file).write_bytes(data)
    if kind == "forged":
        _forge_metadata(mutated, (model / file).read_bytes(), bytes(data))
    return kind == "missing" or data != (model / file).read_bytes()


def digest_of(model: Path) -> str:
    """The digest of a model."""
    return str(json.loads((model / _METADATA).read_bytes())["digest"])


def _forge_metadata(folder: Path, before: bytes, after: bytes) -> None:
    path = folder / _METADATA
    metadata = path.read_bytes().replace(_sha256(before), _sha256(after))
    at = metadata.find(b'"digest": "') + len(b'"digest": "')
    zeros = metadata[:at] + b"0" * 64 + metadata[at + 64 :]
    path.unlink()
    path.write_bytes(zeros[:at] + _sha256(zeros) + zeros[at + 64 :])


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
