"""The device of a graph of Dynamo, as a machine, and the graph as one for the CPU, where it is imported and verified.

graph(x on cuda:0): x + torch.zeros(3, device="cuda:0")   ->   cuda:0, the target cuda/h100
                                                          ->   graph(x): x + torch.zeros(3, device="cpu")
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from ..errors import ModelError

if TYPE_CHECKING:
    from ..machine.contract import Machine

CPU = torch.device("cpu")

_CUDA = re.compile(r"cuda(:\d+)?")


def device_of(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> torch.device:
    """The device on which a graph takes and returns its tensors.

    Inputs of no dimensions may be on the CPU, as torch itself takes them beside tensors on a GPU. What lies between
    inputs and outputs does not matter.

    Args:
        graph: The graph.
        arguments: Its inputs in a call.

    Raises:
        ModelError: There are several devices, it is neither a CPU nor an NVIDIA GPU, or the graph computes under
            autocast on a GPU.

    Example:
        >>> graph = torch.fx.symbolic_trace(torch.nn.ReLU())
        >>> device_of(graph, [torch.zeros(3)])
        device(type='cpu')
        >>> device_of(graph, [torch.zeros(3, device="meta")])
        Traceback (most recent call last):
        ...
        stormdrop.errors.ModelError: its tensors lie on meta, which is neither a CPU nor an NVIDIA GPU
    """
    given = [one.device for one in arguments if isinstance(one, torch.Tensor) and not _is_scalar_on_cpu(one)]
    devices = sorted({*given, *_returned(graph)}, key=str)
    if len(devices) > 1:
        raise ModelError(f"its tensors lie on {' and '.join(map(str, devices))}: one device has to hold all of them")
    device = devices[0] if devices else CPU
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip):
        raise ModelError(f"its tensors lie on {device}, which is neither a CPU nor an NVIDIA GPU")
    if device.type == "cuda" and (torch.is_autocast_enabled("cuda") or _enters_autocast(graph)):
        raise ModelError(
            "autocast chooses its types, as it does on a GPU only, and its kernels are verified on the CPU: call it"
            " without torch.autocast"
        )
    return device


def machine_of(device: torch.device) -> Machine:
    """The machine that kernels for a device are made for.

    Args:
        device: The CPU, or an NVIDIA GPU of this machine.

    Raises:
        TargetError: No kernels can be made for the GPU.
        DeviceError: The GPU cannot be used without a package that is not installed.
    """
    if device.type == "cpu":
        from ..machine.cpu import Cpu

        return Cpu.detect()
    from ..machine.gpu import local_gpu
    from ..runtime.device.opening import CUDA, open_device

    open_device(CUDA, number=device.index)  # what it raises is said before the compilation, which takes long
    found = torch.cuda.get_device_properties(device)
    return local_gpu(found.name, f"sm_{found.major}{found.minor}")


def on_cpu(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of a graph that makes its tensors on the CPU, where the original makes them on a GPU.

    Args:
        graph: The graph.
    """
    moved: torch.fx.GraphModule = copy.deepcopy(graph).cpu()
    for module in moved.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_method" and node.target == "cuda":  # x.cuda(0)
                node.target, node.args, node.kwargs = "cpu", node.args[:1], {}
            node.args, node.kwargs = (map_aggregate(each, _place_on_cpu) for each in (node.args, node.kwargs))
            if _is_number(node.kwargs.get("device")):  # torch.ones(3, device=0)
                node.kwargs = {**node.kwargs, "device": "cpu"}
            if node.op == "call_method" and node.target == "to" and len(node.args) > 1 and _is_number(node.args[1]):
                node.args = (node.args[0], "cpu", *node.args[2:])  # x.to(0)
        module.recompile()
    return moved


def _place_on_cpu(value: Any) -> Any:
    """The CPU in the place of a GPU: torch takes a device and its name."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and _CUDA.fullmatch(value) else value


def _is_number(device: Any) -> bool:
    """Whether this is the number of a GPU, which torch takes for its name."""
    return isinstance(device, int) and not isinstance(device, bool)


def _returned(graph: torch.fx.GraphModule) -> list[torch.device]:
    """The devices of the tensors that a graph returns, as far as Dynamo says so."""
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    examples = [node.meta.get("example_value") for node in output.all_input_nodes]
    return [one.device for one in pytree.tree_leaves(examples) if isinstance(one, torch.Tensor)]


def _is_scalar_on_cpu(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu" and tensor.dim() == 0)


def _enters_autocast(graph: torch.fx.GraphModule) -> bool:
    graphs = (module.graph for module in graph.modules() if isinstance(module, torch.fx.GraphModule))
    targets = [node.target for each in graphs for node in each.nodes]
    return torch.amp.autocast_mode._enter_autocast in targets
