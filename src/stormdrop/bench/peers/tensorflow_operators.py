"""TensorFlow as a contender for operators: its own kernels, and compiled by XLA.

Both papers on Droplet Search compare with it (Droplet Search paper, Figure 17; DPAnsor paper, Figure 19). They call its
operators eagerly. Here a `tf.function` holds the operator, which is as fast or faster: what is fused is one kernel, and
the weights are constants of the graph, so that oneDNN packs them once.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..contender import Unavailable, require_float32
from .torch_operators import keep_freed_memory

Array = NDArray[Any]
Arguments = Mapping[str, Any]
Compute = Callable[..., Any]
"""From the fed tensors to the output."""


class TensorflowOperator:
    """A `tf.function` of one operator. Images are channels-last, the layout that TensorFlow's CPU kernels support."""

    xla: ClassVar[bool] = False

    def __init__(self, operator: str, arguments: Arguments, inputs: Sequence[Array], threads: int) -> None:
        require_float32(arguments)
        keep_freed_memory()
        tf = import_tensorflow(threads)
        layout = arguments.get("layout", "")
        self._first = bool(layout) and not layout.endswith("C")  # whether the workload has channels second
        self.versions = {"tensorflow": tf.__version__}
        self.settings: dict[str, Any] = {"threads": threads, "compiled": "by XLA" if self.xla else "no"}
        if layout:
            self.settings["layout"] = "channels-last"
        if operator not in _BUILDERS:
            raise Unavailable(f"TensorFlow does not run {operator} here")
        compute, feeds = _BUILDERS[operator](tf, arguments, [self._image(array) for array in inputs[:1]], inputs[1:])
        feeds = [*feeds[:1], *(self._image(array) if layout else array for array in feeds[1:])]
        self._feeds = [tf.constant(np.ascontiguousarray(array)) for array in feeds]
        function = tf.function(compute, jit_compile=self.xla, autograph=False)
        self._call = function.get_concrete_function(*self._feeds)

    def run(self) -> object:
        return self._call(*self._feeds)

    def outputs(self) -> list[Array]:
        output = np.atleast_1d(self._call(*self._feeds).numpy())
        return [np.ascontiguousarray(np.moveaxis(output, -1, 1) if self._first else output)]

    def _image(self, array: Array) -> Array:
        """An image with its channels last."""
        return np.moveaxis(array, 1, -1) if self._first else array


class XlaOperator(TensorflowOperator):
    """The same function, compiled by XLA (`jit_compile=True`)."""

    xla = True


def import_tensorflow(threads: int) -> Any:
    """TensorFlow with so many threads for an operator, one operator at a time, and without its log.

    Args:
        threads: The number of threads that an operator may use.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # it is read when the library is loaded
    import tensorflow as tf

    if tf.config.threading.get_intra_op_parallelism_threads() != threads:  # it cannot be set once it was used
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


Built = tuple[Compute, list[Array]]
"""What computes the operator, and the arrays that are fed. The others are constants of the graph."""


def _matmul(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    return tf.matmul, [*first, *others]


def _batch_matmul(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    return functools.partial(tf.matmul, transpose_b=bool(arguments["transpose_b"])), [*first, *others]


def _attention(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    scores, _ = _attention_scores(tf, arguments, first, others)

    def attend(query: Any, *rest: Any) -> Any:
        *keys_and_mask, values = rest
        return tf.matmul(scores(query, *keys_and_mask), values)

    return attend, [*first, *others]


def _attention_scores(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    def attend(query: Any, key: Any, *mask: Any) -> Any:
        scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(arguments["k"])
        return tf.nn.softmax(scores + mask[0] if mask else scores)

    return attend, [*first, *others]


def _dense(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    weight = np.ascontiguousarray(others[0].T)
    return _with_epilogue(tf, arguments, lambda x: tf.matmul(x, weight), first, others[1:])


def _conv1d(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    weight = others[0] if arguments["layout"].endswith("C") else np.moveaxis(others[0], 1, -1)
    kernel = np.ascontiguousarray(np.moveaxis(weight, 0, -1))[np.newaxis]  # [1, k, ci / groups, co]
    stride, dilation, pad = [1, arguments["stride"]], [1, arguments["dilation"]], arguments["pad"]
    padding = [[0, 0], [0, 0], [pad, pad], [0, 0]] if pad else "VALID"

    def convolve(x: Any) -> Any:
        return tf.squeeze(tf.nn.conv2d(tf.expand_dims(x, 1), kernel, stride, padding, dilations=dilation), 1)

    return _with_epilogue(tf, arguments, convolve, first, others[1:])


def _conv2d(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    weight = others[0] if arguments["layout"].endswith("C") else np.moveaxis(others[0], 1, -1)
    kernel = np.ascontiguousarray(np.moveaxis(weight, 0, -1))  # [kh, kw, ci / groups, co]
    stride, padding, dilation = arguments["stride"], _padding(arguments), arguments["dilation"]

    def convolve(x: Any) -> Any:
        return tf.nn.conv2d(x, kernel, stride, padding, dilations=dilation)

    return _with_epilogue(tf, arguments, convolve, first, others[1:])


def _depthwise(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    stride, dilation = arguments["stride"], arguments["dilation"]
    if stride > 1 and dilation > 1:
        raise Unavailable("TensorFlow has no depthwise convolution with a stride and a dilation")
    weight = others[0] if arguments["layout"].endswith("C") else np.moveaxis(others[0], 0, -1)
    kernel = np.ascontiguousarray(weight)[..., np.newaxis]  # [kh, kw, c, 1]
    padding = _padding(arguments)
    # With a padding in numbers TensorFlow 2.21 ends the process.
    margins, padding = ([], padding) if isinstance(padding, str) else (padding, "VALID")

    def convolve(x: Any) -> Any:
        padded = tf.pad(x, margins) if margins else x
        return tf.nn.depthwise_conv2d(padded, kernel, [1, stride, stride, 1], padding, dilations=[dilation, dilation])

    return _with_epilogue(tf, arguments, convolve, first, others[1:])


def _pool(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    window, stride, pad = [arguments["kh"], arguments["kw"]], arguments["stride"], arguments["pad"]
    if arguments["kind"] == "max":
        return lambda x: tf.nn.max_pool2d(x, window, stride, _padding(arguments)), first
    # Its average takes no explicit padding, and ours counts the zeros.
    margins = [[0, 0], [pad, pad], [pad, pad], [0, 0]]
    return lambda x: tf.nn.avg_pool2d(tf.pad(x, margins) if pad else x, window, stride, "VALID"), first


def _global_pool(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    pool = tf.reduce_mean if arguments["kind"] == "avg" else tf.reduce_max
    return lambda x: pool(x, (1, 2), keepdims=True), first


def _reduce(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    reduction = getattr(tf, f"reduce_{arguments['kind']}")
    return lambda x: reduction(x, arguments["axis"]), first


def _softmax(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    return tf.nn.softmax, first


def _layer_norm(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    scale, shift = others

    def normalise(x: Any) -> Any:
        mean, variance = tf.nn.moments(x, [1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, arguments["eps"])

    return normalise, first


def _rms_norm(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    (scale,) = others
    epsilon = arguments["eps"]
    return lambda x: x * tf.math.rsqrt(tf.reduce_mean(x * x, 1, keepdims=True) + epsilon) * scale, first


def _transpose(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    return lambda x: tf.transpose(x, arguments["perm"]), first


def _concatenate(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    return lambda *tensors: tf.concat(tensors, arguments["axis"]), [*first, *others]


def _elementwise(tf: Any, arguments: Arguments, first: list[Array], others: Sequence[Array]) -> Built:
    if not others:
        return _activation(tf, arguments["kind"]), first
    names = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "bias_add": "add"}
    return getattr(tf, names[arguments["kind"]]), [*first, *others]


_BUILDERS: dict[str, Callable[[Any, Arguments, list[Array], Sequence[Array]], Built]] = {
    "matmul": _matmul,
    "batch_matmul": _batch_matmul,
    "attention": _attention,
    "attention_scores": _attention_scores,
    "dense": _dense,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise,
    "pool2d": _pool,
    "global_pool2d": _global_pool,
    "reduce": _reduce,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "elementwise": _elementwise,
}
"""By operator: from TensorFlow, the arguments, the first input as a list, and the other inputs."""


def _padding(arguments: Arguments) -> Any:
    """The padding of both sides of an image as TensorFlow takes it: by name where a name says the same."""
    pad, stride, dilation = arguments["pad"], arguments["stride"], arguments.get("dilation", 1)
    if not pad:
        return "VALID"
    sides = set()
    for extent, window in (("h", "kh"), ("w", "kw")):
        reach = (-(-arguments[extent] // stride) - 1) * stride + dilation * (arguments[window] - 1) + 1
        sides.add(reach - arguments[extent])  # what SAME adds, at both sides together
    return "SAME" if sides == {2 * pad} else [[0, 0], [pad, pad], [pad, pad], [0, 0]]


def _with_epilogue(
    tf: Any, arguments: Arguments, compute: Compute, first: list[Array], others: Sequence[Array]
) -> Built:
    """The operator with its bias, which is a constant, its residual, which is fed, and its activation."""
    biases, residuals = others[: arguments["bias"]], others[arguments["bias"] :]
    activate = None if arguments["act"] == "none" else _activation(tf, arguments["act"])

    def whole(x: Any, *added: Any) -> Any:
        value = compute(x)
        for bias in biases:
            value = tf.nn.bias_add(value, bias)
        for residual in added:
            value = value + residual
        return value if activate is None else activate(value)

    return whole, [*first, *residuals]


def _activation(tf: Any, kind: str) -> Compute:
    """A function of each element."""
    known: dict[str, Compute] = {name: getattr(tf.nn, name) for name in ("relu", "relu6", "silu", "sigmoid", "tanh")}
    known |= {name: getattr(tf.math, name) for name in ("exp", "erf", "sqrt")}
    known["gelu"] = functools.partial(tf.nn.gelu, approximate=False)
    known["hardswish"] = lambda x: x * tf.nn.relu6(x + 3.0) / 6.0
    if kind not in known:
        raise Unavailable(f"TensorFlow does not run {kind} here")
    return known[kind]
