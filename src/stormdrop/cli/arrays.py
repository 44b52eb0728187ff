"""Arrays by name, as users give them in files."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from ..errors import InputError


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
