"""The key of a graph of Dynamo: what has the same key computes the same, by the same kernels.

    the graph's nodes, the contents of its weights and constants, the sizes and strides of its inputs,
    the options, torch's own settings, this machine, the versions of all that has a part in the code   ->   a digest

Some graphs have no key: what a function outside of torch computes cannot be told from its name.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.fx.node import _get_qualified_name

from .._version import __version__
from ..plugins import everything

_PACKAGES = ("torch", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxscript", "onnxruntime", "cuda-bindings")
"""Packages that have a part in the code of a graph, some of which need not be installed."""

_KNOWN = ("torch", "_operator", "operator", "builtins", "math")
"""Packages of functions that are the same wherever their version is."""

_NAMESPACES = ("aten", "prims", "prim")
"""torch's own operators. What another library registers may be changed without a new version of torch."""

_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class NoKey(Exception):
    """A graph has no key. The message says why."""


def key_of(graph: torch.fx.GraphModule, arguments: Sequence[Any], constant: Sequence[bool], *others: Any) -> str:
    """The key of a graph for a set of sizes.

    Args:
        graph: The graph.
        arguments: The inputs of a call.
        constant: For each of them, whether it is a weight, which becomes a part of the code.
        *others: What the code depends on besides: numbers, texts, dataclasses.

    Returns:
        64 hexadecimal digits.

    Raises:
        NoKey: The graph holds something that has no key.
    """
    settings = (torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    inputs = [_content(one) if fixed else _kind(one) for one, fixed in zip(arguments, constant, strict=True)]
    parts = [_nodes(graph), inputs, [_described(one) for one in (*settings, *others)], _versions(), _sources()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@cache
def nvcc_version() -> str:
    """What `nvcc` says of its version, on which the code for a GPU depends; empty if there is none on the PATH."""
    nvcc = shutil.which("nvcc")
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout if nvcc else ""


def _nodes(graph: torch.fx.GraphModule) -> list[Any]:
    """The nodes of a graph: what each does, and on which others. Their names do not count."""
    places: dict[Any, int] = {}
    described = []
    for place, node in enumerate(graph.graph.nodes):
        described.append(
            (node.op, _target(graph, node), _described(node.args, places), _described(node.kwargs, places))
        )
        places[node] = place
    return described


def _target(graph: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    if node.op == "call_function":
        return _function(node.target)
    if node.op == "call_method":
        return node.target
    if node.op in ("get_attr", "call_module"):
        value: Any = graph
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.fx.GraphModule):
            return _nodes(value)
        if isinstance(value, torch.Tensor):
            return _content(value)
        raise NoKey(f"it holds a {type(value).__name__}")
    return None


def _function(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        name = str(target)
        if name.partition(".")[0] not in _NAMESPACES:
            raise NoKey(f"it calls {name}, which is not torch's")
        return name
    try:
        name = str(_get_qualified_name(target))
    except (RuntimeError, AttributeError) as error:
        raise NoKey(f"it calls {target}, which has no name") from error
    name = name if "." in name else f"builtins.{name}"
    if name.partition(".")[0] not in _KNOWN or _named(name) is not target:
        raise NoKey(f"it calls {name}, which is not torch's")
    return name


def _named(name: str) -> Any:
    """What stands under a name such as "torch.nn.functional.relu"; None if nothing does."""
    package, *parts = name.split(".")
    value: Any = sys.modules.get(package)
    for part in parts:
        value = getattr(value, part, None)
    return value


def _described(value: Any, places: Mapping[Any, int] | None = None) -> Any:
    """A value as something whose `repr` is the same in each process."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.fx.Node):
        return ("node", (places or {})[value])
    if value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes):
        return value
    if isinstance(value, _PLAIN):
        return (kind, str(value))
    if isinstance(value, tuple | list | torch.Size):
        return (kind, [_described(one, places) for one in value])
    if isinstance(value, Mapping):
        return (kind, [(_described(name, places), _described(one, places)) for name, one in value.items()])
    if isinstance(value, slice):
        return (kind, [_described(one, places) for one in (value.start, value.stop, value.step)])
    if isinstance(value, torch.Tensor):
        return _content(value)
    if is_dataclass(value) and not isinstance(value, type):
        return (kind, [(each.name, _described(getattr(value, each.name), places)) for each in fields(value)])
    raise NoKey(f"it holds a {kind}")


def _kind(argument: Any) -> Any:
    """What a graph is compiled for: the shape and type of a tensor, and how it lies; anything else as it is.

    Dynamo makes another graph for other strides, which need not have other nodes.
    """
    if isinstance(argument, torch.Tensor):
        if argument.layout != torch.strided:
            raise NoKey(f"it takes a tensor of {argument.layout}")
        shape, strides = (tuple(map(int, each)) for each in (argument.shape, argument.stride()))
        return ("tensor", shape, strides, int(argument.storage_offset()), str(argument.dtype))
    return _described(argument)


def _content(value: Any) -> Any:
    """What a constant is: the digest of a tensor's elements, with its type and how they lie; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return _described(value)
    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or value.device.type != "cpu":
        raise NoKey(f"it holds a {type(value).__name__} on {value.device}")
    if value.layout != torch.strided or value.is_quantized:
        raise NoKey(f"it holds a tensor of {value.layout}, {value.dtype}")
    elements = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    digest = hashlib.sha256(elements.view(torch.uint8).numpy() if math.prod(value.shape) else b"").hexdigest()
    return ("constant", tuple(value.shape), value.stride(), str(value.dtype), digest)


@cache
def _versions() -> list[str]:
    """The versions of what has a part in the code, and the plug-ins that may have one."""
    return [*(f"{name} {_version(name)}" for name in _PACKAGES), *map(str, everything())]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _sources() -> str:
    """The version of this package, with a digest of its sources: in a checkout they change while the version stays."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in _python_files(root):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__} {digest.hexdigest()}"


def _python_files(root: Path) -> Iterator[Path]:
    return iter(sorted(root.rglob("*.py")))
