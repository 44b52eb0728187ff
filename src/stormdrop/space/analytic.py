"""Analytic cost models as landscapes with a known optimum: section 4.4 of the Droplet Search paper.

- Eight models of tile-size selection (section 4.4.3, Figure 15), over the figure's domain: h and w in 1, 6, ..., 96.
  Two formulas are printed ambiguously; TSS is read as (2h + w) / (h w) and WMC as C / (h w), which makes it ESS.
- `olivry-1`, `olivry-2`: the data movement of a tiled matmul of side 10,000 (section 4.4.1, Figure 13) with one cache
  (64 KiB) and with two (256 KiB behind the first). The formulas are not printed. This is our reading: with the tile
  of C kept in the cache, Ni Nj Nk (1/Ti + 1/Tj) + 2 Ni Nj float32 elements are moved, under Ti Tj + Ti + Tj <= S.
  With two caches the inner tile lies within the outer one, and the transfers of both levels are added with equal
  weights. The side of a tile is 1 or a multiple of a cache line (16 elements) up to 256. There are equal optima,
  mirrored in the diagonal.
- `tensilica`, `tensilica-divisors`: a model with conditionals like that of section 4.4.2, whose coefficients are not
  public: transfers per tile, epilogue code if a tile does not divide its extent, and a term for the tile's height.
  The knobs of the second one hold divisors only.

The droplet expectation (Definition 3.6) holds on all of them except `tensilica`: a descent from the origin reaches the
optimum. A descent from another point may not: along the edge of a cache (`olivry`) no single step leads from one tile
to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..trial import Candidate
from .constraint import Constraint
from .listed import Ordinal
from .space import Space


@dataclass(frozen=True, eq=False)
class Landscape:
    """A space and a formula for the cost of its configurations.

    Args:
        name: The landscape's name, which is also its space's.
        space: The space.
        formula: The cost of a configuration, whose values it takes as keyword arguments.
        shift: What `seconds` adds to the cost, for a landscape with costs that are not positive (TLI, whose minimum
            is below -2). Ratios of shifted seconds mean nothing: compare differences.
    """

    name: str
    space: Space
    formula: Callable[..., float]
    shift: float = 0.0

    def cost(self, candidate: Candidate) -> float:
        """The formula's value. Raises `SpaceError` if the point is outside of the space."""
        return float(self.formula(**self.space.config(candidate.point)))

    def seconds(self, candidate: Candidate) -> float:
        """The cost as positive seconds: one unit of cost is one second."""
        return self.cost(candidate) + self.shift

    @cached_property
    def optimum(self) -> Candidate:
        """The candidate with the least cost, found by enumeration; the first one if there are several."""
        return min((Candidate(self.space.name, point) for point in self.space.points()), key=self.cost)


def landscapes() -> dict[str, Landscape]:
    """All landscapes by name."""
    sides = range(1, _EXTENT + 1)
    all_landscapes = [
        *(_tile_sizes(name, formula) for name, formula in TILE_SIZES.items()),
        _olivry_one(),
        _olivry_two(),
        _tensilica("tensilica", sides),
        _tensilica("tensilica-divisors", [side for side in sides if _EXTENT % side == 0]),
    ]
    return {landscape.name: landscape for landscape in all_landscapes}


_C, _L, _N = 32, 32, 100  # cache size, cache line and side of the array, with the values of Figure 15

TILE_SIZES: dict[str, Callable[[int, int], float]] = {
    "ess": lambda h, w: _C / (h * w),
    "lrw": lambda h, w: 1 / h + 1 / w + (2 * h + w) / _C,
    "tss": lambda h, w: (2 * h + w) / (h * w),
    "euc": lambda h, w: 1 / h + 1 / w,
    "moon": lambda h, w: 1 / h + 1 / w + (h + w) / _C,
    "tli": lambda h, w: 1 / h + 1 / w + (h - w) / _C + h * w / _C**2,
    "wmc": lambda h, w: _C / (h * w),
    "mhcf": lambda h, w: (1 / h + 1 / 2) * (1 / _N + 1 / _L) + 2 / (h * w),
}
"""Figure 15: the cost of a tile of height h and width w."""


def _tile_sizes(name: str, formula: Callable[[int, int], float]) -> Landscape:
    sides = range(1, 100, 5)
    return Landscape(name, _space(name, {"h": sides, "w": sides}), formula, shift=3.0 if name == "tli" else 0.0)


_MATRIX_SIDE = 10_000
_ELEMENTS = 1024 // 4  # float32 elements in a KiB


def _traffic(t_i: int, t_j: int) -> float:
    """Billions of elements moved between a cache that keeps a tile of C with these sides and the memory behind it."""
    return (_MATRIX_SIDE**3 * (1 / t_i + 1 / t_j) + 2 * _MATRIX_SIDE**2) / 1e9


def _fits(kib: int, knobs: tuple[str, str]) -> Constraint:
    """A tile of C together with a column of A and a row of B fits a cache."""
    elements = kib * _ELEMENTS
    return Constraint(knobs, lambda t_i, t_j: t_i * t_j + t_i + t_j <= elements, f"fits {kib} KiB")


_TILE_SIDES = (1, *range(16, 257, 16))


def _olivry_one() -> Landscape:
    space = _space("olivry-1", {"Ti": _TILE_SIDES, "Tj": _TILE_SIDES}, [_fits(64, ("Ti", "Tj"))])
    return Landscape(space.name, space, lambda Ti, Tj: _traffic(Ti, Tj))


def _olivry_two() -> Landscape:
    space = _space(
        "olivry-2",
        dict.fromkeys(["Ti_0", "Tj_0", "Ti_1", "Tj_1"], _TILE_SIDES),
        [
            _fits(64, ("Ti_0", "Tj_0")),
            _fits(256, ("Ti_1", "Tj_1")),
            Constraint(("Ti_0", "Ti_1"), lambda t_0, t_1: t_0 <= t_1, "inner within outer"),
            Constraint(("Tj_0", "Tj_1"), lambda t_0, t_1: t_0 <= t_1, "inner within outer"),
        ],
    )
    return Landscape(space.name, space, lambda Ti_0, Tj_0, Ti_1, Tj_1: _traffic(Ti_0, Tj_0) + _traffic(Ti_1, Tj_1))


_EXTENT = 60  # the layer's height and width


def _tensilica(name: str, sides: Sequence[int]) -> Landscape:
    def cost(h: int, w: int) -> float:
        transfers = math.ceil(_EXTENT / h) * math.ceil(_EXTENT / w)
        epilogues = (_EXTENT % h > 0) + (_EXTENT % w > 0)
        return transfers + 50 * epilogues + 0.8 * h

    return Landscape(name, _space(name, {"h": sides, "w": sides}), cost)


def _space(name: str, knobs: dict[str, Sequence[int]], constraints: Iterable[Constraint] = ()) -> Space:
    return Space(name, [Ordinal(knob, values) for knob, values in knobs.items()], list(constraints))
