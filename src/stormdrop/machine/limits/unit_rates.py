"""How fast the arithmetic units of this machine are, and which of them are offered to kernels.

A loop that holds its operands in registers (see `unit_loops`) runs for a millisecond on all cores, in turns with the
same loop of float32 multiply-adds. A unit that is slower than float32 is not offered. The result is kept per machine,
as the peak is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import MeasureError
from ..cpu import Cpu
from ..process.child_process import ChildProcess
from ..units import UNITS, Unit, units_with
from .kept_measurements import KeptMeasurement, kept_file
from .measuring import LOADS

_METHOD = 3  # part of the key of what is kept: raise it when what is measured changes
_TIMEOUT = 30.0  # seconds; a unit takes some 0.2 s, and loading TVM one or two seconds


@dataclass(frozen=True)
class UnitRate:
    """How fast a unit of this machine is.

    Attributes:
        unit: The unit.
        rate: Multiplications and additions per second on all cores, with all operands in registers; 0 if the unit does
            not run.
        times_float32: The rate over that of float32 multiply-adds, measured in turns with it; 0 if it does not run.
        undisturbed: False if something else used the cores in all windows. The true rate is then higher.
        problem: Why the unit does not run, one line; empty if it does.
    """

    unit: Unit
    rate: float
    times_float32: float
    undisturbed: bool = True
    problem: str = ""

    @property
    def offered(self) -> bool:
        """Whether kernels may use the unit: it runs, it is faster than float32, and this version has kernels for it."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why the unit is not offered, one line; empty if it is."""
        if self.problem:
            return f"does not run: {self.problem}"
        if self.times_float32 <= 1.0:
            return "not faster than float32"
        return "" if self.unit.used else "no kernel of this version uses it"


def unit_rates(target: Cpu, refresh: bool = False) -> tuple[UnitRate, ...]:
    """The units of this machine with their measured rates.

    The measurement takes about two seconds and waits for the machine-wide lock. A unit whose loop ends the measuring
    process (the operating system may refuse it) is listed with the reason, and costs no other unit its measurement.
    The result is kept per machine. One that was disturbed takes the place of no other than such a one.

    Args:
        target: This machine, with the number of cores to use.
        refresh: Measure even if the rates are known.

    Raises:
        MeasureError: The target is another machine, or the float32 loop cannot be measured.
    """
    if target.runner or target.triple:
        raise MeasureError(f"the units of {target.name} cannot be measured here: it is another machine")
    kept = KeptMeasurement(_path(target), _document, _read, lambda rates: all(rate.undisturbed for rate in rates))
    return kept.get(lambda: _measure(target), refresh)


def _path(target: Cpu) -> Path:
    return kept_file("units", [_METHOD, target.cpu, target.mcpu, target.cores, list(target.features)])


def _document(rates: Sequence[UnitRate]) -> list[Any]:
    return [[rate.unit.name, rate.rate, rate.times_float32, rate.problem, rate.undisturbed] for rate in rates]


def _read(document: Any) -> tuple[UnitRate, ...]:
    if not isinstance(document, list):
        raise TypeError("no list of units")
    by_name = {unit.name: unit for unit in UNITS}
    return tuple(
        UnitRate(by_name[name], float(rate), float(times), bool(undisturbed), str(problem))
        for name, rate, times, problem, undisturbed in document
    )


def _measure(target: Cpu) -> tuple[UnitRate, ...]:
    """The rates of all units, by one process, and by one more for each unit that ends a process."""
    units, found = units_with(target.features), list[tuple[float, UnitRate]]()
    while len(found) < len(units):
        found += _measure_in_child(target, units[len(found) :])
    float32 = max((yardstick for yardstick, _ in found), default=0.0)  # the best of all that were taken
    return tuple(replace(unit, times_float32=unit.rate / float32 if unit.rate else 0.0) for _, unit in found)


def _measure_in_child(target: Cpu, units: Sequence[Unit]) -> list[tuple[float, UnitRate]]:
    """The rate of float32 and that of each unit: of all, or of the first ones up to that which ends the process."""
    serve = f"{__package__}.unit_loops:serve_rates"
    child = ChildProcess(serve, (target, units), {"TVM_NUM_THREADS": str(target.cores)}, LOADS)
    found: list[tuple[float, UnitRate]] = []
    try:
        if not child.answer(_TIMEOUT):  # it has loaded TVM and measured float32
            raise MeasureError(f"measuring this machine's units failed ({child.wait()}): {child.last_line()}")
        for unit in units:
            answer = child.answer(_TIMEOUT)
            if answer is None:
                problem = f"its loop ended the measuring process ({child.wait()}): {child.last_line()}"
                found.append((0.0, UnitRate(unit, 0.0, 0.0, problem=problem)))
                break
            float32, rate, undisturbed = answer
            found.append((float32, UnitRate(unit, rate, 0.0, undisturbed)))
        return found
    except TimeoutError as error:
        raise MeasureError(f"measuring this machine's units took longer than {_TIMEOUT:.0f} s") from error
    finally:
        child.close()
