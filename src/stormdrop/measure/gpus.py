"""Several equal GPUs of this machine that measure at the same time, as places do (`places.py`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ..trial import Phases
from .contract import KernelSetup
from .local import LocalMeasurer
from .places import Place, PlacesMeasurer


class GpusMeasurer(PlacesMeasurer):
    """Measures candidates on all GPUs of a target at the same time. A race takes place on one of them."""

    kind = "GPU"

    @classmethod
    def of(cls, setup: KernelSetup) -> GpusMeasurer:
        """A measurer on the GPUs of a target. Their workers compile on this machine's cores: each GPU has its share.

        Args:
            setup: What is measured.
        """
        gpus, stop = setup.target.gpus, threading.Event()
        share = max(1, setup.target.cores // len(gpus))
        places = [Place(str(gpu), LocalMeasurer(setup, workers=share, gpu=gpu, stop=stop), width=share) for gpu in gpus]
        return cls(setup.target.name, places, stop)

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
