"""Recorded grounds by name. Searches are compared on them without a machine.

    load("gemm.json.gz")            a Kernel Tuner cache (compare/kernel_tuner.py)
    load("records.jsonl")           what `stormdrop db export` wrote, plain or gzip
    load("records.jsonl#matmul")    one of several workloads in it
    load("ansor.log.gz#...")        a log of Ansor or AutoTVM, or the records of MetaSchedule (compare/tvm_logs.py)
    load("analytic:lrw")            an analytic landscape (space/analytic.py), without noise

Records become a ground in this way:

- The space of a sketch consists of the configurations that were recorded. Its knobs and its origin are those that a
  session describes (`method["spaces"]` holds for each sketch what `Space.describe` returns).
- If no session describes them, there is one knob per key of the configurations, with the values that occur: `Ordinal`
  for numbers, `Categorical` for text. A tuple becomes one knob per component, such as `tile_1`. Its outermost component
  is left out if the others determine it, so that a step of one knob leads to another configuration.
- Repeated trials of a candidate are pooled. The phases are those of its first trial. A candidate that failed in any
  trial is a failure.
- If a sketch was recorded in several versions, the version of the latest session counts.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import SpaceError, SpaceFileError, hint, shown
from ..measure.replay import Recorded, Recording
from ..records import Config, Problem, StoredSession, StoredTrial, read_lines
from ..space import Categorical, Constraint, Knob, Ordinal, Space, Value, knob_from
from ..space.analytic import landscapes
from ..trial import Candidate
from .kernel_tuner import kernel_tuner_recording, unpacked
from .tvm_logs import LoggedTrial, is_tvm_log, read_tvm_log

Sessions = Sequence[tuple[StoredSession, Sequence[StoredTrial]]]
"""Sessions, each with its trials."""

_ANALYTIC = "analytic:"
_MESSAGE = 400  # characters of a message about the content, at most
_MOST = {"extent": 1 << 32, "levels": 32}
"""What a file may ask of a knob. A tile knob divides by all numbers up to the root of its extent."""


def load(source: str | Path) -> Recording:
    """Loads a recording.

    Args:
        source: A file of records, of Kernel Tuner or of TVM's tuners, or "analytic:" with the name of a landscape. If a
            file holds several workloads, "#" and the name of one follow.

    Raises:
        SpaceFileError: The file cannot be read or makes no ground, or the name is unknown. One line says why.
        StoreError: A line of the records is malformed.

    Example:
        >>> load("analytic:lrw").name
        'lrw'
    """
    text = str(source)
    if text.startswith(_ANALYTIC):
        return _analytic(text.removeprefix(_ANALYTIC).lower())
    try:
        file, _, workload = (text, "", "") if Path(text).expanduser().exists() else text.partition("#")
        path = Path(file).expanduser()
    except (OSError, RuntimeError) as error:  # the name is too long, or its user has no home
        raise SpaceFileError(f"{text} cannot be read: {error}") from error
    content = unpacked(path)
    if is_tvm_log(content):
        return _from_log(content, file, workload)
    if not content.startswith(b'{"header"') and ".jsonl" not in path.suffixes:
        return kernel_tuner_recording(content, path)
    return from_sessions(list(read_lines(io.BytesIO(content), file)), file, workload)


def _analytic(name: str) -> Recording:
    by_name = landscapes()
    if name not in by_name:
        raise SpaceFileError(f"unknown analytic landscape {name!r}; {hint(name, by_name)}")
    landscape = by_name[name]
    candidates = [Candidate(landscape.space.name, point) for point in landscape.space.points()]
    recorded = {candidate: Recorded((landscape.seconds(candidate),)) for candidate in candidates}
    return Recording(name, (landscape.space,), recorded)


def from_sessions(sessions: Sessions, source: str, workload: str = "") -> Recording:
    """The recording of one workload in the records.

    Args:
        sessions: The records.
        source: Where they come from, for errors.
        workload: The name of the workload; it may be empty if there is only one.

    Raises:
        SpaceFileError: The workload is unknown or must be chosen, no candidate worked, or the records of a sketch do
            not fit together.
    """
    sessions = sorted(_of_one_workload(sessions, source, workload), key=lambda entry: entry[0].created)
    trials_by_sketch, descriptions = _by_sketch(sessions, source)
    return _of_trials(sessions[0][0].problem.workload_name, trials_by_sketch, descriptions, source)


def _from_log(content: bytes, source: str, workload: str) -> Recording:
    """The recording of one workload in a log of TVM's."""
    try:
        trials = read_tvm_log(content)
    except ValueError as error:
        raise SpaceFileError(f"{source}: {shown(str(error), _MESSAGE)}") from error
    names = list(dict.fromkeys(trial.workload for trial in trials))
    name = _chosen(names, source, workload)
    by_sketch: dict[str, list[LoggedTrial]] = {}
    for trial in trials:
        if trial.workload == name:
            by_sketch.setdefault(trial.sketch, []).append(trial)
    return _of_trials(name, by_sketch, {}, source)


def _of_trials(
    name: str,
    trials_by_sketch: Mapping[str, Sequence[StoredTrial | LoggedTrial]],
    descriptions: Mapping[str, Any],
    source: str,
) -> Recording:
    """The recording of trials by sketch, some of whose spaces are described."""
    spaces: list[Space] = []
    recorded: dict[Candidate, Recorded] = {}
    for sketch, trials in trials_by_sketch.items():
        try:
            configs = [trial.config for trial in trials]
            space, candidates = _space_of(sketch, configs, descriptions.get(sketch))
        except (KeyError, TypeError, ValueError, SpaceError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SpaceFileError(
                f"{source}: the records of sketch {shown(sketch)!r} make no space: {shown(reason, _MESSAGE)}"
            ) from error
        trials_by_candidate: dict[Candidate, list[StoredTrial | LoggedTrial]] = {}
        for candidate, trial in zip(candidates, trials, strict=True):
            trials_by_candidate.setdefault(candidate, []).append(trial)
        spaces.append(space)
        recorded |= {candidate: _pooled(repeats) for candidate, repeats in trials_by_candidate.items()}
    if not any(entry.seconds for entry in recorded.values()):
        raise SpaceFileError(f"{source}: none of its {len(recorded)} candidates worked")
    return Recording(name, tuple(spaces), recorded)


def _by_sketch(sessions: Sessions, source: str) -> tuple[dict[str, list[StoredTrial]], dict[str, Any]]:
    """The trials of each sketch in its latest version, and the description of its space if a session has one.

    The sessions are in the order of their creation.
    """
    versions: dict[str, str] = {}
    for session, _ in sessions:
        versions.update(session.setting.sketches)
    descriptions: dict[str, Any] = {}
    trials_by_sketch: dict[str, list[StoredTrial]] = {}
    for session, trials in sessions:
        current = {sketch for sketch, version in session.setting.sketches.items() if version == versions[sketch]}
        spaces = session.setting.method.get("spaces", {})
        if not isinstance(spaces, dict):
            raise SpaceFileError(
                f"{source}: 'spaces' in the method of a session must be a JSON object, not {spaces!r:.40}"
            )
        descriptions.update({sketch: spaces[sketch] for sketch in current & spaces.keys()})
        for trial in trials:
            if trial.sketch in current:
                trials_by_sketch.setdefault(trial.sketch, []).append(trial)
    return trials_by_sketch, descriptions


def _pooled(trials: Sequence[StoredTrial | LoggedTrial]) -> Recorded:
    """What several trials say of their candidate together."""
    phases = trials[0].measurement.phases
    for trial in trials:
        if not trial.measurement.ok:
            return Recorded((), trial.measurement.status, trial.measurement.error, phases)
    return Recorded(tuple(chain.from_iterable(trial.measurement.seconds for trial in trials)), phases=phases)


def _of_one_workload(sessions: Sessions, source: str, workload: str) -> Sessions:
    """The sessions of the workload with this name, or of the only workload if the name is empty."""
    problems: dict[tuple[str, str, str], Problem] = {}
    for session, _ in sessions:
        problems.setdefault(_key(session.problem), session.problem)
    labels = [problem.workload_name for problem in problems.values()]
    if len(set(labels)) < len(labels):  # one workload on several machines, or two functions of one name
        labels = [
            shown(
                f"{problem.workload_name} {problem.workload_key[:8]} on {problem.target}, {problem.machine}", _MESSAGE
            )
            for problem in problems.values()
        ]
    keys = dict(zip(labels, problems, strict=True))
    if not keys:
        raise SpaceFileError(f"{source} holds no sessions")
    key = keys[_chosen(labels, source, workload)]
    return [(session, trials) for session, trials in sessions if _key(session.problem) == key]


def _chosen(labels: Sequence[str], source: str, workload: str) -> str:
    """The workload of this name, or the only one if the name is empty."""
    if workload and workload not in labels:
        nearest = difflib.get_close_matches(workload, labels, n=1, cutoff=0.0)[0]
        raise SpaceFileError(f"{source} holds no workload {workload!r}; did you mean {shown(nearest, _MESSAGE)!r}?")
    if not workload and len(labels) > 1:
        listed, first = shown("; ".join(labels), 1000), shown(labels[0], _MESSAGE)
        raise SpaceFileError(f"{source} holds several workloads: {listed}. Choose one: {source}#{first}")
    return workload or labels[0]


def _key(problem: Problem) -> tuple[str, str, str]:
    return problem.workload_key, problem.target, problem.machine


def _space_of(
    sketch: str, configs: Sequence[Config], description: Mapping[str, Any] | None
) -> tuple[Space, list[Candidate]]:
    """The space of these configurations, and the candidate of each of them."""
    origin: Mapping[str, Value] | None = None
    if description is None:
        configs = _flattened(configs)
        knobs = _inferred(configs)
    else:
        knobs = [_described(knob) for knob in description["knobs"]]
        origin = _normal(knobs, description["origin"])
    members = [_normal(knobs, config) for config in configs]
    constraint = Constraint.one_of([knob.name for knob in knobs], [tuple(member.values()) for member in members])
    space = Space(sketch, knobs, [constraint], origin if origin in members else None)
    return space, [Candidate(sketch, space.point(member)) for member in members]


def _described(description: Any) -> Knob:
    """The knob of a description. Raises `SpaceError` if making it could take more than moments."""
    if not isinstance(description, Mapping):
        raise SpaceError(f"a knob is described by a JSON object, not by {description!r:.40}")
    for entry, most in _MOST.items():
        value = description.get(entry, 0)
        if isinstance(value, int | float) and value > most:
            raise SpaceError(f"{entry!r} of a knob may be {most} at most, not {value}")
    return knob_from(description)


def _normal(knobs: Sequence[Knob], config: Config) -> dict[str, Value]:
    """The values of a configuration as the knobs hold them, in the knobs' order. Raises KeyError or `SpaceError`."""
    return {knob.name: knob.value(knob.coordinates(config[knob.name])) for knob in knobs}


def _flattened(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Spreads tuples over keys: {"tile": (3, 4, 2)} becomes {"tile_1": 4, "tile_2": 2}.

    The outermost component of a tuple is left out if the others determine it. Raises ValueError if the configurations
    do not have the same form.
    """
    forms = [
        {name: len(value) if isinstance(value, tuple) else 0 for name, value in config.items()} for config in configs
    ]
    for form in forms:
        if form != forms[0]:
            raise ValueError(f"configurations differ in their form: knobs {list(forms[0])} and {list(form)}")
    first = {
        name: int(
            length > 1 and len({config[name] for config in configs}) == len({config[name][1:] for config in configs})
        )
        for name, length in forms[0].items()
    }
    flattened: list[dict[str, Any]] = []
    for config in configs:
        flat: dict[str, Any] = {}
        for name, value in config.items():
            if isinstance(value, tuple):
                flat |= {f"{name}_{index}": value[index] for index in range(first[name], len(value))}
            else:
                flat[name] = value
        flattened.append(flat)
    return flattened


def _inferred(configs: Sequence[Mapping[str, Any]]) -> list[Knob]:
    """One knob per key. Raises ValueError if the values of a key are neither all numbers nor all text."""
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
