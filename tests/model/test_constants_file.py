"""Constants are written to a file and mapped again, of equal ones one."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from stormdrop.model.artifact.constants_file import ConstantsReader, ConstantsWriter
from stormdrop.model.tensors import array_of, copied
from stormdrop.runtime.program import ALIGNMENT


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16, np.float16, np.uint8])
def test_constants_are_read_as_they_were_written(tmp_path: Path, dtype: type) -> None:
    rng = np.random.default_rng(0)
    values: list[np.ndarray]
    values = [rng.integers(0, 2, shape).astype(dtype) for shape in ((3,), (), (0, 4), (100, 70), (1,))]
    with ConstantsWriter(tmp_path / "c.bin") as writer:
        offsets = writer.write(map(copied, values))
    reader = ConstantsReader(tmp_path / "c.bin")
    for offset, value in zip(offsets, values, strict=True):
        tensor = reader.read(offset, value.shape, str(value.dtype))
        np.testing.assert_array_equal(array_of(tensor), value)
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert not value.size or reader.read(offset, value.shape, str(value.dtype)) is tensor


def test_equal_constants_are_there_once(tmp_path: Path) -> None:
    large = np.zeros((1000, 600), np.float32)
    other = large.copy()
    other[500, 300] = 1  # far from where it begins and ends
    with ConstantsWriter(tmp_path / "c.bin") as writer:
        first = writer.write(map(copied, (large, other, np.ones(3), np.float32(1))))
        again = writer.write(map(copied, (other, large, np.ones(3), large.reshape(600, 1000), np.float32(2))))
    assert again[:3] == (first[1], first[0], first[2])
    assert len({*first, *again}) == 6, "of another shape or value"


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    with ConstantsWriter(tmp_path / "c.bin") as writer:
        writer.write([copied(np.ones(8, np.float32))])
    reader = ConstantsReader(tmp_path / "c.bin")
    with pytest.raises(ValueError, match="it holds 32 bytes, and a constant ends at 36"):
        reader.read(4, (8,), "float32")
    (tmp_path / "empty.bin").touch()
    with pytest.raises(ValueError, match="it holds 0 bytes"):
        ConstantsReader(tmp_path / "empty.bin").read(0, (1,), "bool")
