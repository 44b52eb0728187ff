"""Fingerprints: which records are valid for a space, namely those with the same knobs and the same schedules.

    fingerprint  =  digest of ( name, knobs, constraints, origin, revision )        `Space.fingerprint`
    revision     =  digest of ( schedules at a few points, allowed error )          this module

This module applies the sketch at a few points and hashes the resulting functions. A changed schedule gives another
fingerprint. Code that moves, is renamed, documented or tidied gives the same one, because nothing of the source enters
it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import tvm_ffi

from .. import operators
from ..ir.workload import Workload
from ..machine.contract import Machine
from ..machine.cpu import keeping_denormals, parse_machine
from ..space import Space
from ..trial import Point
from .contract import AnySketch, Variant

_PROBES = 3  # points that are scheduled, with the origin; each takes 5 to 20 ms
_MOST_PROBES = 6  # if coordinates of few values have not had all of them yet
_FEW_VALUES = 3
_SAMPLES = 24  # points from which the others are chosen

_VERSION_0_1 = {
    "register_blocked": ("4cee9b93a5f2dd87", "e540bc231abf7a64 35cf96f8a69d6f01"),
    "winograd_4": ("359abc823398b369 0.0001", "9bee6a66d1a02e5a"),
    "winograd_2": ("359abc823398b369 0.0001", "dfbaecbef9a34445"),
    "streaming": ("62bc2e2fb749f049", "e498b97f15cb8f1e abb706a5d7abf380 69e69c102dab7653"),
}
"""By sketch: the revision that version 0.1.0 gave its spaces, and the digest of its schedules.

Version 0.1.0 hashed its source code. Its records are valid as long as the schedules stay the same; see
`_revision_0_1`.
"""


@lru_cache(maxsize=64)
def space_of(sketch: AnySketch, workload: Workload, target: Machine) -> Space | None:
    """The space of a sketch for a workload, with a fingerprint that follows the schedules.

    Args:
        sketch: A hashable sketch.
        workload: The function to schedule.
        target: The machine to schedule it for.

    Returns:
        `sketch.space(workload, target)` with a revision, which is computed when it is first needed; None if the sketch
        does not apply.
    """
    space = sketch.space(workload, target)
    if space is None:
        return None
    return space.with_revision(
        lambda: schedule_digest(sketch, space, workload, target), lambda: _revision_0_1(sketch, space)
    )


def schedule_digest(sketch: AnySketch, space: Space, workload: Workload, target: Machine) -> str:
    """Sixteen hexadecimal digits that stand for a sketch's schedules at the probed points of its space."""
    schedules = [_digest(sketch, workload, target, space.config(point)) for point in probes(space)]
    return hashlib.sha256(json.dumps([space.revision, sketch.max_error, schedules]).encode()).hexdigest()[:16]


def probes(space: Space) -> list[Point]:
    """The points that are scheduled for a fingerprint: the origin, and a few in which many knobs have new values.

    Coordinates of few values, such as most categorical knobs, take each of them, as far as six points suffice. They are
    the same points in every process. Probing other points would make all records invalid. A schedule that differs only
    where a knob has one of many values, or in a combination that is not probed, is not noticed.
    """
    rng = np.random.default_rng(0)
    samples = list(dict.fromkeys(space.sample(rng) for _ in range(_SAMPLES)))
    values = [set(column) for column in zip(*samples, strict=True)]
    few = {(index, value) for index, own in enumerate(values) if len(own) <= _FEW_VALUES for value in own}
    chosen, seen = [space.origin], set(enumerate(space.origin))

    def new_values(point: Point) -> tuple[int, int]:
        new = set(enumerate(point)) - seen
        return len(new & few), len(new)

    while left := [point for point in samples if point not in chosen]:
        if len(chosen) >= (_MOST_PROBES if few - seen else _PROBES):
            break
        chosen.append(max(left, key=new_values))
        seen.update(enumerate(chosen[-1]))
    return chosen


def _digest(sketch: AnySketch, workload: Workload, target: Machine, config: dict[str, Any]) -> list[Any]:
    try:
        variant = sketch.apply(workload, target, config)
    except Exception as error:  # noqa: BLE001  whatever a sketch raises, it has no schedule here
        return ["no schedule", type(error).__name__]
    return list(_hashes(variant))


def _hashes(variant: Variant) -> Iterator[list[int]]:
    yield [-1, tvm_ffi.structural_hash(variant.main)]
    for position, transform in sorted(variant.transforms.items()):
        yield [position, tvm_ffi.structural_hash(transform)]


def _revision_0_1(sketch: AnySketch, space: Space) -> str | None:
    """The revision that version 0.1.0 gave this space; None if its schedules are not those of 0.1.0 any more."""
    revision, digest = _VERSION_0_1.get(sketch.name, (None, None))
    return revision if revision is not None and _sample_digest(sketch) == digest else None


@lru_cache(maxsize=16)
def _sample_digest(sketch: AnySketch) -> str | None:
    """A digest of a sketch's schedules for some workloads, on a CPU with AVX-512 whatever this machine is.

    Version 0.1.0 computed an exp as one is computed now if denormals are kept. That is no other schedule.
    """
    target = keeping_denormals(parse_machine("cpu/x86-64-v4"))
    convolution = operators.conv2d(n=1, h=14, w=14, ci=16, co=32, kh=3, kw=3, pad=1, bias=1, act="relu")
    digests = []
    for workload in (convolution, operators.matmul(32, 64, 48), operators.softmax(32, 64)):
        space = sketch.space(workload, target)
        if space is not None:
            digests.append(schedule_digest(sketch, space, workload, target))
    return " ".join(digests)
