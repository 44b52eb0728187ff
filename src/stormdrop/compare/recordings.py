"""Recorded grounds by name: what searches are compared on without a machine.

    load("gemm.json.gz")            a Kernel Tuner cache (measure/kernel_tuner.py)
    load("records.jsonl")           what `stormdrop db export` wrote, plain or gzip
    load("records.jsonl#matmul")    one of several workloads in it
    load("analytic:lrw")            an analytic landscape (space/analytic.py), noise-free

How records become a ground:

- The space of a sketch is what was recorded of it. Its knobs and its origin are those that a session describes
  (`method["spaces"]`: by sketch, what `Space.describe` returns). Where none does, there is one knob per key of the
  configurations, with the values that occur: `Ordinal` for numbers, `Categorical` for text. A tuple becomes a knob
  per component, `tile_1`; the outermost is left out where the others decide it, so that one step changes one.
- Repeats of a candidate are pooled; the phases are those of its first trial. One that ever failed is a failure.
- Of a sketch that was recorded in several versions, the version of the latest session counts.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import SpaceError, SpaceFileError, hint
from ..measure.replay import Recorded, Recording
from ..records import Config, Problem, StoredSession, StoredTrial, read_lines
from ..space import Categorical, Constraint, Knob, Ordinal, Space, Value, knob_from
from ..space.analytic import landscapes
from ..trial import Candidate
from .kernel_tuner import kernel_tuner_recording, unpacked

Sessions = Sequence[tuple[StoredSession, Sequence[StoredTrial]]]

_ANALYTIC = "analytic:"


def load(source: str | Path) -> Recording:
    """The recording in a file or of a name; see the module. Raises `InputError`: one line that says what is wrong."""
    text = str(source)
    if text.startswith(_ANALYTIC):
        return _analytic(text.removeprefix(_ANALYTIC).lower())
    try:
        place, _, workload = (text, "", "") if Path(text).expanduser().exists() else text.partition("#")
        path = Path(place).expanduser()
    except (OSError, RuntimeError) as error:  # a name that is too long, a home that nobody has
        raise SpaceFileError(f"{text} cannot be read: {error}") from error
    content = unpacked(path)
    if not content.startswith(b'{"header"') and ".jsonl" not in path.suffixes:
        return kernel_tuner_recording(content, path)
    return from_sessions(list(read_lines(io.BytesIO(content), place)), place, workload)


def _analytic(name: str) -> Recording:
    known = landscapes()
    if name not in known:
        raise SpaceFileError(f"unknown analytic landscape {name!r}; {hint(name, known)}")
    landscape = known[name]
    candidates = [Candidate(landscape.space.name, point) for point in landscape.space.points()]
    recorded = {candidate: Recorded((landscape.seconds(candidate),)) for candidate in candidates}
    return Recording(name, (landscape.space,), recorded)


def from_sessions(sessions: Sessions, source: str, workload: str = "") -> Recording:
    """The recording of one workload in sessions; `source` is where they came from, for errors.

    `workload` may be left out where there is only one. Raises `SpaceFileError` where it is needed or unknown, where
    no candidate worked, and where the records of a sketch do not fit together.
    """
    sessions = sorted(_of_one_workload(sessions, source, workload), key=lambda each: each[0].created)
    versions: dict[str, str] = {}
    for session, _ in sessions:
        versions.update(session.setting.sketches)
    descriptions: dict[str, Any] = {}
    trials: dict[str, list[StoredTrial]] = {}
    for session, its in sessions:
        current = {sketch for sketch, version in session.setting.sketches.items() if version == versions[sketch]}
        spaces = session.setting.method.get("spaces", {})
        if not isinstance(spaces, dict):
            raise SpaceFileError(
                f"{source}: 'spaces' in the method of a session must be a JSON object, not {spaces!r:.40}"
            )
        descriptions.update({sketch: spaces[sketch] for sketch in current & spaces.keys()})
        for trial in its:
            if trial.sketch in current:
                trials.setdefault(trial.sketch, []).append(trial)
    grounds: list[Space] = []
    recorded: dict[Candidate, Recorded] = {}
    for sketch, its in trials.items():
        try:
            space, candidates = _ground(sketch, [trial.config for trial in its], descriptions.get(sketch))
        except (KeyError, TypeError, ValueError, SpaceError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SpaceFileError(f"{source}: the records of sketch {sketch!r} make no space: {reason}") from error
        repeats: dict[Candidate, list[StoredTrial]] = {}
        for candidate, trial in zip(candidates, its, strict=True):
            repeats.setdefault(candidate, []).append(trial)
        grounds.append(space)
        recorded |= {candidate: _pooled(its) for candidate, its in repeats.items()}
    if not any(known.seconds for known in recorded.values()):
        raise SpaceFileError(f"{source}: none of its {len(recorded)} candidates worked")
    return Recording(sessions[0][0].problem.workload_name, tuple(grounds), recorded)


def _pooled(trials: Sequence[StoredTrial]) -> Recorded:
    phases = trials[0].measurement.phases
    for trial in trials:
        if not trial.measurement.ok:
            return Recorded((), trial.measurement.status, trial.measurement.error, phases)
    return Recorded(tuple(chain.from_iterable(trial.measurement.seconds for trial in trials)), phases=phases)


def _of_one_workload(sessions: Sessions, source: str, workload: str) -> Sessions:
    """The sessions of the workload with this label, or of the only one there is."""
    problems: dict[tuple[str, str, str], Problem] = {}
    for session, _ in sessions:
        problems.setdefault(_key(session.problem), session.problem)
    labels = [problem.workload_name for problem in problems.values()]
    if len(set(labels)) < len(labels):  # one workload on several machines, or two functions of one name
        labels = [f"{p.workload_name} {p.workload_key[:8]} on {p.target}, {p.machine}" for p in problems.values()]
    keys = dict(zip(labels, problems, strict=True))
    if not keys:
        raise SpaceFileError(f"{source} holds no sessions")
    if workload and workload not in keys:
        near = difflib.get_close_matches(workload, labels, n=1, cutoff=0.0)[0]
        raise SpaceFileError(f"{source} holds no workload {workload!r}; did you mean {near!r}?")
    if not workload and len(keys) > 1:
        raise SpaceFileError(f"{source} holds several workloads: {'; '.join(labels)}. Choose one: {source}#{labels[0]}")
    key = keys[workload or labels[0]]
    return [(session, trials) for session, trials in sessions if _key(session.problem) == key]


def _key(problem: Problem) -> tuple[str, str, str]:
    return problem.workload_key, problem.target, problem.machine


def _ground(
    sketch: str, configs: Sequence[Config], description: Mapping[str, Any] | None
) -> tuple[Space, list[Candidate]]:
    """The space of these configurations, and the candidate of each."""
    origin: Mapping[str, Value] | None = None
    if description is None:
        configs = _flattened(configs)
        knobs = _inferred(configs)
    else:
        knobs = [knob_from(each) for each in description["knobs"]]
        origin = _normal(knobs, description["origin"])
    members = [_normal(knobs, config) for config in configs]
    constraint = Constraint.one_of([knob.name for knob in knobs], [tuple(member.values()) for member in members])
    space = Space(sketch, knobs, [constraint], origin if origin in members else None)
    return space, [Candidate(sketch, space.point(member)) for member in members]


def _normal(knobs: Sequence[Knob], config: Config) -> dict[str, Value]:
    """The knobs' own values, in their order. Raises KeyError or `SpaceError`."""
    return {knob.name: knob.value(knob.coordinates(config[knob.name])) for knob in knobs}


def _flattened(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Configurations with tuples spread over keys: {"tile": (3, 4, 2)} becomes {"tile_1": 4, "tile_2": 2}.

    The outermost component of a tuple is left out where the others decide it. Raises ValueError where the
    configurations do not have the same form.
    """
    forms = [{name: len(value) if isinstance(value, tuple) else 0 for name, value in c.items()} for c in configs]
    for form in forms:
        if form != forms[0]:
            raise ValueError(f"configurations differ in their form: knobs {list(forms[0])} and {list(form)}")
    first = {
        name: int(length > 1 and len({c[name] for c in configs}) == len({c[name][1:] for c in configs}))
        for name, length in forms[0].items()
    }
    flats: list[dict[str, Any]] = []
    for config in configs:
        flat: dict[str, Any] = {}
        for name, value in config.items():
            spread = isinstance(value, tuple)
            flat |= {f"{name}_{i}": value[i] for i in range(first[name], len(value))} if spread else {name: value}
        flats.append(flat)
    return flats


def _inferred(configs: Sequence[Mapping[str, Any]]) -> list[Knob]:
    """One knob per key. Raises ValueError where the values of one are neither all numbers nor all text."""
    knobs: list[Knob] = []
    for name in configs[0]:
        values = {config[name] for config in configs}
        if all(isinstance(value, int | float) for value in values):
            knobs.append(Ordinal(name, sorted(values)))
        elif all(isinstance(value, str) for value in values):
            knobs.append(Categorical(name, sorted(values)))
        else:
            raise ValueError(
                f"the values of knob {name!r} are neither all numbers nor all text: {sorted(values, key=str)}"
            )
    return knobs
