"""The rates of memory and caches: that the kernels do what is counted, and that the rates are kept and used."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import tvm

from stormdrop.errors import MeasureError
from stormdrop.machine.cpu import Cpu, parse_machine
from stormdrop.machine.limits import kept_measurements
from stormdrop.machine.limits import memory_rates as module
from stormdrop.machine.limits.kept_measurements import granted
from stormdrop.machine.limits.measuring import compile_function, measured_in_child
from stormdrop.machine.limits.memory_loops import chain_function, copy_function, read_function
from stormdrop.machine.limits.memory_rates import (
    Caches,
    MemoryRates,
    cached_bytes,
    known_cached,
    last_cache,
    measure_caches_within,
    memory_rates,
)

CORES, LANES = 2, 8
BLOCK = 8 * LANES


def compiled(function: object) -> object:
    return compile_function(function, Cpu.detect().mcpu, CORES).jit()["main"]


def work(blocks: int, times: int) -> object:
    return tvm.runtime.tensor(np.array([blocks, times], "int32"))


@pytest.mark.compiles
def test_reading_adds_up_the_first_blocks_again_and_again() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (CORES, 4 * BLOCK)).astype("float32")
    sums = tvm.runtime.tensor(np.zeros((CORES, BLOCK), "float32"))
    compiled(read_function(CORES, 4 * BLOCK, LANES))(tvm.runtime.tensor(x), sums, work(3, 5))  # type: ignore[operator]
    expected = 5 * x.reshape(CORES, 4, BLOCK)[:, :3].sum(axis=1)
    np.testing.assert_allclose(sums.numpy(), expected, rtol=1e-5)


@pytest.mark.compiles
def test_copying_writes_the_first_blocks_and_no_more() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (CORES, 4 * BLOCK)).astype("float32")
    y = tvm.runtime.tensor(np.zeros_like(x))
    compiled(copy_function(CORES, 4 * BLOCK, LANES))(tvm.runtime.tensor(x), y, work(3, 2))  # type: ignore[operator]
    expected = np.where(np.arange(4 * BLOCK) < 3 * BLOCK, x + 1, 0)
    np.testing.assert_array_equal(y.numpy(), expected.astype("float32"))


@pytest.mark.compiles
def test_the_chain_goes_on_where_the_last_call_ended() -> None:
    chain, place = np.array([2, 0, 3, 1], "int32"), tvm.runtime.tensor(np.zeros(1, "int32"))
    follow = compiled(chain_function(4, 3))
    places = []
    for _ in range(4):
        follow(tvm.runtime.tensor(chain), place)  # type: ignore[operator]
        places.append(int(place.numpy()[0]))
    assert places == [1, 3, 2, 0]


SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


@pytest.mark.parametrize(
    ("rates", "third", "cached"),
    [
        pytest.param([90, 90, 40, 40, 10, 10, 10, 10, 10], 60, 11, id="half way between 8 and 16, in logarithms"),
        pytest.param([90, 90, 40, 40, 40, 40, 10, 10, 10], 20, 22, id="no more than is reported"),
        pytest.param([90, 90, 11, 10, 10, 10, 10, 10, 10], 60, 2, id="a third level as slow as memory"),
        pytest.param([90, 90, 40, 40, 40, 10, 10, 10, 10], 0, 2, id="no third level"),
        pytest.param([90, 90, 40, 40, 15, 40, 10, 10, 10], 60, 45, id="one slow size"),
        pytest.param([90, 90, 40, 40, 10, 10, 10, 10, 40], 60, 62, id="one fast size in memory"),
        pytest.param([10, 10, 10, 10, 10, 10, 10, 10, 10], 60, 2, id="no cache at all"),
        pytest.param([90, 90, 40, 40, 40, 40, 40, 40, 40], 200, 202, id="no array lies in memory"),
        pytest.param([90, 90, 40, 40, 10, 10, 10, 10, 10], 1, 3, id="a third level smaller than the second"),
    ],
)
def test_the_caches_end_where_the_rate_falls_to_that_of_memory(rates: list[float], third: int, cached: int) -> None:
    assert last_cache(SIZES, rates, 2, third) == cached


RATES = MemoryRates((1 << 20, 1 << 28), (9e10, 1e10), (5e10, 1e10), 1.1e10, 1e-7, 6 << 20)


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What the next measurements find, in order; what is left was not asked for. Nothing is kept yet."""
    queue: list[Any] = [RATES, dataclasses.replace(RATES, cached=7 << 20)]
    monkeypatch.setattr(module, "measured_in_child", lambda *_: queue.pop(0))
    monkeypatch.setattr(kept_measurements, "_measured", {})
    monkeypatch.setattr(kept_measurements, "is_quiet", lambda: True)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path))
    # With a lock of its own: other tests may measure at the same time.
    monkeypatch.setattr("stormdrop.machine.sharing.lock.default_lock_path", lambda: tmp_path / "lock")
    return queue


@pytest.fixture
def here() -> Cpu:
    """This machine, as if it reported a large cache of its host."""
    return dataclasses.replace(Cpu.detect(), cores=2, l2=1 << 20, l3=480 << 20, l3s=1)


def test_rates_are_kept_and_measured_again_if_asked(measurements: list[Any], here: Cpu) -> None:
    assert known_cached(here) is None
    assert memory_rates(here) == memory_rates(here) == RATES
    kept_measurements._measured.clear()
    assert memory_rates(here) == RATES  # from the file
    assert memory_rates(here, refresh=True).cached == 7 << 20
    assert known_cached(here) == 7 << 20
    assert not measurements


@pytest.mark.parametrize("damage", ["", "{}", "[1, 2]", '{"sizes": 1}', "null"])
def test_a_damaged_file_is_measured_anew(measurements: list[Any], here: Cpu, damage: str) -> None:
    memory_rates(here)
    kept_measurements._measured.clear()
    module._kept(here).path.write_text(damage)
    assert memory_rates(here).cached == 7 << 20


def test_a_disturbed_measurement_stands_until_one_is_undisturbed(measurements: list[Any], here: Cpu) -> None:
    measurements[:] = [
        dataclasses.replace(RATES, undisturbed=False),
        dataclasses.replace(RATES, latency=2e-7, undisturbed=False),
        RATES,
        dataclasses.replace(RATES, cached=7 << 20, undisturbed=False),
    ]
    assert memory_rates(here).cached == 6 << 20
    kept_measurements._measured.clear()
    assert not memory_rates(here).undisturbed  # from the file
    assert known_cached(here) is None  # a dip looks like the end of a cache
    assert memory_rates(here, refresh=True).latency == 2e-7  # neither is right, and the newer one may be better
    assert memory_rates(here, refresh=True) == RATES
    assert known_cached(here) == 6 << 20
    assert memory_rates(here, refresh=True) == RATES
    assert not measurements


def test_what_was_measured_counts_and_the_machine_stays_the_same(measurements: list[Any], here: Cpu) -> None:
    measurements.insert(0, Caches(6 << 20))
    before = Cpu.detect()
    assert cached_bytes(here) == here.caches == 482 << 20
    measure_caches_within(here, math.inf)
    assert cached_bytes(here) == 6 << 20
    assert Cpu.detect() == before  # spaces, records and fleets depend on it
    measure_caches_within(here, math.inf)  # it is known
    kept_measurements._measured.clear()
    measure_caches_within(here, math.inf)  # from the file
    assert len(measurements) == 2


def test_disturbed_caches_are_measured_again_by_a_later_tuning(measurements: list[Any], here: Cpu) -> None:
    measurements[:] = [Caches(5 << 20, undisturbed=False), Caches(6 << 20)]
    measure_caches_within(here, 5.0)
    assert known_cached(here) is None
    measure_caches_within(here, 5.0)
    assert known_cached(here) == 6 << 20


def test_whoever_knows_all_rates_knows_the_caches(measurements: list[Any], here: Cpu) -> None:
    memory_rates(here)
    measure_caches_within(here, math.inf)
    assert known_cached(here) == 6 << 20
    assert len(measurements) == 1


@pytest.mark.parametrize("damage", ["", "{}", '{"cached": -1, "undisturbed": true}', "null"])
def test_a_damaged_file_of_the_caches_is_measured_anew(measurements: list[Any], here: Cpu, damage: str) -> None:
    measurements[:] = [Caches(5 << 20), Caches(6 << 20)]
    measure_caches_within(here, math.inf)
    kept_measurements._measured.clear()
    module._kept_caches(here).path.write_text(damage)
    measure_caches_within(here, math.inf)
    assert known_cached(here) == 6 << 20


def test_a_short_tuning_measures_nothing(measurements: list[Any], here: Cpu) -> None:
    measure_caches_within(here, granted(60.0))
    assert len(measurements) == 2
    assert cached_bytes(here) == here.caches


def test_nothing_is_measured_without_a_third_level(measurements: list[Any], here: Cpu) -> None:
    measure_caches_within(dataclasses.replace(here, l3=0), math.inf)
    assert len(measurements) == 2


def test_another_machine_is_taken_as_it_is(measurements: list[Any], here: Cpu) -> None:
    memory_rates(here)
    board, emulated = here.with_runner("board:9090"), parse_machine("cpu/cortex-a72")
    assert isinstance(emulated, Cpu)
    for machine in (board, emulated, parse_machine("cuda/a100")):
        measure_caches_within(machine, math.inf)
    assert (cached_bytes(board), cached_bytes(emulated)) == (here.caches, emulated.caches)
    with pytest.raises(MeasureError, match="cpu/cortex-a72 cannot be measured here: it is another machine"):
        memory_rates(emulated)
    assert len(measurements) == 1


@pytest.mark.alone
@pytest.mark.compiles
def test_this_machine_is_measured_in_sensible_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.machine.limits.measuring._TIMEOUT", 250.0)  # however busy it is
    here = Cpu.detect()
    # The largest array is four times as large as the caches: of hundreds of megabytes, it would be a gigabyte.
    second, third = here.cores * here.l2, min(here.l3s * here.l3, 32 << 20)
    shape = {**module.shape_of(here), "l2s": second, "l3s": third}  # type: ignore[attr-defined]
    rates = measured_in_child(
        "stormdrop.machine.limits.memory_loops:serve_memory_rates", shape, MemoryRates, "measuring"
    )
    assert list(rates.sizes) == sorted(rates.sizes)
    assert 1e8 < max(rates.read) < 1e13 and 1e8 < max(rates.copy) < 1e13
    assert 1e-9 < rates.latency < 1e-3
    assert second <= rates.cached <= second + third
    if rates.undisturbed:  # load makes any figure as low as it likes
        assert rates.read[0] > rates.read[-1] > 1e8
        assert min(rates.copy) > 1e8 and rates.latency < 1e-5
