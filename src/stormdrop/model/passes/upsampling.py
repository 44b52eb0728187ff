"""Transposed convolutions whose windows do not overlap, as one product for each pixel of their output.

    y[n, h, w, o] = sum over c of x[n, h // s, w // s, c] v[h % s, w % s, o, c]          a window of s by s pixels

TVM's lowering slides the window over an image with zeros between the pixels: it multiplies s * s times as much. Text
detectors and U-Nets double their images so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import GenericConst

from ..graph.expressions import bindings_of, operator_name
from .rewriting import constant, rewrite_main
from .views import static_shape

OPERATOR = "relax.nn.conv2d_transpose"


def only_upsamples(mod: tvm.IRModule) -> bool:
    """Whether no window of a transposed convolution of `main` overlaps another one."""
    calls = [binding.value for binding in bindings_of(mod["main"])]
    return all(_upsamples(call) for call in calls if _is_transposed(call))


def as_products(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the transposed convolutions of `main` that are channels-last as products of pixels."""
    return rewrite_main(mod, _Products(mod))


def _is_transposed(value: Any) -> bool:
    return operator_name(value) == OPERATOR


def _upsamples(call: relax.Call) -> bool:
    """Whether a transposed convolution with constant weights makes of each pixel a window of its own."""
    window = static_shape(call.args[1].ty)
    attributes = call.attrs
    return (
        isinstance(call.args[1], GenericConst)
        and str(attributes.kernel_layout) == "IOHW"
        and window is not None
        and tuple(map(int, attributes.strides)) == window[2:]
        and not any(map(int, (*attributes.padding, *attributes.output_padding)))
        and set(map(int, attributes.dilation)) == {1}
        and int(attributes.groups) == 1
        and call.ty.dtype == call.args[0].ty.dtype
    )


@relax.expr_functor.mutator
class _Products(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = self.visit_expr_post_order(call)
        if not _is_transposed(call) or str(call.attrs.data_layout) != "NHWC" or not _upsamples(call):
            return call
        data, weights = call.args
        by_pixel = constant(np.transpose(weights.value.numpy(), (2, 3, 1, 0)))
        return self.builder_.call_te(_product, data, by_pixel, primfunc_name_hint="conv2d_transpose")


def _product(data: Any, weights: Any) -> Any:
    images, height, width, channels = (int(extent) for extent in data.shape)
    down, right, filters, _ = (int(extent) for extent in weights.shape)
    c = te.reduce_axis((0, channels), name="c")

    def pixel(n: Any, y: Any, x: Any, o: Any) -> Any:
        return te.sum(data[n, y // down, x // right, c] * weights[y % down, x % right, o, c], axis=c)

    return te.compute((images, height * down, width * right, filters), pixel, name="conv2d_transpose")
