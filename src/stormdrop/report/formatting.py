"""Numbers, times and configurations as people read them: in pages, in the dashboard and in a terminal.

What is not known is None, and is shown as a dash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from .layer_label import label_of

UNKNOWN = "–"

_NAMED, _LABEL = 3, 48  # kernels in a line, and characters of the layers of each

_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
_ASCII = str.maketrans({"µ": "u", UNKNOWN: "-"})


def json_value(value: Any) -> Any:
    """A value as JSON has it: null stands for numbers that JSON lacks, a number for one of NumPy.

    Example:
        >>> json_value({"seconds": (0.5, float("nan")), 3: "x"})
        {'seconds': [0.5, None], '3': 'x'}
    """
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return json_value(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def time(seconds: float | None) -> str:
    """A time with three significant digits and its unit.

    Example:
        >>> time(0.0012345), time(45.6e-6), time(None)
        ('1.23 ms', '45.6 µs', '–')
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    unit, factor = next((each for each in _UNITS if seconds * each[1] >= 1), _UNITS[-1])
    number = seconds * factor
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"


def ascii_time(seconds: float | None) -> str:
    """A time for a terminal, which may show ASCII only.

    Example:
        >>> ascii_time(45.6e-6), ascii_time(None)
        ('45.6 us', '-')
    """
    return in_ascii(time(seconds))


def in_ascii(text: str) -> str:
    """What a function of this module returned, for a terminal that may show ASCII only."""
    return text.translate(_ASCII)


def interval(pair: Sequence[float | None] | None) -> str:
    """The two ends of an interval of times.

    Example:
        >>> interval((0.001, 0.002))
        '1 ms to 2 ms'
    """
    return _ends(pair, time)


def duration(seconds: float) -> str:
    """Wall time as people say it.

    Example:
        >>> duration(3725.0)
        '1 h 2 min'
        >>> duration(120.0)
        '2 min'
        >>> duration(0.0415)
        '0.0415 s'
    """
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds / 60)
    large, small = (f"{minutes} min", f"{int(seconds % 60)} s") if minutes < 60 else _hours(minutes)
    return large if small.startswith("0 ") else f"{large} {small}"


def whole_seconds(seconds: float) -> str:
    """Wall time that goes on while it is read.

    Example:
        >>> whole_seconds(7.83), whole_seconds(130.2)
        ('7 s', '2 min 10 s')
    """
    return duration(float(int(seconds)))


def _hours(minutes: int) -> tuple[str, str]:
    return f"{minutes // 60} h", f"{minutes % 60} min"


def when(created: str) -> str:
    """A moment in ISO 8601 without what people do not read."""
    return created[:19].replace("T", " ")


def ago(moment: str, now: datetime | None = None) -> str:
    """How long ago a moment in ISO 8601 was; empty if it is none."""
    try:
        begun = datetime.fromisoformat(moment)
    except ValueError:
        return ""
    if begun.tzinfo is None:
        begun = begun.replace(tzinfo=timezone.utc)
    seconds = ((now or datetime.now(timezone.utc)) - begun).total_seconds()
    return duration(max(0, int(seconds)))


def ratio(numerator: float | None, denominator: float | None) -> str:
    """How many times one time is another.

    Example:
        >>> ratio(0.003, 0.002), ratio(None, 0.002)
        ('1.50x', '–')
    """
    return UNKNOWN if not numerator or not denominator else f"{numerator / denominator:.2f}x"


def plain_ratio(value: float) -> str:
    """A ratio, with two digits at least.

    Example:
        >>> plain_ratio(1.237), plain_ratio(0.0312)
        ('1.24', '0.031')
    """
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:#.2g}"


def ratios(pair: Sequence[float | None] | None) -> str:
    """The two ends of an interval of ratios.

    Example:
        >>> ratios((0.98, 1.237))
        '0.98 to 1.24'
        >>> ratios((0.0301, 0.0342))
        '0.030 to 0.034'
    """
    return _ends(pair, plain_ratio)


def percent(share: float | None) -> str:
    """A share as a percentage.

    Example:
        >>> percent(0.4567), percent(0.004)
        ('46%', '0.4%')
    """
    if share is None or not math.isfinite(share):
        return UNKNOWN
    return f"{100 * share:.0f}%" if share >= 0.1 or share == 0 else f"{100 * share:.1f}%"


def rate(per_second: float | None) -> str:
    """FLOP/s in GFLOP/s.

    Example:
        >>> rate(3.2e11)
        '320'
    """
    return UNKNOWN if per_second is None or not math.isfinite(per_second) else f"{per_second / 1e9:.3g}"


def count(number: float, word: str = "") -> str:
    """A number, with its noun if there is one.

    Example:
        >>> count(1, "trial"), count(1200, "trial"), count(1234567)
        ('1 trial', '1,200 trials', '1,234,567')
    """
    noun = f" {word}{'' if number == 1 else 's'}" if word else ""
    return f"{number:,.0f}{noun}"


def shape(extents: Sequence[int]) -> str:
    """A shape.

    Example:
        >>> shape((1, 3, 56, 56))
        '1×3×56×56'
    """
    return "×".join(map(str, extents)) or "scalar"


def short_machine(machine: str, most: int = 36) -> str:
    """The name of a machine for a column, without words that tell it from no other one.

    Args:
        machine: The machine, as records name it.
        most: Characters that are shown.

    Example:
        >>> short_machine("Intel(R) Xeon(R) Platinum 8488C, 2 cores"), short_machine("AMD EPYC 7763 64-Core Processor")
        ('Xeon Platinum 8488C, 2 cores', 'EPYC 7763')
    """
    name = " ".join(_NO_NAMES.sub(" ", machine).split()).replace(" ,", ",").strip(" ,") or machine
    return name if len(name) <= most else f"{name[: most - 1].rstrip(' ,')}…"


_NO_NAMES = re.compile(r"\((?:R|TM|C)\)|\b(?:Intel|AMD|NVIDIA|CPU|Processor|\d+-Core)\b", re.IGNORECASE)
"""What the names of CPUs and GPUs hold besides their names."""


def config(values: Mapping[str, Any] | None) -> str:
    """The values of all knobs in one line.

    Example:
        >>> config({"tile": (4, 8), "unroll": 3})
        'tile=4x8, unroll=3'
    """
    return ", ".join(f"{name}={value(knob)}" for name, knob in (values or {}).items())


def value(knob: Any) -> str:
    """The value of a knob, or of a group of them; a tile is written as 4x8x1."""
    if isinstance(knob, Mapping):
        return f"({config(knob)})"
    return "x".join(map(str, knob)) if isinstance(knob, list | tuple) else str(knob)


def precision_in_words(entry: Mapping[str, Any]) -> str:
    """What the entry `precision` of a document says, with the layers of the type that fewer kernels have.

    Example:
        >>> kernels = {"in_bfloat16": [{"name": "conv", "layers": ["a"]}] * 9, "in_float32": [{"name": "dense"}]}
        >>> precision_in_words({"layers": 54, "bfloat16": 53, "error": 3.1e-3, "agreement": 0.98, **kernels})
        '53 of 54 layers in bfloat16; error 3.1e-03 against float32, top-1 agreement 98%; in float32: dense'
    """
    agreement = entry["agreement"]
    top = "" if agreement is None else f", top-1 agreement {agreement:.0%}"
    dtype = _low_type(entry)
    layers = f"{entry[dtype]} of {entry['layers']} layers in {dtype}"
    return f"{layers}; error {entry['error']:.1e} against float32{top}{_of_fewer_kernels(entry)}"


def _low_type(entry: Mapping[str, Any]) -> str:
    """The type besides float32 that an entry `precision` counts layers of."""
    return next(name for name in ("bfloat16", "float16", "tf32") if name in entry)


def _of_fewer_kernels(entry: Mapping[str, Any]) -> str:
    """The layers in float32, or those in the other type if these are fewer; empty if all are of one type."""
    by_type = {name: entry.get(f"in_{name}") or [] for name in ("float32", _low_type(entry))}
    name = min(by_type, key=lambda each: len(by_type[each]))
    if not by_type[name]:
        return ""
    shown = ", ".join(label_of(kernel, _LABEL) for kernel in by_type[name][:_NAMED])
    rest = f" and {len(by_type[name]) - _NAMED} more" if len(by_type[name]) > _NAMED else ""
    return f"; in {name}: {shown}{rest}"


def pieces_in_words(part: Mapping[str, Any]) -> str:
    """What a part takes time with that the CPU runs for a GPU; empty for any other part.

    Example:
        >>> copy = {"name": "copy to the host", "seconds": 2e-5, "bytes": 4096}
        >>> pieces_in_words({"pieces": [copy, {"name": "onnxruntime", "seconds": 1e-3, "bytes": 0}]})
        ': copy to the host 20 µs (4,096 bytes), onnxruntime 1 ms'
    """
    pieces = (
        f"{piece['name']} {time(piece['seconds'])}" + (f" ({count(piece['bytes'], 'byte')})" if piece["bytes"] else "")
        for piece in part.get("pieces") or ()
    )
    return f": {listed}" if (listed := ", ".join(pieces)) else ""


FILTERS: Mapping[str, Callable[..., str]] = {
    function.__name__: function
    for function in (
        *(
            time,
            interval,
            duration,
            whole_seconds,
            when,
            ago,
            ratios,
            percent,
            rate,
            count,
            shape,
            short_machine,
            config,
            value,
        ),
        precision_in_words,
        pieces_in_words,
    )
}
"""The filters of the templates by name."""


def _ends(pair: Sequence[float | None] | None, show: Callable[[float], str]) -> str:
    """The two ends of an interval, or `UNKNOWN`."""
    known = [bound for bound in pair or () if bound is not None and math.isfinite(bound)]
    return f"{show(known[0])} to {show(known[1])}" if len(known) == 2 else UNKNOWN
