"""The exceptions that stormdrop raises. A failed candidate is no exception: it is a `Measurement` with a status.

StormdropError
├── InputError             the user's input is wrong: the command line exits with 2 and prints this one line
│   ├── OperatorError      unknown operator, missing or bad argument
│   ├── ModelError         an ONNX file that cannot be read, imported or compiled
│   ├── TargetError        a target that is unknown, or that this machine does not have
│   ├── SearchError        unknown search or option
│   ├── StoreError         a database that cannot be opened, or that is no stormdrop database
│   ├── ArtifactError      a saved model that cannot be loaded here
│   └── SpaceFileError     a file of recorded measurements that cannot be read, or a landscape that is unknown
├── SpaceError             a point, a configuration or a knob that does not fit its space
├── UnsupportedFunction    a sketch does not apply to a function (TensorIR outside its form)
└── MeasureError           the measurer itself cannot work (no worker starts)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StormdropError(Exception):
    """Root of everything that stormdrop raises on purpose."""


class InputError(StormdropError):
    """The user's input is wrong; the message is one line that says what is wrong and what would be right."""


class OperatorError(InputError):
    """Unknown operator, or an argument of one that is missing or bad."""


class ModelError(InputError):
    """An ONNX model that cannot be read, imported or compiled."""


class TargetError(InputError):
    """A target that is unknown or that this machine does not have."""


class SearchError(InputError):
    """An unknown search, or an option that it does not take."""


class StoreError(InputError):
    """A database that cannot be opened, or is not one of stormdrop's."""


class ArtifactError(InputError):
    """A saved model that cannot be loaded here."""


class SpaceFileError(InputError):
    """A file of recorded measurements that cannot be read, or an analytic landscape that is unknown."""


class SpaceError(StormdropError):
    """A point, a configuration or a knob that does not fit its space."""


class UnsupportedFunction(StormdropError):
    """A sketch does not apply to a function: its TensorIR is outside the sketch's form."""


class MeasureError(StormdropError):
    """The measurer itself cannot work."""


_SHOWN = 16  # names in a list of all


def hint(wrong: object, valid: Iterable[str]) -> str:
    """The end of a line about a wrong name: the nearest valid one, or all of them where none is near."""
    names = list(dict.fromkeys(valid))
    near = difflib.get_close_matches(str(wrong), names, n=1, cutoff=0.5)
    shown = ", ".join(names[:_SHOWN]) + " ..." * (len(names) > _SHOWN)
    return f"did you mean {near[0]!r}?" if near else f"there is {shown or 'none'}"


def one_line(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    name = type(error).__name__
    return (text if text.startswith(name) else f"{name}: {text}" if text else name)[:300]
