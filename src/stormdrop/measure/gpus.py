"""Several equal GPUs of this machine that measure at the same time, as places do (`places.py`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ..machine.contract import Machine
from ..trial import Phases
from .contract import KernelSetup
from .local import LocalMeasurer
from .places import Place, PlacesMeasurer
from .pool.pool import WorkerPool


def share(target: Machine) -> int:
    """The workers of each of several GPUs: they compile on this machine's cores, of which each GPU has its share.

    Args:
        target: The machine with the GPUs.
    """
    return max(1, target.cores // len(target.gpus))


class GpusMeasurer(PlacesMeasurer):
    """Measures candidates on all GPUs of a target at the same time. A race takes place on one of them."""

    kind = "GPU"

    @classmethod
    def of(cls, setup: KernelSetup, pools: Mapping[int | None, WorkerPool] | None = None) -> GpusMeasurer:
        """A measurer on the GPUs of a target.

        Args:
            setup: What is measured.
            pools: The workers of each GPU, which stay open; by default each has its `share` of workers of its own.
        """
        target, pools, stop = setup.target, pools or {}, threading.Event()
        workers = share(target)
        places = [
            Place(
                str(gpu), LocalMeasurer(setup, pool=pools.get(gpu), workers=workers, gpu=gpu, stop=stop), width=workers
            )
            for gpu in target.gpus
        ]
        return cls(target.name, places, stop)

    def wall_seconds(self, spent: Phases) -> Mapping[str, float]:
        """The wall seconds of the GPU that was at work for longest, if all have measured equal shares."""
        count = len(self.places)
        share = Phases(spent.schedule / count, spent.build / count, spent.run / count, spent.check / count)
        return max((place.measurer.wall_seconds(share) for place in self.places), key=lambda by: sum(by.values()))

    def conditions(self) -> dict[str, Any]:
        """The conditions of all GPUs: under each name a list with one entry per GPU."""
        by_gpu = [place.measurer.conditions() for place in self.places]
        names = dict.fromkeys(name for conditions in by_gpu for name in conditions)
        return {name: [value for conditions in by_gpu for value in conditions.get(name, [])] for name in names}
