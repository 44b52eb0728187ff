"""Arrays by name, as users give them in files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError


def write(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name as an .npz file. `numpy.savez` takes names as arguments, which excludes some names."""
    from numpy.lib import format as npy

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array(file, array, allow_pickle=False)


def read(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file by name. Raises `InputError` if it is none that can be read."""
    import numpy as np

    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{path}: holds a single array; save the inputs by name with numpy.savez")
        with archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: no .npz file that can be read") from error
