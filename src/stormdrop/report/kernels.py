"""What a page shows of each kernel of a model, from the document of its tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .documents import Kernel, KernelTime, Limits, Searched, Task, Tuning
from .layer_label import layer_label

_LABEL = 44  # characters of the layers of a kernel

MEMORY, ARITHMETIC = "memory", "arithmetic"
"""What bounds a kernel at the machine's limits."""


@dataclass(frozen=True)
class Roofline:
    """Where a kernel is in the roofline model (Williams, Waterman and Patterson, CACM 2009).

    Attributes:
        intensity: FLOP per byte that one call must move at least.
        rate: FLOP/s that it reaches.
        fraction: The time that one call takes at the machine's limits, over its time. It is above 1 if the arrays stay
            in the caches, which are faster than the memory's bandwidth.
        bound: `MEMORY` or `ARITHMETIC`: which of the two limits is the nearer one.
    """

    intensity: float
    rate: float
    fraction: float
    bound: str


@dataclass(frozen=True)
class KernelView:
    """A kernel as a page shows it.

    Attributes:
        position: Its place in the table, from 1 on: the costliest kernel is the first.
        name: Its name.
        calls: How often an execution calls it.
        seconds: Of all its calls in an execution, inside the model; the product of `alone` and `calls` if the kernels
            were not timed inside the model; None if neither is known.
        share: The same as a share of the execution.
        alone: Seconds of one call as the last race of its search measured it; None if it was not tuned.
        roofline: Where it is in the roofline model; None if its work, its time or the limits are not known.
        sketch: The sketch of its schedule in the model; None if the schedule is a plain one.
        kernel: Its entry in the document.
        reason: Why its schedule was not searched; None if it was.
        layers: The names of the layers that its calls compute; empty if they are not known.
    """

    position: int
    name: str
    calls: int
    seconds: float | None
    share: float | None
    alone: float | None
    roofline: Roofline | None
    sketch: str | None
    kernel: Kernel
    reason: str | None
    layers: list[str]

    @property
    def label(self) -> str:
        """Its layers in few words; its name if they are not known."""
        return layer_label(self.layers, _LABEL) or self.name

    @property
    def anchor(self) -> str:
        """The name of its place on the page."""
        return f"kernel-{self.position}"

    @property
    def search(self) -> Searched | None:
        """What its search tried; None if it was not tuned."""
        return self.kernel["search"]

    @property
    def kept_default(self) -> bool:
        """Whether it was searched, and yet the model has its default schedule."""
        return self.search is not None and self.kernel.get("default", False)

    @property
    def per_call(self) -> float | None:
        """Seconds of one call inside the model."""
        return None if self.seconds is None or not self.calls else self.seconds / self.calls


def kernel_views(tuning: Tuning) -> list[KernelView]:
    """The kernels of a model, the costliest first.

    Args:
        tuning: The document of its tuning.

    Returns:
        The kernels of all tasks that the first size calls, or of all tasks if the kernels were not timed inside the
        model.
    """
    profile = tuning["profile"]
    inside = _by_task(profile["kernels"]) if profile else {}
    total = profile["seconds"] if profile else tuning["latency"]["seconds"]
    views = []
    for index, (task, kernel) in enumerate(zip(tuning["tasks"], tuning["kernels"], strict=True)):
        if profile and index not in inside:
            continue
        views.append(_view(task, kernel, inside.get(index), total, tuning["limits"]))
    views.sort(key=lambda view: -(view.seconds or 0.0))
    return [replace(view, position=position) for position, view in enumerate(views, start=1)]


@dataclass(frozen=True)
class LayersView:
    """Layers that are computed together, as a page shows them.

    Attributes:
        layers: Their names, in the order of the model.
        seconds: Of an execution; None if the kernels were not timed inside the model.
        share: The same as a share of the execution.
        kernels: The kernels that compute them.
    """

    layers: list[str]
    seconds: float | None
    share: float | None
    kernels: list[KernelView]


def layers_views(tuning: Tuning, views: Sequence[KernelView]) -> list[LayersView]:
    """The layers of a model in its order, each with the kernels that compute it.

    Args:
        tuning: The document of its tuning.
        views: Its kernels, from `kernel_views`.

    Returns:
        The layers that are computed together, or each by itself if the kernels were not timed inside the model. Layers
        that are folded away are not there.
    """
    profile, layers = tuning["profile"], tuning.get("layers", [])
    position = {layer["name"]: at for at, layer in enumerate(layers)}
    by_name = {view.name: view for view in views}
    if not profile or "layers" not in profile:
        alone = ((layer["name"], [by_name[name] for name in layer["kernels"] if name in by_name]) for layer in layers)
        return [LayersView([name], None, None, kernels) for name, kernels in alone if kernels]
    names = [task["name"] for task in tuning["tasks"]]
    task_of = {each["name"]: each["task"] for each in profile["kernels"]}
    found = []
    for group in sorted(profile["layers"], key=lambda each: [position.get(name, 0) for name in each["layers"]]):
        tasks = [task for kernel in group["kernels"] if (task := task_of[kernel]) is not None]
        kernels = [by_name[name] for name in dict.fromkeys(names[task] for task in tasks)]
        seconds = group["seconds"]
        found.append(LayersView(group["layers"], seconds, seconds / profile["seconds"], kernels))
    return found


def place_in_roofline(flops: float, moved: float, seconds: float, limits: Limits) -> Roofline:
    """Where one call is in the roofline model.

    Args:
        flops: Floating-point operations of the call.
        moved: Bytes that it must move at least.
        seconds: The time that it takes.
        limits: The machine's limits.

    Example:
        >>> place_in_roofline(1e9, 1e6, 0.02, {"flops": 1e11, "bandwidth": 1e10, "undisturbed": True})
        Roofline(intensity=1000.0, rate=50000000000.0, fraction=0.5, bound='arithmetic')
    """
    arithmetic, memory = flops / limits["flops"], moved / limits["bandwidth"]
    bound = ARITHMETIC if arithmetic >= memory else MEMORY
    intensity = flops / moved if moved else float("inf")
    return Roofline(intensity, flops / seconds, max(arithmetic, memory) / seconds, bound)


def _view(
    task: Task, kernel: Kernel, inside: tuple[int, float] | None, total: float | None, limits: Limits | None
) -> KernelView:
    search, work = kernel["search"], kernel["workload"]
    best = search["best"] if search else None
    chosen = kernel["chosen"]
    alone = next(
        (
            each
            for each in ([best] if best else []) + (search["finalists"] + search["by_sketch"] if search else [])
            if chosen and (each["sketch"], each["config"]) == (chosen["sketch"], chosen["config"])
        ),
        None,
    )
    calls = inside[0] if inside else task["weight"]
    seconds = inside[1] if inside else None if alone is None else alone["seconds"] * calls
    per_call = seconds / calls if seconds and calls else None
    return KernelView(
        position=0,
        name=task["name"],
        calls=calls,
        seconds=seconds,
        share=seconds / total if seconds is not None and total else None,
        alone=alone["seconds"] if alone else None,
        roofline=place_in_roofline(work["flops"], work["bytes"], per_call, limits)
        if work and per_call and limits
        else None,
        sketch=chosen["sketch"] if chosen and chosen["sketch"] != "plain" else None,
        kernel=kernel,
        reason=task["reason"],
        layers=task.get("layers", []),
    )


def _by_task(kernels: list[KernelTime]) -> dict[int, tuple[int, float]]:
    """Calls and seconds of all kernels of each task."""
    sums: dict[int, tuple[int, float]] = {}
    for kernel in kernels:
        if kernel["task"] is not None:
            calls, seconds = sums.get(kernel["task"], (0, 0.0))
            sums[kernel["task"]] = (calls + kernel["calls"], seconds + kernel["seconds"])
    return sums
