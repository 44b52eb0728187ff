"""The modules of torchvision and transformers that the scripts of this folder compile, with seeded weights.

The models of transformers have fewer layers than the published ones, so that all fit into the memory of a small
machine; their layers are the real ones. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

SIZES = {"inception_v3": 299}  # of images, if not 224

TORCHVISION = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet1_0",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "shufflenet_v2_x1_0",
    "squeezenet1_0",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11",
    "vgg11_bn",
    "vit_b_32",
    "wide_resnet50_2",
    "densenet169",
    "efficientnet_b3",
    "mnasnet0_5",
    "shufflenet_v2_x0_5",
)
"""One model of each of torchvision's families of classification networks, and of their main variants."""


def _image(size: int = 224) -> Any:
    import torch

    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))


def _tokens(length: int, words: int) -> Any:
    import torch

    return torch.randint(1, words, (1, length), generator=torch.Generator().manual_seed(1))


def _text(kind: str, length: int = 64, **settings: Any) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(**settings)
    module = getattr(transformers, f"{kind}Model")(config)
    tokens = _tokens(length, config.vocab_size)
    return module, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _t5() -> tuple[Any, dict[str, Any]]:
    import transformers

    config = transformers.T5Config(num_layers=3)
    return transformers.T5EncoderModel(config), {"input_ids": _tokens(64, config.vocab_size)}


def _whisper() -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(encoder_layers=2, d_model=384, encoder_attention_heads=6, encoder_ffn_dim=1536)
    sound = torch.randn(1, config.num_mel_bins, 3000, generator=torch.Generator().manual_seed(1))
    return WhisperEncoder(config), {"input_features": sound}


def _vision(kind: str, size: int = 224, **settings: Any) -> tuple[Any, dict[str, Any]]:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**settings)
    return getattr(transformers, f"{kind}Model")(config), {"pixel_values": _image(size)}


def _clip() -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    config = transformers.CLIPConfig(
        text_config={"num_hidden_layers": 2}, vision_config={"num_hidden_layers": 2, "patch_size": 32}
    )
    tokens = _tokens(16, 1000)
    inputs = {"input_ids": tokens, "pixel_values": _image(), "attention_mask": torch.ones_like(tokens)}
    return transformers.CLIPModel(config), inputs


TRANSFORMERS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bert": lambda: _text("Bert", num_hidden_layers=2),
    "distilbert": lambda: _text("DistilBert", n_layers=2),
    "roberta": lambda: _text("Roberta", num_hidden_layers=2),
    "gpt2": lambda: _text("GPT2", n_layer=2, use_cache=False),
    "t5_encoder": _t5,
    "whisper_encoder": _whisper,
    "vit": lambda: _vision("ViT", num_hidden_layers=2),
    "deit": lambda: _vision("DeiT", num_hidden_layers=2),
    "convnext": lambda: _vision("ConvNext", depths=[1, 1, 2, 1]),
    "swin": lambda: _vision("Swin", depths=[1, 1, 2, 1]),
    "mobilevit": lambda: _vision("MobileViT", 256),
    "clip": _clip,
}


def _mobilenet_v1() -> Any:
    """MobileNet as Howard et al. published it, with the padding of both sides and the ReLUs of TVM's own."""
    import torch
    import transformers

    config = transformers.MobileNetV1Config(num_labels=1000, tf_padding=False, hidden_act="relu")

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = transformers.MobileNetV1ForImageClassification(config)

        def forward(self, pixels: Any) -> Any:
            return self.network(pixels).logits

    return Logits()


def _resnet50_v1() -> Any:
    """ResNet-50 as He et al. published it, with a softmax: torchvision's has its strides in the 3x3 convolutions."""
    import torch

    network = torchvision_models().resnet50(weights=None)
    for stage in (network.layer2, network.layer3, network.layer4):
        first = stage[0]
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride
    return torch.nn.Sequential(network, torch.nn.Softmax(dim=1))


OF_THE_PAPERS: dict[str, Callable[[], Any]] = {"mobilenet_v1": _mobilenet_v1, "resnet50_v1": _resnet50_v1}
"""Networks that the papers on Droplet Search tune and that torchvision does not have. Their input is one image."""

NAMES = (*TORCHVISION, *TRANSFORMERS)
"""The models that torch_models.py compiles. `made` makes any other classification network of torchvision, too."""


def made(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The module of this name in inference mode, its positional and its named inputs; weights are of seed 0.

    Args:
        name: One of `TRANSFORMERS`, one of `OF_THE_PAPERS`, or any classification network of torchvision.
    """
    import torch

    torch.manual_seed(0)
    models = torchvision_models()  # transformers imports torchvision, too
    if name in TRANSFORMERS:
        module, named = TRANSFORMERS[name]()
        twice = {key: torch.cat([value, value.flip(-1)]) for key, value in named.items()}
        return _with_statistics(module, **twice), (), named
    if name in OF_THE_PAPERS:
        image = _image()
        return _with_statistics(OF_THE_PAPERS[name](), torch.cat([image, image.flip(3)])), (image,), {}
    settings: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    module = models.get_model(name, weights=None, **settings)
    for part in module.modules():
        if isinstance(part, torch.nn.Linear) and not part.weight.any():  # torchvision's ViT begins with such a head
            torch.nn.init.normal_(part.weight, std=0.02)
    image = _image(SIZES.get(name, 224))
    return _with_statistics(module, torch.cat([image, image.flip(3)])), (image,), {}


def _with_statistics(module: Any, *images: Any, **named: Any) -> Any:
    """A module in inference mode whose batch norms have the statistics of two images, in a call with these inputs.

    With those of a fresh module activations vanish layer by layer, until every output is a constant. Then nothing that
    is wrong with a layer could be seen.
    """
    import torch

    norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the statistics of this batch alone
    if norms:
        with torch.no_grad():
            module.train()(*images, **named)
    return module.eval()


def torchvision_models() -> Any:
    """torchvision's models, without its own operators: those for CUDA cannot be loaded beside a torch for CPUs."""
    with mock.patch("torch.library.register_fake", return_value=lambda function: function):
        import torchvision.models
    return torchvision.models
