"""torch as a contender for operators: eager, and with weights that oneDNN has packed ahead."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contender import Unavailable, require_float32

Array = NDArray[Any]
Arguments = Mapping[str, Any]
Call = Callable[[], Any]
"""One execution, which returns torch's output tensor."""


class _TorchOperator:
    """What both torch contenders share: inputs, threads, and an output in the workload's layout."""

    def __init__(self, operator: str, arguments: Arguments, inputs: Sequence[Array], threads: int) -> None:
        import torch

        require_float32(arguments)
        keep_freed_memory()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.versions = {"torch": torch.__version__}
        self.settings: dict[str, Any] = {"threads": threads}
        self._to_workload_layout: Callable[[Any], Any] = lambda output: output
        self._call = self._prepare(torch, operator, arguments, [torch.from_numpy(array) for array in inputs])

    def run(self) -> object:
        return self._call()

    def outputs(self) -> list[Array]:
        output = self._to_workload_layout(self._call())
        return [np.ascontiguousarray(output.numpy())]

    def _prepare(self, torch: Any, operator: str, arguments: Arguments, tensors: list[Any]) -> Call:
        """The operator on these tensors, with everything done that can be done before the timing."""
        raise NotImplementedError

    def _images(self, arguments: Arguments, x: Any) -> Any:
        """Images as [n, c, h, w], in the workload's memory order. The images of a conv1d get h = 1."""
        last, row = arguments["layout"].endswith("C"), x.ndim == 3
        self.settings["layout"] = "channels-last" if last else "channels second"

        def to_workload_layout(output: Any) -> Any:
            output = output.squeeze(2) if row else output
            return output.movedim(1, -1) if last else output

        self._to_workload_layout = to_workload_layout
        x = x.movedim(-1, 1) if last else x  # a view: channels-last in memory
        return x.unsqueeze(2) if row else x


class EagerOperator(_TorchOperator):
    """Eager torch, with results written to a given tensor if the operator supports that."""

    def _prepare(self, torch: Any, operator: str, arguments: Arguments, tensors: list[Any]) -> Call:
        x = tensors[0]
        if operator == "matmul":
            product = torch.empty(x.shape[0], tensors[1].shape[1])
            return lambda: torch.mm(x, tensors[1], out=product)
        if operator == "batch_matmul":
            y = tensors[1].transpose(1, 2) if arguments["transpose_b"] else tensors[1]
            products = torch.empty(x.shape[0], x.shape[1], y.shape[2])
            return lambda: torch.bmm(x, y, out=products)
        if operator == "dense":
            weight, bias, others = _weights(arguments, tensors)
            linear = torch.nn.functional.linear
            return _with_epilogue(torch, arguments, lambda: linear(x, weight, bias), others)
        if operator in _CONVOLUTIONS:
            images = self._images(arguments, x)
            kernel, bias, others = _weights(arguments, tensors)
            weight = _convolution_weight(torch, operator, arguments, kernel)
            placement = _placement(operator, arguments, images.shape[1])
            others = [self._images(arguments, other) for other in others]
            convolve = torch.nn.functional.conv2d
            return _with_epilogue(torch, arguments, lambda: convolve(images, weight, bias, *placement), others)
        if operator == "pool2d":
            return self._pool(torch, arguments, x)
        if operator == "global_pool2d":
            images = self._images(arguments, x)
            pool = torch.mean if arguments["kind"] == "avg" else torch.amax
            return lambda: pool(images, (2, 3), keepdim=True)
        if operator == "reduce":
            kinds = {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "mean": torch.mean}
            reduction, axis = kinds[arguments["kind"]], arguments["axis"]
            reduced = torch.empty_like(reduction(x, axis))
            return lambda: reduction(x, axis, out=reduced)
        if operator == "attention":
            queries, keys, *masks, values = tensors
            mask = masks[0] if masks else None
            # With heads in a dimension of their own, torch takes its fused kernel.
            heads = [tensor.unsqueeze(0) for tensor in (queries, keys, values)]
            return lambda: torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)[0]
        if operator in ("softmax", "layer_norm", "rms_norm", "attention_scores"):
            return _rows(torch, operator, arguments, tensors)
        if operator == "transpose":
            moved = x.permute(arguments["perm"])
            copy = torch.empty(moved.shape)
            return lambda: copy.copy_(moved)
        if operator == "concatenate":
            joined = torch.cat(tensors, arguments["axis"])
            return lambda: torch.cat(tensors, arguments["axis"], out=joined)
        if operator == "elementwise":
            result = torch.empty_like(x)
            if len(tensors) == 1:
                function = _activation(torch, arguments["kind"])
                return lambda: function(x, out=result)
            combine = getattr(torch, arguments["kind"].removeprefix("bias_"))
            return lambda: combine(*tensors, out=result)
        raise Unavailable(f"torch does not run {operator} here")

    def _pool(self, torch: Any, arguments: Arguments, x: Any) -> Call:
        images = self._images(arguments, x)
        window, stride, pad = (arguments["kh"], arguments["kw"]), arguments["stride"], arguments["pad"]
        if 2 * pad > min(window):
            raise Unavailable("torch pads a pooling window by at most half its size")
        if arguments["kind"] == "max":
            return lambda: torch.nn.functional.max_pool2d(images, window, stride, pad)
        return lambda: torch.nn.functional.avg_pool2d(images, window, stride, pad)


class PackedOperator(_TorchOperator):
    """torch's oneDNN operators on weights that are packed ahead, with residual and activation fused."""

    def _prepare(self, torch: Any, operator: str, arguments: Arguments, tensors: list[Any]) -> Call:
        if operator != "dense" and operator not in _CONVOLUTIONS:
            raise Unavailable(f"{operator} has no constant weights to pack")
        if not torch.backends.mkldnn.is_available():
            raise Unavailable("this torch has no oneDNN")
        self.settings["weights"] = "packed by oneDNN"
        x = tensors[0]
        weight, bias, others = _weights(arguments, tensors)
        fused = _fused(arguments["act"])
        ops = torch.ops.mkldnn
        if operator == "dense":
            packed = ops._reorder_linear_weight(weight, x.shape[0])
            if not others:
                # Like eager linear, the fused operator cannot write to a given tensor.
                return lambda: ops._linear_pointwise(x, packed, bias, *fused)
            with_residual = ops._linear_pointwise.binary
            return _with_epilogue(torch, arguments, lambda: with_residual(x, others[0], packed, bias, "add"), [])
        images = self._images(arguments, x)
        others = [self._images(arguments, other) for other in others]
        stride, pad, dilation, groups = _placement(operator, arguments, images.shape[1])
        weight = _convolution_weight(torch, operator, arguments, weight).contiguous()
        packed = torch._C._nn.mkldnn_reorder_conv2d_weight(
            weight.to_mkldnn(), pad, stride, dilation, groups, list(images.shape)
        )
        placement = (pad, stride, dilation, groups)
        if not others:
            return lambda: ops._convolution_pointwise(images, packed, bias, *placement, *fused)
        # Of the activations, only a ReLU is fused after a residual.
        relu = "relu" if arguments["act"] == "relu" else None
        added = ops._convolution_pointwise.binary
        call = functools.partial(added, images, others[0], packed, bias, *placement, "add", 1.0, relu, [], None)
        return call if relu else _with_epilogue(torch, arguments, call, [])


_CONVOLUTIONS = ("conv1d", "conv2d", "depthwise_conv2d")


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory, because eager operators allocate their results.

    By default it returns a block of 32 MiB or more to the system and maps it anew each time: a ReLU of 50 MB took
    three times as long.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        trim_threshold, mmap_max = -1, -4
        ctypes.CDLL(None).mallopt(mmap_max, 0)
        ctypes.CDLL(None).mallopt(trim_threshold, 2**31 - 1)


def _rows(torch: Any, operator: str, arguments: Arguments, tensors: list[Any]) -> Call:
    """Softmax and normalisations along the last axis."""
    x, *others = tensors
    if operator == "softmax":
        rows = torch.empty_like(x)
        return lambda: torch.softmax(x, 1, out=rows)
    if operator == "attention_scores":
        keys, (mask, weight) = others[0].transpose(1, 2), (others[1], 1) if others[1:] else (torch.zeros(1), 0)
        scores = torch.empty(x.shape[0], x.shape[1], keys.shape[2])
        scale = 1 / math.sqrt(arguments["k"])

        def attend() -> Any:
            torch.baddbmm(mask, x, keys, beta=weight, alpha=scale, out=scores)
            return torch.softmax(scores, 2, out=scores)

        return attend
    normalise = getattr(torch.nn.functional, operator)
    return lambda: normalise(x, (x.shape[1],), *others, eps=arguments["eps"])


def _weights(arguments: Arguments, tensors: list[Any]) -> tuple[Any, Any, list[Any]]:
    """The weights, the bias or None, and the inputs after them: the residual, if there is one."""
    _, weight, *others = tensors
    return (weight, others[0], others[1:]) if arguments["bias"] else (weight, None, others)


def _with_epilogue(torch: Any, arguments: Arguments, call: Call, others: list[Any]) -> Call:
    """The call, after which the residual is added and the activation is applied, both in place."""
    added: Call = (lambda: call().add_(others[0])) if others else call
    if arguments["act"] == "none":
        return added
    function = _activation(torch, arguments["act"])

    def activated() -> Any:
        value = added()
        return function(value, out=value)

    return activated


def _activation(torch: Any, kind: str) -> Callable[..., Any]:
    """A function of each element that can write its result to a given tensor."""
    if kind in ("relu", "relu6"):
        return functools.partial(torch.clamp, min=0.0, max=6.0 if kind == "relu6" else None)
    if kind in ("exp", "tanh", "sigmoid", "erf", "sqrt"):
        return getattr(torch, kind)  # type: ignore[no-any-return]
    if kind in ("silu", "gelu", "hardswish"):
        return getattr(torch._C._nn, kind)  # type: ignore[no-any-return]
    raise Unavailable(f"torch does not run {kind} here")


def _fused(kind: str) -> tuple[str, list[float], str]:
    """An activation as the name, scalars and algorithm that oneDNN's operators take."""
    known = {
        "none": ("none", [], ""),
        "relu": ("relu", [], ""),
        "relu6": ("hardtanh", [0.0, 6.0], ""),
        "sigmoid": ("sigmoid", [], ""),
        "tanh": ("tanh", [], ""),
        "silu": ("swish", [], ""),
        "hardswish": ("hardswish", [], ""),
        "gelu": ("gelu", [], "none"),
    }
    if kind not in known:
        raise Unavailable(f"torch's oneDNN operators do not fuse {kind}")
    return known[kind]


def _placement(operator: str, arguments: Arguments, channels: int) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding and dilation, each of rows and columns, and the number of groups."""
    row = operator == "conv1d"
    stride, pad, dilation = (arguments[key] for key in ("stride", "pad", "dilation"))
    groups = channels if operator == "depthwise_conv2d" else arguments["groups"]
    return [1 if row else stride, stride], [0 if row else pad, pad], [1 if row else dilation, dilation], groups


def _convolution_weight(torch: Any, operator: str, arguments: Arguments, weight: Any) -> Any:
    """The weights as [co, ci/groups, kh, kw], channels-last in memory if the workload is."""
    last = arguments["layout"].endswith("C")
    if operator == "depthwise_conv2d":
        weight = (weight.movedim(-1, 0) if last else weight).unsqueeze(1)
    elif last:
        weight = weight.movedim(-1, 1)
    if operator == "conv1d":
        weight = weight.unsqueeze(2)
    return weight.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
