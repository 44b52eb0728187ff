"""The fourteen models: nine graphs of the ONNX model zoo, five made here; all with seeded weights, batch 1, float32.

The zoo's graphs come with the `onnx` package, without weights. ResNet-18, MobileNetV2, Inception-v3 and the ViT are
torchvision's definitions, BERT-base is transformers', exported by torch: nothing is downloaded.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from stormdrop.model.weights import seed_weights

_LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
ZOO = {
    "alexnet": "bvlc_alexnet",
    "densenet121": "densenet121",
    "inception_v1": "inception_v1",
    "inception_v2": "inception_v2",
    "resnet50": "resnet50",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
    "vgg19": "vgg19",
    "zfnet512": "zfnet512",
}
SEQUENCE = 128


def _resnet18() -> tuple[Any, tuple[Any, ...]]:
    return _torchvision().resnet18(weights=None), _image(224)


def _mobilenet_v2() -> tuple[Any, tuple[Any, ...]]:
    return _torchvision().mobilenet_v2(weights=None), _image(224)


def _inception_v3() -> tuple[Any, tuple[Any, ...]]:
    return _torchvision().inception_v3(weights=None, init_weights=False, aux_logits=False), _image(299)


def _vit_small() -> tuple[Any, tuple[Any, ...]]:
    small = {"patch_size": 16, "num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}
    return _torchvision().VisionTransformer(224, **small), _image(224)


def _bert_base() -> tuple[Any, tuple[Any, ...]]:
    import torch

    _torchvision()  # which transformers imports where it is there
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(), add_pooling_layer=True, attn_implementation="eager")
    tokens = torch.ones((1, SEQUENCE), dtype=torch.int64)
    return model, (tokens, torch.ones_like(tokens))


_operators: list[Any] = []


def _torchvision() -> Any:
    """torchvision's models. One for CUDA beside a torch for CPUs cannot load its operators; these models need none."""
    import torch

    try:
        import torchvision.models
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _operators.append(torch.library.Library("torchvision", "DEF"))
        _operators[-1].define("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision.models
    return torchvision.models


def _image(size: int) -> tuple[Any, ...]:
    import torch

    return (torch.zeros(1, 3, size, size),)


MADE: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "resnet18": _resnet18,
    "mobilenet_v2": _mobilenet_v2,
    "inception_v3": _inception_v3,
    "bert_base": _bert_base,
    "vit_small": _vit_small,
}

NAMES = [*ZOO, *MADE]


def graph(name: str) -> onnx.ModelProto:
    """The ONNX model of this name, its weights drawn from seed 0."""
    if name in ZOO:
        return seed_weights(onnx.load(_LIGHT / f"light_{ZOO[name]}.onnx"), seed=0)
    import torch

    torch.manual_seed(0)
    module, example = MADE[name]()
    file = io.BytesIO()
    torch.onnx.export(module.eval(), example, file, dynamo=False, opset_version=17, do_constant_folding=True)
    return seed_weights(onnx.load_from_string(file.getvalue()), seed=0)
