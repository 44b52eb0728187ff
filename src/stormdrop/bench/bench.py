"""A tuned operator or model beside its peers: interleaved, with intervals, outputs compared.

How the contenders take turns is in `contest`, who they are in `peers`.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..errors import InputError, MeasureError
from ..statistics import median_interval, ratio_interval
from .peers import GROUPS, MODEL_PEERS, OPERATOR_PEERS
from .turns import Entry, Player, Turn, Unavailable, compete

if TYPE_CHECKING:
    from ..ir.workload import Workload
    from ..machine.cpu import Target
    from ..records import Store

Array = NDArray[Any]

OURS = "stormdrop"
ROUNDS = 15
TOLERANCE = 1e-3  # max|difference| / max|reference| up to which two contenders agree (float32, any order of sums)


@dataclass(frozen=True)
class Standing:
    """One contender: times in seconds per execution, each with its 95% interval.

    `ratio` is its time over ours, round by round: above 1 ours is faster. `error` is max|difference| over
    max|reference|, the reference being NumPy's result for an operator and our output for a model.
    """

    name: str
    seconds: float
    interval: tuple[float, float]
    ratio: float
    ratio_interval: tuple[float, float]
    error: float
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether its output is the reference's, within float32's rounding."""
        return self.error <= TOLERANCE


@dataclass(frozen=True)
class BenchResult:
    """Our standing first, then the peers; `skipped` says why the others could not take part.

    `rounds` is the number of interleaved rounds, `disturbed` of them beside foreign load; `flops` are the operations
    of one execution (0 where unknown).
    """

    what: str
    rounds: int
    disturbed: int
    standings: tuple[Standing, ...]
    skipped: Mapping[str, str]
    flops: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The document of `stormdrop bench --json`."""
        contenders = [
            {
                "name": each.name,
                "seconds": each.seconds,
                "interval": list(each.interval),
                "ratio": each.ratio,
                "ratio_interval": list(each.ratio_interval),
                "gflops": self.flops / each.seconds / 1e9 if self.flops else None,
                "max_error": each.error,
                "agrees": each.agrees,
                "versions": dict(each.versions),
                "settings": dict(each.settings),
            }
            for each in self.standings
        ]
        return {
            "what": self.what,
            "runs": self.rounds,
            "disturbed": self.disturbed,
            "contenders": contenders,
            "skipped": dict(self.skipped),
        }


def bench(
    what: Workload | str | Path,
    against: Sequence[str] | None = None,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    target: Target | None = None,
    store: Store | None = None,
    on_progress: Callable[[Any], None] | None = None,
) -> BenchResult:
    """Times our kernel or model beside the peers named in `against` (by default all there are).

    `what` is an operator (`operators.matmul(512, 512, 512)`), an ONNX file, or a saved tuned model. What has no
    finished tuning in the store is tuned first; `shapes` gives the sizes that an ONNX file leaves open. A peer that is
    not installed, has no form for this, or dies before its first turn is skipped with a reason. Raises `InputError` for
    an unknown peer or a `what` that is none of these.
    """
    from ..ir.workload import Workload
    from ..machine.cpu import Target

    if rounds < 2:
        raise InputError(f"rounds {rounds}: an interval needs 2 or more")
    machine = target or Target.detect()
    known = OPERATOR_PEERS if isinstance(what, Workload) else MODEL_PEERS
    names, skipped = _names(against, known)
    with tempfile.TemporaryDirectory(prefix="stormdrop-") as scratch:
        how = _How(machine, seed, store, on_progress, Path(scratch), shapes)
        match = _operator(what, names, how) if isinstance(what, Workload) else _model(Path(what), names, how)
        return _play(match, machine.cores, rounds, skipped)


@dataclass(frozen=True)
class _How:
    target: Target
    seed: int
    store: Store | None
    on_progress: Callable[[Any], None] | None
    scratch: Path
    shapes: Mapping[str, tuple[int, ...]] | None


@dataclass(frozen=True)
class _Match:
    what: str
    entries: Sequence[Entry]  # ours first
    reference: Sequence[Array] | None  # None: our own outputs
    skipped: Mapping[str, str]
    flops: float = 0.0


def _names(against: Sequence[str] | None, known: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The peers that are meant, and those that cannot be in this kind of bench with the reason."""
    everywhere = {**OPERATOR_PEERS, **MODEL_PEERS}
    names: list[str] = []
    skipped: dict[str, str] = {}
    for given in known if against is None else against:
        if given not in everywhere:
            raise InputError(f"unknown peer {given!r}: known are {', '.join(sorted(everywhere))}")
        members = [name for name in GROUPS.get(given, (given,)) if name in known]
        if not members:
            kind = "operators" if known is OPERATOR_PEERS else "ONNX models"
            skipped[given] = f"{given} does not run {kind} here"
        names += [name for name in members if name not in names]
    return names, skipped


def _operator(workload: Workload, names: Sequence[str], how: _How) -> _Match:
    from ..tuning.tune import tune

    result = tune(workload, target=how.target, seed=how.seed, store=how.store, on_progress=how.on_progress)
    if result.best is None:
        raise MeasureError(f"{workload.name}: no candidate worked, so there is nothing to bench")
    inputs = workload.random_inputs(how.seed)
    ours = {"workload": workload, "sketch": result.best.sketch, "config": dict(result.best.config), "inputs": inputs}
    theirs = {"operator": workload.name.split()[0], "arguments": dict(workload.arguments), "inputs": inputs}
    entries = [Entry(OURS, "stormdrop.bench.peers.ours:TunedOperator", ours)]
    entries += [Entry(name, OPERATOR_PEERS[name], theirs) for name in names]
    return _Match(workload.name, entries, workload.reference(inputs), {}, workload.flops)


def _model(path: Path, names: Sequence[str], how: _How) -> _Match:
    from ..model import load, tune_model
    from ..model.artifact import checksum
    from ..model.verify import random_feeds

    if path.is_dir():
        artifact, model = path, load(path)
        source = Path(str(model.metadata.provenance.get("source", "")))
        made_from = model.metadata.provenance.get("sha256")
    else:
        artifact, source, made_from = how.scratch / "model.sd", path, None
        model = tune_model(
            path,
            target=how.target,
            seed=how.seed,
            store=how.store,
            shapes=how.shapes,
            on_progress=how.on_progress,
            out=artifact,
        ).model
    feeds = random_feeds(model.inputs, how.seed)
    entries = [Entry(OURS, "stormdrop.bench.peers.ours:TunedModel", {"artifact": str(artifact), "inputs": feeds})]
    if not source.is_file():
        reason = f"the ONNX file that {path} was made from is not there ({source})"
        return _Match(str(path), entries, None, dict.fromkeys(names, reason))
    if made_from is not None and made_from != checksum(source):
        reason = f"the ONNX file that {path} was made from has changed since ({source})"
        return _Match(str(path), entries, None, dict.fromkeys(names, reason))
    theirs = {"model": source.read_bytes(), "inputs": feeds}
    entries += [Entry(name, MODEL_PEERS[name], theirs) for name in names]
    return _Match(str(path), entries, None, {})


def _play(match: _Match, threads: int, rounds: int, skipped: Mapping[str, str]) -> BenchResult:
    left_out = {**skipped, **match.skipped}
    players: list[Player] = []
    outputs: list[list[Array]] = []  # of each player
    try:
        for entry in match.entries:
            try:
                player, arrays = _prepared(entry, threads)
            except (Unavailable, MeasureError) as reason:
                if entry.name == OURS:
                    raise MeasureError(f"{match.what}: our own kernel cannot run: {reason}") from reason
                left_out[entry.name] = str(reason)
            else:
                players.append(player)
                outputs.append(arrays)
        reference = outputs[0] if match.reference is None else match.reference
        times = compete(players, rounds, Turn())
        standings = tuple(
            _standing(player, times.rounds[0], times.rounds[index], _error(reference, outputs[index]))
            for index, player in enumerate(players)
        )
    finally:
        for player in players:
            player.close()
    return BenchResult(match.what, rounds, times.disturbed, standings, left_out, match.flops)


def _prepared(entry: Entry, threads: int) -> tuple[Player, list[Array]]:
    """A contender that works, and its outputs. Raises `Unavailable`, or `MeasureError` where its process dies."""
    player = Player(entry, threads)
    try:
        return player, player.outputs()
    except BaseException:
        player.close()
        raise


def _standing(player: Player, ours: Sequence[float], theirs: Sequence[float], error: float) -> Standing:
    time, ratio = median_interval(theirs), ratio_interval(theirs, ours)
    return Standing(
        player.name,
        time.estimate,
        (time.low, time.high),
        ratio.estimate,
        (ratio.low, ratio.high),
        error,
        player.versions,
        player.settings,
    )


def _error(reference: Sequence[Array], outputs: Sequence[Array]) -> float:
    """max|difference| / max|reference| over all outputs; infinite where their number or shapes differ."""
    from ..model.verify import relative_error

    if len(reference) != len(outputs):
        return math.inf
    return max((relative_error(got, want) for want, got in zip(reference, outputs, strict=True)), default=0.0)
