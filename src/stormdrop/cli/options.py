"""The options that several commands share, and how their text is read."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArtifactError, InputError, ModelError, OperatorError
from ..model.artifact.artifact_files import check_writable
from ..model.inputs.combinations import MOST_SIZES
from ..model.inputs.size_range import Range
from ..search import names, names_with
from ..search.presets import PAPER
from ..tuning.duration import seconds_of
from . import completion, output

if TYPE_CHECKING:
    from ..machine.contract import Machine
    from ..records import BufferedStore

_SIZE = "0*[1-9][0-9]{0,17}"
_SIZES = f"{_SIZE}(?:-{_SIZE}(?::{_SIZE})?|:{_SIZE}(?::{_SIZE})?)?"
"""A size, several with a step between them, or all from one to another, perhaps in steps."""
_ONE_SHAPE = rf"(.+?)=({_SIZES}(?:[x,]{_SIZES})*)(?:[,;\s]+|$)"
"""One input with its sizes; a name may hold anything. Commas stand for each x if there is no x."""

DATABASE_VARIABLE = "STORMDROP_DB"
"""The environment variable that stands for --db: other users see the arguments of a command, and so its password."""

TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        autocompletion=completion.targets,
        help="What to tune for: cpu (this machine's, the default), cuda, a GPU by name or numbers, or opencl.",
    ),
]
SEARCHES_HELP = (
    f"{', '.join(names())}; with options as in droplet:test=student. With the option preset=paper it is as printed in "
    f"its paper: {', '.join(names_with(PAPER))}"
)
"""The searches and their presets, for the help of `--search`."""

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        envvar=DATABASE_VARIABLE,
        show_envvar=False,
        help="The database of records: a file or a URL; by default what the environment variable "
        f"{DATABASE_VARIABLE} says, or else one in your data directory.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="S", help="The seed of everything random.")]
MaxErrorOption = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        metavar="E",
        help="The largest error, relative to the largest output, of kernels that compute in another way (Winograd): "
        "1e-4 by default; 0 excludes such kernels. With --precision auto that of the model's outputs, 1e-2 by default.",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="WHAT",
        help="What the model computes in: float32; bf16, with the factors of all layers but the last in bfloat16; "
        "fp16, with them in float16 (NVIDIA's GPUs); tf32, with those of products and convolutions that tensor cores "
        "take in TF32 (NVIDIA's GPUs since sm_80); or auto, in bfloat16 with those of the most expensive layers, as "
        "many as --max-error allows (1e-2 by default).",
        autocompletion=completion.precisions,
    ),
]
DenormalsOption = Annotated[
    bool,
    typer.Option(
        "--keep-denormals",
        help="Compute with numbers below 1.2e-38 as IEEE 754 says, which is slow; by default they count as zero.",
    ),
]
ArchOption = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="ARCHITECTURES",
        autocompletion=completion.architectures,
        help="With --target cuda: also compile the kernels for other NVIDIA GPUs, as in sm_86,sm_90+ptx. Drivers of "
        "newer GPUs compile the PTX. The schedules are those for the target.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="INPUT=1x3x224x224",
        help="The shape of an input that the model leaves open; repeatable, or several with commas in between. "
        "1,4,8x3x224x224 stands for three sizes, 1x32-384:32 for twelve with a step, and 1:8x1:512 for all batches and "
        "lengths: the model then runs at each.",
    ),
]


SizeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="INPUT=1x3x224x224",
        help="Which of the model's sizes runs, by the shape of an input; by default the first one.",
    ),
]


def onnx_file(path: Path) -> Path:
    """The path of a file that may be an ONNX file. Raises `ModelError` if there is none."""
    if (path / "metadata.json").is_file():
        raise ModelError(f"{path}: is a compiled model; run or bench it, or give the ONNX file that it comes from")
    if path.is_dir():
        raise ModelError(f"{path}: is a folder; give the path of an ONNX file")
    if re.match("https?:/", str(path)):
        raise ModelError(f"{path}: is an address; download the file, and give its path")
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise ModelError(f"{path}: is empty; give an ONNX file")
    return path


def duration(text: str | None, option: str = "--time") -> float | None:
    """Seconds of "90s", "3m", "1h", "1h30m" or "15" (seconds); None for None. Raises `InputError`."""
    return seconds_of(text, option)


def not_empty(text: str | None, option: str, example: str) -> str | None:
    """The value of an option. Raises `InputError` if it is given without one, as an unset variable of a shell is."""
    if text is not None and not text.strip():
        raise InputError(f"{option} '': is empty; write for example {option} {example}, or leave it out")
    return text


def model_machine(target: str | None, keep_denormals: bool, arch: str | None) -> Machine:
    """The machine that a model is compiled for.

    Args:
        target: The value of --target; None for this machine.
        keep_denormals: Whether its kernels keep denormal numbers.
        arch: The value of --arch; None for the architecture of the target alone.

    Raises:
        InputError: --arch is empty.
        TargetError: The target or an architecture is unknown, or denormals are to be kept on a GPU, or a CPU is to have
            architectures.
    """
    from ..machine.cpu import keeping_denormals, parse_machine
    from ..machine.gpu import for_architectures

    machine = parse_machine(target)
    machine = machine if arch is None else for_architectures(machine, arch)
    return keeping_denormals(machine) if keep_denormals else machine


def check_target(target: str | None, arch: str | None) -> None:
    """Raises what `model_machine` raises about a name, as far as that is known before TVM is loaded, which takes long.

    The devices of OpenCL are not asked: their drivers start threads, and this process is forked while TVM is loaded.

    Args:
        target: The value of --target; None for this machine.
        arch: The value of --arch; None for the architecture of the target alone.

    Raises:
        InputError: One of them is empty.
        TargetError: The target or an architecture is unknown, or a CPU is to have architectures.
    """
    from ..machine.cpu import parse_machine
    from ..machine.gpu import for_architectures

    name = not_empty(target, "--target", "cpu") or "cpu"
    not_empty(arch, "--arch", "sm_86,sm_90+ptx")
    if name.strip().lower().startswith("opencl"):
        return
    machine = None if name == "cpu" else parse_machine(name)
    if arch is not None:
        for_architectures(machine, arch)


@contextlib.contextmanager
def tuning_records(db: str | None) -> Iterator[BufferedStore]:
    """The records of a command that tunes.

    If the default database cannot be used, as in a home directory that is read-only, the records are kept in memory.

    Args:
        db: The value of --db; None for the default database.

    Raises:
        StoreError: The database cannot be opened.
    """
    from .. import records

    reason = records.why_no_default() if db is None else None
    if reason is not None:
        output.say(f"{reason}: the records of this run are not kept; --db keeps them elsewhere")
    with (
        records.open_store(db if reason is None else "sqlite://") as store,
        records.BufferedStore(store, output.say) as buffered,
    ):
        yield buffered
        with contextlib.suppress(
            KeyboardInterrupt
        ):  # the result is there: it is shown, and what is open is closed below
            buffered.close()


def arguments(words: Sequence[str]) -> dict[str, str]:
    """`["m=512", "n=64"]` as a mapping with values as text. Raises `OperatorError` for a word of another form."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise OperatorError(f"argument {word!r}: write name=value, for example m=512")
        if "," in value and "=" in value:
            raise OperatorError(f"argument {word!r}: write spaces between arguments: {' '.join(word.split(','))}")
        if name in values:
            raise OperatorError(f"argument {name} is given twice")
        values[name] = value
    return values


def shapes(words: Sequence[str]) -> dict[str, tuple[int | Collection[int], ...]]:
    """`["data=1,4x3x224x224,mask=1x224"]` as a mapping: a dimension with several sizes has a tuple of them.

    All sizes from one to another, as in `ids=1x1:512`, are a `Range`.

    Raises:
        InputError: A word has another form, or a range is empty or too long.
    """
    by_input: dict[str, tuple[int | Collection[int], ...]] = {}
    for word in words:
        for name, sizes in _each_shape(word):
            if name in by_input:
                raise InputError(f"--shape: input {name} is given twice")
            dimensions = sizes.split("x") if "x" in sizes else sizes.split(",")
            by_input[name] = tuple(_sizes(name, dimension) for dimension in dimensions)
    return by_input


def values(words: Sequence[str]) -> dict[str, Any]:
    """`["axes=0,1", "k=3"]` as a mapping of numbers, truth values, and lists of them.

    Raises:
        InputError: A word has another form.
    """
    by_input: dict[str, Any] = {}
    for word in words:
        name, _, text = word.rpartition("=")
        value = _json(text)
        value = _json(f"[{text}]") if value is None else value
        if not name or value is None:
            raise InputError(
                f"--value {word}: write the input and its value, for example k=3, axes=0,1, scales=[1,1,2,2] or "
                f"training=false"
            )
        if name in by_input:
            raise InputError(f"--value: input {name} is given twice")
        by_input[name] = value
    return by_input


def states(words: Sequence[str]) -> dict[str, str]:
    """`["present.*=past.*"]` as inputs by their outputs.

    Raises:
        InputError: A word has another form.
    """
    by_output: dict[str, str] = {}
    for word in words:
        output, _, into = word.partition("=")
        if not output or not into or output in by_output:
            raise InputError(
                f"--state {word}: write an output and the input of the next step that it is, once for each output, for "
                "example present.*=past_key_values.*"
            )
        by_output[output] = into
    return by_output


def _json(text: str) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return json.loads(text, parse_constant=_infinity)
    except (ValueError, RecursionError):
        return None


def _infinity(text: str) -> float:
    """The infinity that a JSON text may hold. NaN, which it may hold as well, raises `ValueError`."""
    if text == "NaN":
        raise ValueError("not a number")
    return float(text)


def _each_shape(word: str) -> Iterator[tuple[str, str]]:
    """The inputs with their sizes. Raises `InputError` for a word of another form."""
    one_shape, position = re.compile(_ONE_SHAPE, re.DOTALL), 0
    while position < len(word) or not word:
        match = one_shape.match(word, position)
        if match is None:
            raise InputError(
                f"--shape {word}: write the input and its sizes, for example data=1x3x224x224, and a comma between "
                f"two inputs; several sizes of a dimension as in data=1,4,8x3x224x224 or ids=1x32-384:32"
            )
        yield match[1], match[2]
        position = match.end()


def one_size(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """As `shapes`, for a command that takes one size only. Raises `InputError` for several."""
    given = shapes(words)
    for name, shape in given.items():
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                raise InputError(f"--shape: dimension {axis} of input {name} has several sizes; this command takes one")
    return {name: tuple(size for size in shape if isinstance(size, int)) for name, shape in given.items()}


def _sizes(name: str, text: str) -> int | Collection[int]:
    """The size or sizes of a dimension. Raises `InputError` for a range that is empty or too long."""
    if text.isdigit():
        return int(text)
    if re.fullmatch(r"\d+:\d+(:\d+)?", text):
        return Range(*map(int, text.split(":")))
    sizes: list[int] = []
    for part in text.split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        part_sizes = range(int(first), int(last or first) + 1, int(step or 1))
        if not part_sizes:
            raise InputError(f"--shape: the range {part} of input {name} is empty; write the smaller size first")
        if len(part_sizes) > MOST_SIZES:
            raise InputError(
                f"--shape: the range {part} of input {name} has {len(part_sizes)} sizes; {MOST_SIZES} are possible: "
                f"give a step, as in 32-384:32"
            )
        sizes.extend(part_sizes)
    return tuple(dict.fromkeys(sizes))


def check_show(show: Sequence[str] | None) -> tuple[str, ...]:
    """The values of --show. Raises `InputError` for one that is unknown."""
    for word in show or ():
        if word not in {"schedule", "tir"}:
            raise InputError(f"--show {word}: must be schedule or tir")
    return tuple(show or ())


def artifact_folder(path: Path, option: str) -> Path:
    """The path, if a model can be saved there. Only an older model may be overwritten, as in `CompiledModel.save`.

    Raises:
        InputError: No model can be saved there. The check comes before the tuning.
    """
    _check_parent(path, option)
    try:
        check_writable(path)
    except ArtifactError as error:
        raise InputError(f"{option} {error}") from None
    return path


def writable_file(path: Path, option: str) -> Path:
    """The path, if a file can be written there. Otherwise raises `InputError`, before the work and not after it."""
    _check_parent(path, option)
    if path.is_dir():
        raise InputError(f"{option} {path}: is a directory")
    return path


def _check_parent(path: Path, option: str) -> None:
    if not path.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: there is no directory {path.absolute().parent}")


def runner_address(runner: str | None, tracker: str | None, device: str | None, fleet: str | None = None) -> str:
    """Where kernels are measured: the address of a runner or of a rack of boards; empty for this machine and a fleet.

    Raises:
        InputError: The options do not fit together, or one of them is empty.
    """
    from ..machine.remote.tracker import address

    not_empty(runner, "--runner", "127.0.0.1:9090")
    if (runner, tracker, fleet).count(None) < 2:
        raise InputError("--runner, --tracker and --fleet are different places to measure at: give one of them")
    if fleet is not None:
        return ""  # --device chooses among its machines
    if (tracker is None) != (device is None):
        raise InputError("--tracker HOST:PORT and --device KEY belong together: give both")
    return runner or "" if tracker is None or device is None else address(tracker, device)
