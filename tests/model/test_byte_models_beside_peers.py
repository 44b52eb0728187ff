"""A model in bytes beside onnxruntime, whose sums of products of bytes saturate on some CPUs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from quantised_models import quantised

import stormdrop as sd
from stormdrop.bench.result import Standing
from stormdrop.model.artifact import onnxruntime_parts

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    onnx.save(quantised("residual"), folder / "m.onnx")
    sd.compile_model(folder / "m.onnx", out=folder / "m.sd")
    return folder / "m.sd"


def contenders(artifact: Path) -> dict[str, Standing]:
    return {standing.name: standing for standing in sd.bench(artifact, ["onnxruntime"], rounds=2).standings}


def test_where_sums_saturate_onnxruntime_takes_part_with_exact_ones_too(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_parts, "sums_saturate", lambda: True)
    found = contenders(artifact)
    assert list(found) == ["stormdrop", "onnxruntime", "onnxruntime-exact"]
    assert found["onnxruntime-exact"].agrees
    assert found["onnxruntime-exact"].settings[onnxruntime_parts.EXACT_SUMS] == "1"
    assert onnxruntime_parts.EXACT_SUMS not in found["onnxruntime"].settings


def test_elsewhere_it_takes_part_once(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime_parts, "sums_saturate", lambda: False)
    assert list(contenders(artifact)) == ["stormdrop", "onnxruntime"]
