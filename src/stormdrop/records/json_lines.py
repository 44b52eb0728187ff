"""Records as JSON lines, written and read as a stream.

{"header": {"format": "stormdrop records", "version": 1}}     first line
{"workload": {"key": ..., "digest": ..., "text": ...}}        once, before the first session that tunes it
{"session": {..., "workload_digest": ..., "trials": 2}}       a session, followed by that many trials
{"trial": {...}}
{"trial": {...}}
{"end": {"sessions": 1}}                                      last line: a file without it was cut off
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec

from ..errors import StoreError, shown
from .codec import clean, convert, encode, session_from_json, session_to_json, trial_from_json, trial_to_json
from .contract import Dump, StoredSession, StoredTrial

FORMAT = "stormdrop records"
VERSION = 1
"""Version of the format. Raise it if an older reader would misread what is written."""

T = TypeVar("T")


def write_lines(dump: Dump, out: BinaryIO) -> int:
    """Writes sessions with their trials as JSON lines.

    Args:
        dump: The sessions.
        out: A binary file.

    Returns:
        The number of sessions.

    Raises:
        OSError: If `out` cannot be written.
    """
    sessions = 0
    stated: set[tuple[str, str]] = set()
    _write(out, "header", {"format": FORMAT, "version": VERSION})
    for session, trials in dump:
        key, text = session.problem.workload_key, session.problem.workload_text
        digest = _digest(text)
        if (key, digest) not in stated:
            stated.add((key, digest))
            _write(out, "workload", {"key": key, "digest": digest, "text": text})
        _write(out, "session", {**session_to_json(session), "workload_digest": digest, "trials": len(trials)})
        for trial in trials:
            _write(out, "trial", trial_to_json(trial))
        sessions += 1
    _write(out, "end", {"sessions": sessions})
    return sessions


def is_header(line: bytes) -> bool:
    """Whether a file that begins with this line holds records, of this version of the format or another one."""
    try:
        return bool(json.loads(line)["header"]["format"] == FORMAT)
    except (ValueError, TypeError, LookupError):
        return False


def read_lines(lines: Iterable[bytes], source: str) -> Iterator[tuple[StoredSession, list[StoredTrial]]]:
    """Reads what `write_lines` wrote, session by session.

    Args:
        lines: The lines of a file.
        source: The name of the file, for messages.

    Yields:
        A session and its trials, in the order of the file.

    Raises:
        StoreError: If a line is not what it should be. The message names `source`, the line and the faulty field.
    """
    reader = _Reader(lines, source)
    reader.take(_check_header, "header")
    texts: dict[tuple[str, str], str] = {}
    sessions = 0
    while True:
        kind = reader.advance("workload", "session", "end")
        if kind == "workload":
            workload = reader.decode(_workload)
            texts[workload.key, workload.digest] = workload.text
        elif kind == "session":
            session, count = reader.decode(lambda data: _session(data, texts))
            trials: list[StoredTrial] = []
            for position in range(count):
                trials.append(reader.take(_trial_decoder(session, position), "trial"))
            yield session, trials
            sessions += 1
        else:
            expected = reader.decode(lambda data: convert(data, _End)).sessions
            if expected != sessions:
                raise reader.error(f"the file holds {sessions} sessions and should hold {expected}")
            reader.check_end()
            return


class _Reader:
    """Lines with their numbers. Whatever is wrong with a line becomes a `StoreError` that names the line."""

    def __init__(self, lines: Iterable[bytes], source: str) -> None:
        self._lines = iter(lines)
        self._source = source
        self._number = 0
        self._body: Any = None

    def error(self, what: str) -> StoreError:
        return StoreError(f"{self._source}, line {self._number}: {shown(what, 200)}")

    def take(self, decoder: Callable[[Any], T], kind: str) -> T:
        """The decoded next line, which must be of this kind."""
        self.advance(kind)
        return self.decode(decoder)

    def advance(self, *kinds: str) -> str:
        """Goes to the next line, which must be of one of these kinds, and returns its kind."""
        raw = self._raw()
        if raw is None:
            raise self.error(f"the file ends before its {' or '.join(kinds)}: it is cut off")
        try:
            data = json.loads(raw)
        except (ValueError, RecursionError) as error:
            hint = "it is cut off or no export of stormdrop" if not raw.endswith(b"\n") else "no export of stormdrop"
            raise self.error(f"not JSON ({str(error).splitlines()[0]}); {hint}") from error
        if not isinstance(data, dict) or len(data) != 1 or next(iter(data)) not in kinds:
            raise self.error(f"expected a line of kind {' or '.join(kinds)}, found {raw[:60]!r}")
        kind, self._body = next(iter(data.items()))
        return str(kind)

    def decode(self, decoder: Callable[[Any], T]) -> T:
        """The current line, decoded."""
        try:
            return decoder(self._body)
        except (ValueError, OverflowError, RecursionError) as error:
            raise self.error(str(error).splitlines()[0]) from error

    def check_end(self) -> None:
        """Raises `StoreError` if another line follows."""
        if self._raw() is not None:
            raise self.error("something follows the end of the export")

    def _raw(self) -> bytes | None:
        self._number += 1
        try:
            return next(self._lines, None)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from error


class _Header(msgspec.Struct):
    format: str
    version: int


class _Workload(msgspec.Struct):
    key: str
    digest: str
    text: str


class _References(msgspec.Struct):
    """The fields by which the line of a session refers to other lines."""

    workload_key: str
    workload_digest: str
    trials: Annotated[int, msgspec.Meta(ge=0)]


class _End(msgspec.Struct):
    sessions: int


def _check_header(data: Any) -> None:
    header = convert(data, _Header)
    if header.format != FORMAT:
        raise ValueError(f"the format is {header.format!r}, not {FORMAT!r}")
    if header.version != VERSION:
        raise ValueError(
            f"format version {header.version} is unknown: this stormdrop reads version {VERSION}; upgrade stormdrop"
        )


def _workload(data: Any) -> _Workload:
    workload = convert(data, _Workload)
    if _digest(workload.text) != workload.digest:
        raise ValueError(f"the text of workload {workload.key} does not have the digest that is stated")
    return workload


def _session(data: Any, texts: dict[tuple[str, str], str]) -> tuple[StoredSession, int]:
    """A session and the number of trial lines that follow it."""
    references = convert(data, _References)
    text = texts.get((references.workload_key, references.workload_digest))
    if text is None:
        raise ValueError(f"no line before this one states workload {references.workload_key}")
    return session_from_json(data, text), references.trials


def _trial_decoder(session: StoredSession, position: int) -> Callable[[Any], StoredTrial]:
    return lambda data: trial_from_json(data, position, session.setting.sketches)


def _write(out: BinaryIO, kind: str, body: dict[str, Any]) -> None:
    out.write(encode({kind: body}).encode() + b"\n")


def _digest(text: str) -> str:
    return hashlib.sha256(clean(text).encode()).hexdigest()
