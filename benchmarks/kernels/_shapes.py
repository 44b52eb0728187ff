"""The 68 kernels of the benchmark, float32.

    M0..M5, Y0..Y10, R0..R12   the 30 of Table 1 of Li et al., Accelerated Auto-Tuning of GPU Kernels for Tensor
                               Computations (ICS 2024): matmuls of BERT, convolutions of YOLO-9000 and ResNet-50
    K0..K5                     the six micro-kernels of Canesche et al., The Droplet Search Algorithm for Kernel
                               Scheduling (ACM TACO 2024), Figure 17
    MB, DN, IN, BE, VT         20 of MobileNetV2, DenseNet-121, Inception-v3, BERT-base (128 tokens) and ViT-small
                               (197 tokens, 6 heads): shapes with odd extents, and what moves data more than it computes
    S0..S11                    12 skinny products, of 1, 4 and 16 rows: what decoders of language models compute, with
                               weights that are transposed and constant (dense), or neither (matmul)

Convolutions are NHWC. They have a bias and an activation if the network has them behind the convolution (batch norms
are folded). The convolutions of Table 1 are plain in the paper; here they have a bias and a ReLU, as in both networks.
Its matmuls are plain. The micro-kernels are plain too, and have the paper's batch of 128; all others have batch 1. SAME
padding is the same on both sides here (R0: 3 and 3; TensorFlow pads 2 and 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stormdrop import operators

if TYPE_CHECKING:
    from stormdrop.ir.workload import Workload

COMPUTE, MEMORY = "compute", "memory"


@dataclass(frozen=True)
class Shape:
    """A named kernel: an operator and its arguments."""

    name: str
    origin: str
    operator: str
    arguments: Mapping[str, Any]

    def workload(self) -> Workload:
        """The function to tune."""
        workload: Workload = getattr(operators, self.operator)(**self.arguments)
        return workload


def kind(workload: Workload, flops: float, bandwidth: float) -> str:
    """Whether the machine's FLOP/s or its bandwidth (bytes/s) bounds a kernel, by its operations per byte moved."""
    return COMPUTE if workload.flops / moved(workload) >= flops / bandwidth else MEMORY


def moved(workload: Workload) -> float:
    """The bytes that one execution moves at least: every input and output once.

    If the stride is longer than the window, only the pixels that a window touches count.
    """
    arguments = workload.arguments
    if arguments.get("stride", 1) <= min(arguments.get("kh", 1), arguments.get("kw", 1)):
        return workload.bytes
    _, rows, columns, _ = workload.outputs[0].shape
    touched: float = rows * arguments["kh"] * columns * arguments["kw"] / (arguments["h"] * arguments["w"])
    return workload.bytes - (1 - touched) * workload.inputs[0].bytes


_TABLE_1 = "Table 1"
MICRO, SKINNY = "micro-kernel", "skinny"


def _table_1() -> list[Shape]:
    matmuls = [
        (512, 64, 1024),
        (512, 4096, 1024),
        (512, 64, 768),
        (512, 3072, 768),
        (512, 1024, 4096),
        (512, 768, 3072),
    ]
    # output channels, input channels, height and width, window, stride
    yolo = [
        (32, 3, 544, 3, 1),
        (64, 32, 272, 3, 1),
        (128, 64, 136, 3, 1),
        (64, 128, 136, 1, 1),
        (256, 128, 68, 3, 1),
        (128, 256, 68, 1, 1),
        (512, 256, 68, 3, 1),
        (512, 256, 34, 3, 1),
        (256, 512, 34, 1, 1),
        (1024, 512, 17, 3, 1),
        (512, 1024, 17, 1, 1),
    ]
    resnet = [
        (64, 3, 224, 7, 2),
        (64, 64, 56, 1, 1),
        (64, 64, 56, 3, 1),
        (256, 64, 56, 1, 1),
        (128, 256, 56, 1, 2),
        (128, 128, 28, 3, 1),
        (512, 128, 28, 1, 1),
        (256, 512, 28, 1, 2),
        (256, 256, 14, 3, 1),
        (1024, 256, 14, 1, 1),
        (512, 1024, 14, 1, 2),
        (512, 512, 7, 3, 1),
        (2048, 512, 7, 1, 1),
    ]
    return [
        *(
            Shape(f"M{index}", f"{_TABLE_1}, BERT", "matmul", dict(zip("mnk", sizes, strict=True)))
            for index, sizes in enumerate(matmuls)
        ),
        *(Shape(f"Y{index}", f"{_TABLE_1}, YOLO-9000", "conv2d", _layer(*layer)) for index, layer in enumerate(yolo)),
        *(Shape(f"R{index}", f"{_TABLE_1}, ResNet-50", "conv2d", _layer(*layer)) for index, layer in enumerate(resnet)),
    ]


def _layer(co: int, ci: int, size: int, window: int, stride: int) -> dict[str, Any]:
    return {**_image(size, ci), **_window(window, stride, window // 2), "co": co, "bias": 1, "act": "relu"}


def _image(size: int, channels: int, batch: int = 1, key: str = "ci") -> dict[str, Any]:
    return {"n": batch, "h": size, "w": size, key: channels}


def _window(size: int, stride: int = 1, pad: int = 0) -> dict[str, Any]:
    return {"kh": size, "kw": size, "stride": stride, "pad": pad}


def _micro() -> list[Shape]:
    return [
        Shape("K0", MICRO, "matmul", dict(m=16, n=1024, k=1024)),
        Shape("K1", MICRO, "conv2d", {**_image(28, 128, batch=128), **_window(3, pad=1), "co": 128}),
        Shape("K2", MICRO, "depthwise_conv2d", {**_image(83, 84, batch=128), **_window(5, 2, 2)}),
        Shape("K3", MICRO, "pool2d", {**_image(83, 168, batch=128, key="c"), **_window(1, 2), "kind": "avg"}),
        Shape("K4", MICRO, "reduce", dict(shape=(128, 512, 1024), axis=2)),
        Shape("K5", MICRO, "elementwise", dict(shape=(4096, 4096))),
    ]


def _networks() -> list[Shape]:
    relu, relu6 = {"bias": 1, "act": "relu"}, {"bias": 1, "act": "relu6"}
    mobilenet, densenet, inception, bert, vit = "MobileNetV2", "DenseNet-121", "Inception-v3", "BERT-base", "ViT-small"
    return [
        Shape("MB0", mobilenet, "depthwise_conv2d", {**_image(112, 96), **_window(3, 2, 1), **relu6}),
        Shape("MB1", mobilenet, "depthwise_conv2d", {**_image(56, 144), **_window(3, 1, 1), **relu6}),
        Shape("MB2", mobilenet, "conv2d", {**_image(112, 16), **_window(1), "co": 96, **relu6}),
        Shape("MB3", mobilenet, "conv2d", {**_image(56, 144), **_window(1), "co": 24, "bias": 1}),
        # Its batch norms come before the convolutions: the one behind the bottleneck is folded, the others are not.
        Shape("DN0", densenet, "conv2d", {**_image(14, 992), **_window(1), "co": 128, **relu}),
        Shape("DN1", densenet, "conv2d", {**_image(28, 128), **_window(3, pad=1), "co": 32}),
        Shape("DN2", densenet, "pool2d", {**_image(56, 128, key="c"), **_window(2, 2), "kind": "avg"}),
        Shape("IN0", inception, "conv2d", {**_image(149, 32), **_window(3), "co": 32, **relu}),
        Shape("IN1", inception, "conv2d", {**_image(147, 32), **_window(3, pad=1), "co": 64, **relu}),
        Shape("IN2", inception, "conv2d", {**_image(35, 48), **_window(5, pad=2), "co": 64, **relu}),
        # 1x7 on 17x17 pads the columns by 3 and no rows. conv2d has one padding for both, so the input is padded here.
        Shape("IN3", inception, "conv2d", dict(n=1, h=17, w=23, ci=192, co=192, kh=1, kw=7, **relu)),
        Shape("BE0", bert, "dense", dict(m=128, n=768, k=768, bias=1)),
        Shape("BE1", bert, "dense", dict(m=128, n=3072, k=768, bias=1, act="gelu")),
        Shape("BE2", bert, "batch_matmul", dict(b=12, m=128, n=128, k=64, transpose_b=1)),
        Shape("BE3", bert, "softmax", dict(m=12 * 128, n=128)),
        Shape("BE4", bert, "layer_norm", dict(m=128, n=768)),
        Shape("VT0", vit, "dense", dict(m=197, n=1152, k=384, bias=1)),
        Shape("VT1", vit, "batch_matmul", dict(b=6, m=197, n=64, k=197)),
        Shape("VT2", vit, "softmax", dict(m=6 * 197, n=197)),
        Shape("VT3", vit, "layer_norm", dict(m=197, n=384)),
    ]


def _skinny() -> list[Shape]:
    weights = [("dense", 768, 768), ("dense", 4096, 4096), ("matmul", 4096, 1024), ("matmul", 11008, 4096)]
    layers = [(operator, dict(m=m, n=n, k=k)) for m in (1, 4, 16) for operator, n, k in weights]
    return [Shape(f"S{index}", SKINNY, operator, arguments) for index, (operator, arguments) in enumerate(layers)]


SHAPES = {shape.name: shape for shape in (*_table_1(), *_micro(), *_networks(), *_skinny())}
"""All shapes by name."""

TABLE_1 = [name for name, shape in SHAPES.items() if shape.origin.startswith(_TABLE_1)]
"""The shapes of Table 1 of the AF-DS paper."""
