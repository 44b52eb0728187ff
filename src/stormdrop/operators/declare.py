"""Declares operators: `@operator` makes a definition in TVM's tensor expressions an operator.

    @operator("the larger or the smaller of each pair", "n=8", kind=("max", "min"))    # what `kind` may be
    def extreme(n: int, kind: str = "max", dtype: str = "float32") -> Definition:
        ...
        return Definition([x], y)

    extreme(8)                                            # a `Workload`
    create("extreme", {"n": "8", "kind": "min"})          # another one, from text

The arguments of an operator are checked. Numbers have to be positive; the names in `_MAY_BE_ZERO` may also be zero.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, ParamSpec

from tvm import te

from ..errors import OperatorError, hint
from ..ir.workload import Workload
from ..plugins import plugins, require

P = ParamSpec("P")

_DTYPES = ("float32",)
_FLAGS = {"bias", "mask", "requantize", "residual", "transpose_b", "zero_points"}
_MAY_BE_ZERO = {"pad", *_FLAGS}
_CHECKED_BY_OPERATOR = {"axis", "perm", "zero_point"}  # what they may be depends on a shape or a type
_MOST_BYTES = 8 << 30  # of all inputs and outputs together

OPERATORS: dict[str, Callable[..., Workload]] = {}
"""The operators of this package by name, and those of plug-ins that were loaded."""


EXAMPLES: dict[str, str] = {}
"""Arguments of a small instance of each of these operators, by name."""


class Definition(NamedTuple):
    """A function in TVM's tensor expressions.

    Attributes:
        inputs: Its inputs, in order.
        output: Its output.
        constants: The positions of the inputs that are constant (weights).
    """

    inputs: Sequence[Any]
    output: Any
    constants: tuple[int, ...] = ()


def operator(
    purpose: str = "", example: str = "", **choices: Sequence[str]
) -> Callable[[Callable[P, Definition]], Callable[P, Workload]]:
    """Makes a definition an operator, and registers it under its name in `OPERATORS`.

    The operator takes the arguments of the definition and returns a `Workload`. It raises `OperatorError`, with one
    line, for a bad argument and for tensors of more than 8 GiB together.

    Args:
        purpose: What it computes, a few words for the help of the command line.
        example: Arguments of a small instance, as `stormdrop tune-op` takes them. Tests schedule it on every machine.
        choices: The values that the text arguments may have, by the names of the arguments. `dtype` may be "float32"
            by default.
    """

    def declare(define: Callable[P, Definition]) -> Callable[P, Workload]:
        name, signature = define.__name__, inspect.signature(define)

        @functools.wraps(define)
        def build(*positional: P.args, **named: P.kwargs) -> Workload:
            bound = signature.bind(*positional, **named)
            bound.apply_defaults()
            try:
                for key, value in bound.arguments.items():
                    bound.arguments[key] = _typed(key, value, _type_name(signature.parameters[key]))
                    _check(key, bound.arguments[key], choices.get(key))
                definition = define(*bound.args, **bound.kwargs)
            except OperatorError as error:
                raise OperatorError(f"{name}: {error}") from None
            text = " ".join(
                f"{key}={'x'.join(map(str, value)) if isinstance(value, tuple) else value}"
                for key, value in bound.arguments.items()
                if value != signature.parameters[key].default
            )
            function = te.create_prim_func([*definition.inputs, definition.output])
            workload = Workload.create(f"{name} {text}", function, definition.constants, bound.arguments)
            _check_size(name, workload)
            return workload

        known = OPERATORS.setdefault(name, build)
        if known.__module__ != build.__module__:
            raise OperatorError(f"there is an operator {name!r} already, in {known.__module__}")
        OPERATORS[name] = build
        if example:
            EXAMPLES[name] = example
        return build

    return declare


def names() -> list[str]:
    """The names of the operators, sorted: those of this package, and those of plug-ins, which are not loaded."""
    return sorted({*OPERATORS, *plugins("operators")})


def find(name: str) -> Callable[..., Workload]:
    """The operator of this name.

    Args:
        name: One of `names()`.

    Raises:
        OperatorError: There is none.
        PluginError: It is that of a plug-in, which does not load.
    """
    if name not in OPERATORS:
        plugin = plugins("operators").get(name)
        if plugin is None:
            raise OperatorError(f"unknown operator {name!r}; {hint(name, names())}")
        loaded = plugin.load()
        require(plugin, OPERATORS.get(name) is loaded, "an operator of this name, declared by @operator")
    return OPERATORS[name]


def usage(name: str) -> str:
    """The arguments of an operator on one line, optional ones with their defaults in brackets.

    Args:
        name: The operator, one of `names()`.

    Example:
        >>> from stormdrop import operators
        >>> operators.usage("batch_matmul")
        'b m n k [transpose_b=0] [dtype=float32]'
    """
    parts = []
    for parameter in inspect.signature(find(name)).parameters.values():
        required = parameter.default is inspect.Parameter.empty
        parts.append(parameter.name if required else f"[{parameter.name}={parameter.default}]")
    return " ".join(parts)


def create(name: str, arguments: Mapping[str, str]) -> Workload:
    """Builds the workload of an operator from text, as in `stormdrop tune-op matmul m=512 n=512 k=512`.

    Args:
        name: The operator, one of `names()`.
        arguments: The values of its arguments by their names. A shape is written as `128x512`.

    Raises:
        OperatorError: The operator is unknown, or an argument is unknown, missing, of another type or out of range.

    Example:
        >>> from stormdrop import operators
        >>> operators.create("matmul", {"m": "64", "n": "32", "k": "16"}).outputs
        (TensorSpec(name='y0', shape=(64, 32), dtype='float32'),)
    """
    parameters = inspect.signature(find(name)).parameters
    unknown = [key for key in arguments if key not in parameters]
    if unknown:
        raise OperatorError(f"{name} has no argument {unknown[0]!r}: its arguments are {usage(name)}")
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and key not in arguments
    ]
    if missing:
        raise OperatorError(f"{name} needs {', '.join(missing)}: its arguments are {usage(name)}")
    values = {}
    for key, text in arguments.items():
        read, wanted = _READERS[_type_name(parameters[key])]
        try:
            values[key] = read(text)
        except ValueError:
            raise OperatorError(f"{name}: {key}={text!r} is not {wanted}") from None
    return find(name)(**values)


def _type_name(parameter: inspect.Parameter) -> str:
    """The annotation of a parameter as it is written, whether or not annotations are evaluated in its module."""
    annotation = parameter.annotation
    return annotation.__name__ if type(annotation) is type else str(annotation)


def _several(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


def _one_or_several(text: str) -> int | tuple[int, ...]:
    numbers = _several(text.replace(",", "x"))
    return numbers if len(numbers) > 1 else numbers[0]


# By the annotation of an argument: how to read it, and what an error message says that it should be.
_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "str": (str, "text"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "tuple[int, ...]": (_several, "a list of whole numbers such as 128x512"),
    "int | tuple[int, ...]": (_one_or_several, "a whole number, or several such as 1x2"),
}


def _typed(key: str, value: Any, annotation: str) -> Any:
    """The value in the type of the annotation: integers of any kind become `int`, sequences become tuples."""
    several = isinstance(value, Sequence) and not isinstance(value, str)
    if several and "tuple" in annotation and all(isinstance(number, Integral) for number in value):
        return tuple(int(number) for number in value)
    if isinstance(value, Integral) and annotation.startswith("int"):
        return int(value)
    if isinstance(value, {"str": str, "float": Real}.get(annotation, ())):
        return value
    raise OperatorError(f"{key}={value!r} is not {_READERS[annotation][1]}")


def _check(key: str, value: Any, choices: Sequence[str] | None) -> None:
    supported = choices or (_DTYPES if key == "dtype" else None)
    if supported is not None and value not in supported:
        problem = "is not supported yet: use" if key == "dtype" else "must be"
        raise OperatorError(f"{key}={value} {problem} {' or '.join(supported)}")
    if key not in _CHECKED_BY_OPERATOR and not isinstance(value, str):
        for number in value if isinstance(value, tuple) else (value,):
            _check_number(key, number)


def _check_number(key: str, value: float) -> None:
    if not (value > 0 or (value == 0 and key in _MAY_BE_ZERO)):
        least = "0 or more" if key in _MAY_BE_ZERO else "positive"
        raise OperatorError(f"{key}={value} must be {least}")
    if key in _FLAGS and value > 1:
        raise OperatorError(f"{key}={value} must be 0 or 1")
    if value >= 2**31:
        raise OperatorError(f"{key}={value} must be less than 2147483648")


def _check_size(name: str, workload: Workload) -> None:
    size = sum(spec.bytes for spec in (*workload.inputs, *workload.outputs))
    if size > _MOST_BYTES:
        raise OperatorError(f"{name}: its tensors take {size / 1e9:.3g} GB; {_MOST_BYTES >> 30} GiB is the most")
