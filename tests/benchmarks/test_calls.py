"""The benchmark of calls: its chains, the loops in C, and the table of what is not in kernels."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.errors import MeasureError

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in (FOLDER, FOLDER / "models"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("calls")


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_chain_has_its_kernels_and_computes_the_same_in_all_loops(script: ModuleType, tmp_path: Path) -> None:
    contenders = importlib.import_module("_native_contenders")
    model = sd.compile_model(script.chain(6, (4, 8), softmax=True), fresh=True)
    assert len(model.program.sizes[0].steps) == 6
    inputs = {"x": np.random.default_rng(0).standard_normal((4, 8), np.float32)}
    (right,) = model.run(inputs).values()
    artifact = str(model.save(tmp_path / "native.sd", native=True))
    loops = str(contenders.compile_loops(tmp_path / "loops.so"))
    for contender in (
        contenders.CalledFromPython(artifact, inputs, threads=1),
        contenders.CalledFromC(artifact, loops, inputs, threads=1, idle=False),
        contenders.KernelsAlone(artifact, loops, inputs, threads=1, empty=False),
    ):
        (found,) = contender.outputs()
        np.testing.assert_array_equal(found, right)
    empty = contenders.KernelsAlone(artifact, loops, inputs, threads=1, empty=True)
    empty.run()
    assert empty.settings["launches"] == 0


def test_what_computes_something_else_is_not_timed(script: ModuleType) -> None:
    right = [np.arange(4, dtype=np.float32)]
    assert script.errors_of({"a": right, "b": [right[0].reshape(1, 4)]}) == {"a": 0.0, "b": 0.0}
    for wrong in ([right[0] + 1], [right[0][:3]], [right[0] * np.nan], []):
        with pytest.raises(MeasureError, match="outputs differ from those of a: b by"):
            script.errors_of({"a": right, "b": wrong})


def test_what_kernels_take_is_no_part_of_the_cost_of_a_call(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    entry: dict[str, Any] = {
        "samples": {"kernels x1": [4e-6] * 6, "empty kernels x1": [1e-7] * 6}
        | {f"{name} x1": [seconds] * 6 for name, seconds in (("in process", 9e-6), ("runtime", 6e-6), ("C", 5e-6))},
        "settings": {"kernels x1": {"threads": 1, "launches": 0}},
        "error": {"C x1": 0.0},
        "absent": {},
        "disturbed": 0,
    }
    script.show_calls({"serial 20": entry, "serial 100": {"failed": "no compiler"}})
    whole, _, rest = capsys.readouterr().out.partition("without its kernels")
    assert "no compiler" in whole
    numbers = next(line for line in rest.splitlines() if line.startswith("serial 20"))
    assert numbers.split()[:4] == ["serial", "20", "1", "-"]
    assert [part in numbers for part in ("5.1 (", "2.1 (", "1.1 (", "0.1 (")] == [True] * 4
