"""Where tiles begin, and places in nested loops."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.ir.prim.expr import IntImm
from tvm.sym import Analyzer

from stormdrop.ir.expressions import tile_start, unraveled


def number(expression: object) -> int:
    return int(Analyzer().simplify(expression))


@pytest.mark.parametrize(("size", "extent"), [(4, 12), (4, 13), (5, 5), (3, 17), (1, 2)])
def test_tiles_cover_an_axis_and_stay_inside(size: int, extent: int) -> None:
    tiles = -(-extent // size)
    starts = [number(tile_start(IntImm("int32", at), size, extent, tiles)) for at in range(tiles)]
    assert all(0 <= start <= extent - size for start in starts)
    assert {start + inner for start in starts for inner in range(size)} == set(range(extent))
    assert len(set(starts)) == tiles


def test_more_tiles_than_needed_repeat_the_last() -> None:
    assert [number(tile_start(IntImm("int32", at), 4, 10, 4)) for at in range(4)] == [0, 4, 6, 6]


@pytest.mark.parametrize("extents", [[7], [2, 3], [4, 1, 5]])
def test_unraveled_is_numpys(extents: list[int]) -> None:
    for position in range(int(np.prod(extents))):
        places = [number(place) for place in unraveled(IntImm("int32", position), extents)]
        assert places == [int(each) for each in np.unravel_index(position, extents)]
