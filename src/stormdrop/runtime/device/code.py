"""The kernels of a model for a device, and how they are launched: plain data, which an artifact holds as `device.json`.

kernel of a program  ->  one or several launches, one after the other, with memory that these hand on
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import one_line
from ..folder import DEVICE

CUBIN, PTX, OPENCL_SOURCE = "cubin", "ptx", "cl"
"""The forms of code: machine code of one NVIDIA architecture; NVIDIA's portable code; the source of OpenCL kernels."""


@dataclass(frozen=True)
class Launch:
    """How a kernel of a device is launched.

    Attributes:
        entry: Its name.
        arguments: What each argument points to: the parameter of the program's kernel with this position; the memory
            that launches hand on begins after the last parameter.
        groups: The number of blocks (work-groups) along x, y and z.
        items: The number of threads (work-items) of a block along x, y and z.
        shared: Bytes of shared memory of a block that are asked for at the launch.
    """

    entry: str
    arguments: tuple[int, ...]
    groups: tuple[int, int, int]
    items: tuple[int, int, int]
    shared: int = 0


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel of a program.

    Attributes:
        launches: What is launched for it, in this order.
        parameters: The number of its parameters.
        scratch: The bytes of each piece of memory that a launch hands on to a later one.
    """

    launches: tuple[Launch, ...]
    parameters: int
    scratch: tuple[int, ...] = ()


@dataclass(frozen=True)
class Image:
    """The code of some kernels in one form.

    Attributes:
        form: `CUBIN`, `PTX` or `OPENCL_SOURCE`.
        arch: The architecture that it is for, such as "sm_80"; empty for OpenCL.
        code: The code.
    """

    form: str
    arch: str
    code: bytes


@dataclass(frozen=True)
class DeviceCode:
    """The kernels of a model.

    Attributes:
        kernels: By the symbols that the program knows them by.
        images: Their code. Those of one form and architecture hold different kernels; others hold the same ones once
            more, for other devices.
    """

    kernels: Mapping[str, DeviceKernel]
    images: Sequence[Image]


def files_of(code: DeviceCode) -> dict[str, bytes]:
    """The files that hold kernels in an artifact, by name: the code itself, and how it is launched.

    Args:
        code: The kernels.

    Example:
        >>> relu = DeviceKernel((Launch("relu_kernel", (0, 1), (4, 1, 1), (256, 1, 1)),), 2)
        >>> files = files_of(DeviceCode({"relu": relu}, [Image(CUBIN, "sm_80", b"..."), Image(CUBIN, "sm_86", b"...")]))
        >>> list(files)
        ['kernels-0.sm_80.cubin', 'kernels-0.sm_86.cubin', 'device.json']
        >>> files["device.json"]  # doctest: +ELLIPSIS
        b'{"kernels": {"relu": {"launches": [["relu_kernel", [0, 1], [4, 1, 1], [256, 1, 1], 0]], ...}}, "images": ...}'
    """
    kernels = {
        symbol: {**asdict(kernel), "launches": [list(asdict(launch).values()) for launch in kernel.launches]}
        for symbol, kernel in code.kernels.items()
    }
    files = list(zip(_image_files(code.images), code.images, strict=True))
    images = [{"file": name, "form": image.form, "arch": image.arch} for name, image in files]
    document = json.dumps({"kernels": kernels, "images": images}).encode()
    return {**{name: image.code for name, image in files}, DEVICE: document}


def read_files(read: Callable[[str], bytes]) -> DeviceCode:
    """The kernels of an artifact, checked.

    Args:
        read: Gives the content of a file.

    Raises:
        ValueError: The files are none that `files_of` has made; the message is one line.
        Exception: Whatever `read` raises.
    """
    document = json.loads(read(DEVICE))
    try:
        kernels = {symbol: _kernel(symbol, entry) for symbol, entry in document["kernels"].items()}
        described = [(_text(each["file"]), _text(each["form"]), _text(each["arch"])) for each in document["images"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(one_line(error)) from error
    return DeviceCode(kernels, [Image(form, arch, read(file)) for file, form, arch in described])


def _image_files(images: Sequence[Image]) -> list[str]:
    """The names of the files that hold images, which are numbered for each form and architecture."""
    numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    ends = [".".join(filter(None, [image.arch, image.form])) for image in images]
    return [f"kernels-{next(numbers[end])}.{end}" for end in ends]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _kernel(symbol: str, entry: Any) -> DeviceKernel:
    try:
        launches = tuple(_launch(*fields) for fields in entry["launches"])
        kernel = DeviceKernel(launches, _count(entry["parameters"]), tuple(map(_count, entry["scratch"])))
    except (KeyError, TypeError) as error:
        raise ValueError(f"kernel {symbol}: {error}") from error
    most = kernel.parameters + len(kernel.scratch)
    for launch in launches:
        if any(argument >= most for argument in launch.arguments):
            raise ValueError(f"kernel {symbol}: {launch.entry} takes an argument that there is not")
    return kernel


def _launch(entry: Any, arguments: Any, groups: Any, items: Any, shared: Any) -> Launch:
    return Launch(_text(entry), tuple(map(_count, arguments)), _extents(groups), _extents(items), _count(shared))


def _extents(values: Any) -> tuple[int, int, int]:
    x, y, z = map(_count, values)
    if not x * y * z:
        raise TypeError(f"{values} is no number of blocks or threads")
    return x, y, z


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise TypeError(f"{value!r} is no count")
    return value
