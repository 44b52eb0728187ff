"""A convolution reads an image of few channels as ONNX has it, with its channels second.

    t = permute_dims(x, [0, 2, 3, 1])       x has few channels
    y = conv2d(t, w)                ->      y = conv2d(x, w)

The kernel of the convolution copies the image once, into a padded one whose channels are last. Before, one kernel
copied it to move the channels, and the next one to pad it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx

from ..graph.expressions import bindings_of, operator_name
from .rewriting import rewrite_main
from .views import static_shape

_CONVOLUTION = "relax.nn.conv2d"
_TO_LAST = (0, 2, 3, 1)
_MOST_CHANNELS = 4  # photographs have three, or four with transparency; more channels were not tried


def without_transposed_images(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with convolutions of `main` that read images of few channels before these are transposed.

    Bindings that become unused stay.
    """
    images = {
        binding.var: binding.value.args[0] for binding in bindings_of(mod["main"]) if _moves_channels(binding.value)
    }
    return rewrite_main(mod, _Untransposed(mod, images)) if images else mod


def _moves_channels(value: Any) -> bool:
    """Whether a value is an image of few channels, which become the last axis."""
    if operator_name(value) != "relax.permute_dims" or value.attrs.axes is None:
        return False
    shape = static_shape(value.args[0].ty)
    return (
        shape is not None
        and tuple(map(int, value.attrs.axes)) == _TO_LAST
        and 0 not in shape
        and shape[1] <= _MOST_CHANNELS
    )


@relax.expr_functor.mutator
class _Untransposed(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, images: dict[Any, Any]) -> None:
        super().__init__(mod)
        self._images = images

    def visit_call_(self, call: relax.Call) -> Any:
        image = self._images.get(call.args[0]) if operator_name(call) == _CONVOLUTION else None
        if image is None or not _is_plain(call):
            return self.visit_expr_post_order(call)
        data, weights = self.visit_expr(image), self.visit_expr(call.args[1])
        return self.builder_.call_te(_convolution, data, weights, call.attrs, primfunc_name_hint="conv2d")


def _is_plain(convolution: relax.Call) -> bool:
    """Whether a convolution is channels-last with one group, and of one type."""
    data, weights = convolution.args
    attributes = convolution.attrs
    return (
        str(attributes.data_layout) == str(attributes.out_layout) == "NHWC"
        and str(attributes.kernel_layout) == "OHWI"
        and int(attributes.groups) == 1
        and static_shape(weights.ty) is not None
        and len({data.ty.dtype, weights.ty.dtype, convolution.ty.dtype}) == 1
    )


def _convolution(data: Any, weights: Any, attributes: Any) -> Any:
    """A convolution of images with their channels second; the channels of its result are last."""
    images, channels, height, width = (int(extent) for extent in data.shape)
    filters, *window, _ = (int(extent) for extent in weights.shape)
    top, left, bottom, right = map(int, attributes.padding)
    strides, dilation = tuple(map(int, attributes.strides)), tuple(map(int, attributes.dilation))
    padded = (height + top + bottom, width + left + right)

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        inside = tirx.all(y >= top, y < height + top, x >= left, x < width + left)
        return tirx.if_then_else(inside, data[n, c, y - top, x - left], tirx.const(0, data.dtype))

    image = te.compute((images, *padded, channels), element, name="pad")
    i, j = (te.reduce_axis((0, extent), name=name) for extent, name in zip(window, "ij", strict=True))
    c = te.reduce_axis((0, channels), name="c")

    def product(n: Any, y: Any, x: Any, o: Any) -> Any:
        row, column = y * strides[0] + i * dilation[0], x * strides[1] + j * dilation[1]
        return te.sum(image[n, row, column, c] * weights[o, i, j, c], axis=(i, j, c))

    sizes = [
        (whole - (extent - 1) * apart - 1) // step + 1
        for whole, extent, apart, step in zip(padded, window, dilation, strides, strict=True)
    ]
    return te.compute((images, *sizes, filters), product, name="conv2d")
