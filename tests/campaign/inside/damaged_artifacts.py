"""Damages copies of a saved model and loads each: it is refused with one line, or it is the model as it was saved.

python damaged_artifacts.py ARTIFACT RESULTS SEED COUNT
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from mutations import mutate_bytes, mutate_json

import stormdrop as sd
from stormdrop.errors import StormdropError

_METADATA = "metadata.json"


def damage(folder: Path, rng: np.random.Generator) -> str:
    """Damages a file, or removes one, and says how."""
    file = sorted(folder.iterdir())[rng.integers(len(list(folder.iterdir())))]
    if rng.random() < 0.5:
        file = folder / _METADATA
    how = int(rng.integers(4))
    if how == 0 and file.name == _METADATA:
        file.write_text(json.dumps(mutate_json(json.loads(file.read_text()), rng)))
        return "a value of the metadata"
    if how == 1:
        file.unlink()
        return f"{file.name} is removed"
    if how == 2:
        file.write_bytes(file.read_bytes()[: int(rng.integers(file.stat().st_size))])
        return f"{file.name} is cut"
    file.write_bytes(mutate_bytes(file.read_bytes(), rng))
    return f"bytes of {file.name}"


def main() -> None:
    """Loads as many as are asked for."""
    source, results, seed, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    results.mkdir()
    with (results / f"artifact-{seed}.jsonl").open("w") as lines:
        for number in range(count):
            folder = results / "damaged.sd"
            shutil.copytree(source, folder)
            how = damage(folder, np.random.default_rng([seed, number]))
            outcome, error, message = "read", "", ""
            try:
                sd.load(folder)
            except StormdropError as caught:
                outcome, error, message = "refused", type(caught).__name__, str(caught)
                if len(message.splitlines()) != 1:
                    outcome = "finding"
            except Exception as caught:  # noqa: BLE001  to find these is what this is for
                outcome, error, message = "finding", type(caught).__name__, str(caught)[:300]
            line = {"number": number, "how": how, "outcome": outcome, "error": error, "message": message}
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
