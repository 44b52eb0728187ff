"""The landscapes of section 4.4 of the Droplet Search paper: their spaces, optima, and costs worked out by hand."""

import pytest

from stormdrop.space import Ordinal, Space
from stormdrop.space.analytic import TILE_SIZES, landscapes
from stormdrop.testing import SpaceConformance
from stormdrop.trial import Candidate

LANDSCAPES = landscapes()

OPTIMA = {
    "ess": {"h": 96, "w": 96},
    "lrw": {"h": 6, "w": 6},  # 1/h + 2h/32 is least at h = 4, 1/w + w/32 at w = 5.7
    "tss": {"h": 96, "w": 96},
    "euc": {"h": 96, "w": 96},
    "moon": {"h": 6, "w": 6},
    "tli": {"h": 6, "w": 96},
    "wmc": {"h": 96, "w": 96},
    "mhcf": {"h": 96, "w": 96},
    "olivry-1": {"Ti": 112, "Tj": 144},  # 112 * 144 + 112 + 144 is 16,384 elements to the last
    "olivry-2": {"Ti_0": 112, "Tj_0": 144, "Ti_1": 240, "Tj_1": 256},
    "tensilica": {"h": 10, "w": 60},  # 60/h + 0.8 h is least at h = 8.7
    "tensilica-divisors": {"h": 10, "w": 60},
}


class TestSpaces(SpaceConformance):
    def make_spaces(self) -> list[Space]:
        by_name = landscapes()
        return [by_name[name].space for name in ("moon", "olivry-1", "tensilica-divisors")]


def test_every_landscape_is_named_once() -> None:
    assert [(name, landscape.name, landscape.space.name) for name, landscape in LANDSCAPES.items()] == [
        (name, name, name) for name in OPTIMA
    ]
    assert len(TILE_SIZES) == 8


@pytest.mark.parametrize("name", OPTIMA)
def test_the_optimum_is_the_known_one_and_only_its_mirror_images_are_as_good(name: str) -> None:
    landscape = LANDSCAPES[name]
    assert landscape.space.config(landscape.optimum.point) == OPTIMA[name]
    least = landscape.cost(landscape.optimum)
    costs = [landscape.cost(Candidate(landscape.space.name, point)) for point in landscape.space.points()]
    assert sum(cost < least + 1e-9 for cost in costs) == {"olivry-1": 2, "olivry-2": 4}.get(name, 1)
    assert landscape.seconds(landscape.optimum) > 0


def test_the_domain_of_figure_15() -> None:
    for name in TILE_SIZES:
        assert LANDSCAPES[name].space.knobs == (Ordinal("h", range(1, 100, 5)), Ordinal("w", range(1, 100, 5)))


@pytest.mark.parametrize(
    ("name", "config", "cost"),
    [
        ("ess", {"h": 1, "w": 16}, 2.0),
        ("lrw", {"h": 1, "w": 16}, 1 + 1 / 16 + 18 / 32),
        ("tss", {"h": 1, "w": 16}, 18 / 16),
        ("euc", {"h": 1, "w": 16}, 1 + 1 / 16),
        ("moon", {"h": 1, "w": 16}, 1 + 1 / 16 + 17 / 32),
        ("tli", {"h": 1, "w": 16}, 1 + 1 / 16 - 15 / 32 + 16 / 1024),
        ("wmc", {"h": 1, "w": 16}, 2.0),
        ("mhcf", {"h": 1, "w": 16}, 1.5 * (1 / 100 + 1 / 32) + 2 / 16),
        ("olivry-1", {"Ti": 1, "Tj": 16}, 1000 * (1 + 1 / 16) + 0.2),
        ("olivry-2", {"Ti_0": 1, "Tj_0": 1, "Ti_1": 1, "Tj_1": 32}, 2000.2 + 1000 * (1 + 1 / 32) + 0.2),
        ("tensilica", {"h": 7, "w": 6}, 9 * 10 + 50 + 5.6),
        ("tensilica-divisors", {"h": 6, "w": 6}, 100 + 4.8),
    ],
)
def test_costs_by_hand(name: str, config: dict[str, int], cost: float) -> None:
    landscape = LANDSCAPES[name]
    assert landscape.cost(Candidate(name, landscape.space.point(config))) == pytest.approx(cost, rel=1e-12)


def test_only_tli_is_shifted() -> None:
    assert {name: landscape.shift for name, landscape in LANDSCAPES.items() if landscape.shift} == {"tli": 3.0}
    assert LANDSCAPES["tli"].cost(LANDSCAPES["tli"].optimum) < -2


def test_tiles_fit_their_caches_and_lie_within_each_other() -> None:
    space = LANDSCAPES["olivry-2"].space
    for point in space.points():
        c = {name: int(str(value)) for name, value in space.config(point).items()}
        assert c["Ti_0"] * c["Tj_0"] + c["Ti_0"] + c["Tj_0"] <= 64 * 1024 / 4
        assert c["Ti_1"] * c["Tj_1"] + c["Ti_1"] + c["Tj_1"] <= 256 * 1024 / 4
        assert c["Ti_0"] <= c["Ti_1"]
        assert c["Tj_0"] <= c["Tj_1"]
