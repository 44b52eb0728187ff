"""`stormdrop fleet`, and the option `--fleet` of the commands that tune."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError
from .. import output
from ..options import JsonOption, not_empty
from ..status_line import telling

if TYPE_CHECKING:
    from ...measure.fleet.fleet import Fleet
    from ...measure.fleet.status import MachineStatus


@contextlib.contextmanager
def leased_fleet(address: str | None, device: str | None, target: str | None) -> Iterator[Fleet | None]:
    """The machines of `--fleet` for the time of a command; None without this option.

    Args:
        address: The value of --fleet.
        device: The value of --device: a machine of the fleet, or a part of the name of a kind.
        target: The value of --target.

    Raises:
        InputError: The options do not fit together, there is no cluster, or no machine of the kind.
    """
    if address is None:
        yield None
        return
    not_empty(address, "--fleet", "ray://head:10001")
    if target not in {None, "cpu"}:
        raise InputError(
            f"--target {target}: --fleet measures on the CPUs of its machines; --device chooses among them"
        )
    from ...measure.fleet.fleet import fleet_for

    with fleet_for(address, device or "") as leased:
        yield leased


def fleet(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The cluster: auto (the default), HOST:PORT or ray://HOST:PORT.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show the machines of a fleet: what they are, who measures there, and whether they are well."""
    with output.stdout_for_json(as_json), telling(f"asking the machines of {address}"):
        from ...measure.fleet.status import fleet_status

        status = fleet_status(address)
        document: dict[str, Any] = {
            "fleet": address,
            "ray": status.ray,
            "machines": [asdict(machine) for machine in status.machines],
        }
    if as_json:
        output.emit(document)
        return
    rows = [
        [each.name, each.health, each.kind or "-", each.group or "-", output.seconds(each.calibration), _work(each)]
        for each in status.machines
    ]
    output.table(["machine", "health", "kind", "equal", "calibration", "queue"], rows)
    for machine in status.machines:
        if machine.reason:
            output.line(f"{machine.name}: {machine.reason}")
        if machine.holder:
            output.line(f"{machine.name}: {machine.holder} has measured {machine.measured} candidates there")


def _work(machine: MachineStatus) -> str:
    return "-" if machine.queue is None else str(machine.queue)
