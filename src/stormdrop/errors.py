"""The exceptions that stormdrop raises, and helpers for their messages.

A failed candidate is no exception: it is a `Measurement` whose status is not OK.

StormdropError
├── InputError             the user's input is wrong: the command line prints the message and exits with 2
│   ├── OptionError        an option that is out of its range, or options that contradict each other
│   ├── OperatorError      an unknown operator, or a missing or bad argument of one
│   ├── ModelError         an ONNX model that cannot be read, imported or compiled
│   ├── TargetError        a target that is unknown, or that this machine does not have
│   ├── SearchError        an unknown search, or a bad option of one
│   ├── StoreError         a database that cannot be opened, or that is not stormdrop's
│   ├── PluginError        a plug-in of another package that does not load
│   ├── ArtifactError      a saved model that cannot be loaded here
│   ├── DeviceError        a GPU that is missing, too old or full, or on which a kernel has failed
│   └── SpaceFileError     a file of recorded measurements that cannot be read, or an unknown analytic landscape
├── SpaceError             a point, a configuration or a knob that does not fit its space
├── UnsupportedFunction    a function to which a sketch does not apply
└── MeasureError           the measurer itself cannot work, for instance because no worker starts
    └── LockTimeout        another process uses the machine for longer than this one may wait
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


class StormdropError(Exception):
    """The base class of everything that stormdrop raises on purpose."""


class InputError(StormdropError):
    """The user's input is wrong. The message is one line that says what is wrong and what would be right."""


class OptionError(InputError):
    """An option that is out of its range, or options that contradict each other.

    Whoever checks an option need not know whether it was an argument of a function or of the command line.

    Args:
        rule: What is wrong and what would be right, with the names of the options in braces.
        values: The values of these options; True for one that is shown by its name alone.

    Example:
        >>> error = OptionError("{max_trials} must be 1 or more", {"max_trials": 0})
        >>> str(error), error.on_command_line()
        ('max_trials=0 must be 1 or more', '--max-trials 0: must be 1 or more')
    """

    def __init__(self, rule: str, values: Mapping[str, object]) -> None:
        super().__init__(rule, values)
        self._rule, self._values = rule, values

    def __str__(self) -> str:
        shown = {name: name if value is True else f"{name}={quoted(value)}" for name, value in self._values.items()}
        return self._rule.format(**shown)

    def on_command_line(self) -> str:
        """The message, with the options as they are written on the command line."""
        options = {name: f"--{name.replace('_', '-')}" for name in self._values}
        shown = {name: options[name] + ("" if value is True else f" {value}:") for name, value in self._values.items()}
        return self._rule.format(**shown)


class OperatorError(InputError):
    """An unknown operator, or an argument of one that is missing or bad."""


class ModelError(InputError):
    """An ONNX model that cannot be read, imported or compiled."""


class TargetError(InputError):
    """A target that is unknown, or that this machine does not have."""


class SearchError(InputError):
    """An unknown search, or an option or a value that it does not accept."""


class StoreError(InputError):
    """A database that cannot be opened, or that is not stormdrop's."""


class PluginError(InputError):
    """A plug-in of another package that does not load, or that is not what it says."""


class ArtifactError(InputError):
    """A saved model that cannot be loaded here."""


class DeviceError(InputError):
    """A GPU that is missing, too old or full, or on which a kernel has failed."""


class SpaceFileError(InputError):
    """A file of recorded measurements that cannot be read, or an analytic landscape that is unknown."""


class SpaceError(StormdropError):
    """A point, a configuration or a knob that does not fit its space."""


class UnsupportedFunction(StormdropError):
    """A function to which a sketch does not apply, because its TensorIR does not have the sketch's form."""


class MeasureError(StormdropError):
    """The measurer itself cannot work, for instance because no worker starts."""


class LockTimeout(MeasureError):
    """Another process uses the machine for longer than this one may wait."""


_LISTED = 16  # names at most in a list of valid ones


def hint(wrong: object, valid: Iterable[str]) -> str:
    """The end of a message about a wrong name: the nearest valid name, or a list of them if none is near.

    Args:
        wrong: The name that the user gave.
        valid: The valid names, in the order in which they are listed.

    Example:
        >>> hint("matmull", ["conv2d", "matmul"])
        "did you mean 'matmul'?"
        >>> hint("?", ["conv2d", "matmul"])
        'choose from conv2d, matmul'
    """
    import difflib  # only what is wrong needs it

    names = list(dict.fromkeys(valid))
    near = difflib.get_close_matches(str(wrong), names, n=1, cutoff=0.5)
    listed = ", ".join(names[:_LISTED]) + " ..." * (len(names) > _LISTED)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose from {listed}" if listed else "there is none"


def shown(text: str, length: int = 100) -> str:
    """Text from a file as messages show it: at most `length` characters, without those that steer a terminal.

    Example:
        >>> shown("conv" + chr(27) + "[2J" + chr(10) + "relu")
        'conv?[2J?relu'
    """
    line = "".join(letter if letter.isprintable() else "?" for letter in text[:length])
    return f"{line}..." if len(text) > length else line


def quoted(value: object) -> str:
    r"""Any object of a user as messages show it: its `repr` in one line of at most 100 characters, or its type.

    Example:
        >>> quoted([1, 2]), quoted("conv" + chr(10))
        ('[1, 2]', "'conv\\n'")
    """
    try:
        return shown(repr(value))
    except Exception:  # noqa: BLE001  whatever the object's own code raises, or a number of too many digits
        return f"an object of type {type(value).__name__}"


def message_of(error: BaseException) -> str:
    """The message of an exception, which may be a user's own, whose `__str__` raises another one."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001
        return f"its message cannot be shown ({type(another).__name__})"


def one_line(error: BaseException) -> str:
    """An exception in one line of at most 300 characters: its type, and the first line of its message if there is one.

    Example:
        >>> one_line(ValueError("shapes differ" + chr(10) + "expected (3, 4)"))
        'ValueError: shapes differ'
    """
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    name = type(error).__name__
    return (text if text.startswith(name) else f"{name}: {text}" if text else name)[:300]


_SECRET = re.compile(
    r"(?:://[^\s:/@]*:(?P<password>\S*)@)|"  # to the last @, because a password may hold one that is not escaped
    r"(?:[?&;][\w.-]*(?:password|passwd|pwd|secret|token)[\w.-]*=(?P<field>[^\s&;'\")]*))",
    re.IGNORECASE,
)


def without_passwords(text: str) -> str:
    """A message in which the passwords of all URLs are masked.

    Example:
        >>> without_passwords("postgresql://me:secret@host/records?sslpassword=secret&port=1 does not answer")
        'postgresql://me:***@host/records?sslpassword=***&port=1 does not answer'
    """

    def masked(match: re.Match[str]) -> str:
        begin, end = match.span(str(match.lastgroup))
        return f"{text[match.start() : begin]}***{text[end : match.end()]}"

    return _SECRET.sub(masked, text)


def passwords_in(text: str) -> list[str]:
    """What `without_passwords` masks in a text."""
    return [match.group(str(match.lastgroup)) for match in _SECRET.finditer(text)]
