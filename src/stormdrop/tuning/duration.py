"""Durations as people write them: "90s", "3m", "1h30m" or a number of seconds."""

from __future__ import annotations

import math
import re
from numbers import Real

from ..errors import InputError, quoted, shown

_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h)?")
_MOST = 1e9  # seconds, some 30 years: what is longer is a mistake, and more than some clocks can wait
_UNITS = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(value: float | str | None, what: str = "time") -> float | None:
    """The seconds of a duration.

    Args:
        value: A number of seconds, a text such as "3m", or None.
        what: The name of the duration in messages.

    Returns:
        The seconds; None for None.

    Raises:
        InputError: The value is no duration, or is not greater than zero.

    Example:
        >>> seconds_of("1h30m")
        5400.0
    """
    if value is None:
        return None
    if not isinstance(value, str | Real):
        raise InputError(f"{what} {quoted(value)}: not a duration; write 90s, 3m, 1h or a number of seconds")
    try:
        seconds = _read(value, what) if isinstance(value, str) else float(value)
    except OverflowError:
        seconds = math.inf
    if not seconds > 0:
        raise InputError(f"{what} {value}: must be greater than zero")
    if seconds > _MOST:
        raise InputError(f"{what} {shown(str(value)) if isinstance(value, str | float) else quoted(value)}: too long")
    return seconds


def _read(text: str, what: str) -> float:
    compact = text.strip().lower()
    parts = list(_PART.finditer(compact.removeprefix("-")))
    whole = bool(parts) and "".join(part.group(0) for part in parts) == compact.removeprefix("-")
    if not whole or (len(parts) > 1 and any(part.group(2) is None for part in parts)):
        raise InputError(f"{what} {text}: not a duration; write 90s, 3m, 1h or a number of seconds")
    seconds = sum(float(part.group(1)) * _UNITS[part.group(2)] for part in parts)
    return -seconds if compact.startswith("-") else seconds
