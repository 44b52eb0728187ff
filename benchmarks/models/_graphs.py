"""The fourteen models: nine graphs of the ONNX model zoo, and five that are made here. And six newer ones.

All have seeded weights, batch 1 and float32. The graphs of the zoo come with the `onnx` package, without weights.
torchvision defines the networks for images, transformers those for text and sound; torch exports them. Nothing is
downloaded.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
from _torch_modules import torchvision_models

from stormdrop.model.random_weights import seed_weights

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
    return torchvision_models().resnet18(weights=None), _image(224)


def _mobilenet_v2() -> tuple[Any, tuple[Any, ...]]:
    return torchvision_models().mobilenet_v2(weights=None), _image(224)


def _inception_v3() -> tuple[Any, tuple[Any, ...]]:
    return torchvision_models().inception_v3(weights=None, init_weights=False, aux_logits=False), _image(299)


def _vit_small() -> tuple[Any, tuple[Any, ...]]:
    small = {"patch_size": 16, "num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536}
    return torchvision_models().VisionTransformer(224, **small), _image(224)


def _bert_base() -> tuple[Any, tuple[Any, ...]]:
    torchvision_models()  # transformers imports it if it is installed
    from transformers import BertConfig, BertModel

    return _of_tokens(BertModel(BertConfig(attn_implementation="eager")), ("last_hidden_state", "pooler_output"))


def _distilbert() -> tuple[Any, tuple[Any, ...]]:
    torchvision_models()  # transformers imports it if it is installed
    from transformers import DistilBertConfig, DistilBertModel

    return _of_tokens(DistilBertModel(DistilBertConfig(attn_implementation="eager")), ("last_hidden_state",))


def _of_tokens(network: Any, outputs: tuple[str, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A network of transformers whose inputs are tokens and a mask, with some of its outputs."""
    import torch

    class ByName(torch.nn.Module):
        """Passes inputs by name, because the exporter passes them by position and there are parameters in between."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            found = self.network(input_ids=input_ids, attention_mask=attention_mask)
            return tuple(found[name] for name in outputs)

    tokens = torch.ones((1, SEQUENCE), dtype=torch.int64)
    return ByName(), (tokens, torch.ones_like(tokens))


def _whisper_tiny() -> tuple[Any, tuple[Any, ...]]:
    """The encoder of Whisper-tiny, on thirty seconds of sound."""
    import torch

    torchvision_models()  # transformers imports it if it is installed
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        encoder_layers=4,
        d_model=384,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        attn_implementation="eager",
    )

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = WhisperEncoder(config)

        def forward(self, features: Any) -> Any:
            return self.encoder(features).last_hidden_state

    return States(), (torch.zeros(1, config.num_mel_bins, 3000),)


def _of_torchvision(name: str) -> tuple[Any, tuple[Any, ...]]:
    return torchvision_models().get_model(name, weights=None), _image(224)


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

NEWER: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "efficientnet_b0": lambda: _of_torchvision("efficientnet_b0"),
    "mobilenet_v3": lambda: _of_torchvision("mobilenet_v3_large"),
    "convnext_tiny": lambda: _of_torchvision("convnext_tiny"),
    "swin_tiny": lambda: _of_torchvision("swin_t"),
    "distilbert": _distilbert,
    "whisper_tiny": _whisper_tiny,
}


def graph(name: str) -> onnx.ModelProto:
    """The ONNX model of this name, its weights drawn from seed 0."""
    if name in ZOO:
        return seed_weights(onnx.load(_LIGHT / f"light_{ZOO[name]}.onnx"), seed=0)
    return _exported(name)


_TEXTS = {0: "batch", 1: "tokens"}

OPEN: dict[str, dict[str, dict[int, str]]] = {
    "mobilenet_v2": {"image": {0: "batch"}, "logits": {0: "batch"}},
    "bert_base": {"ids": _TEXTS, "mask": _TEXTS, "hidden": _TEXTS, "pooled": {0: "batch"}},
    "distilbert": {"ids": _TEXTS, "mask": _TEXTS, "hidden": _TEXTS},
}
"""The inputs and outputs of the models that can be made with open dimensions: the name of each, by axis."""


def open_graph(name: str) -> onnx.ModelProto:
    """One of the models in `OPEN`, with these dimensions open, and with the weights of `graph`."""
    return _exported(name, OPEN[name])


def _exported(name: str, axes: Mapping[str, Mapping[int, str]] | None = None) -> onnx.ModelProto:
    """One of `MADE` or `NEWER`; `axes` are the open dimensions of its inputs and outputs, which take these names."""
    import torch

    torch.manual_seed(0)
    return seed_weights(onnx_of(*(MADE | NEWER)[name](), axes), seed=0)


def onnx_of(
    module: Any, example: tuple[Any, ...], axes: Mapping[str, Mapping[int, str]] | None = None
) -> onnx.ModelProto:
    """A module as ONNX, in inference mode and with its weights.

    Args:
        module: a module of torch.
        example: its inputs.
        axes: the open dimensions of its inputs and outputs, which take these names.
    """
    import torch

    names = list(axes or {})
    named: dict[str, Any] = {}
    if axes:
        named = {
            "input_names": names[: len(example)],
            "output_names": names[len(example) :],
            "dynamic_axes": {key: dict(value) for key, value in axes.items()},
        }
    file = io.BytesIO()
    # onnx2torch, by which torch takes part as a peer, knows no reductions of opset 18, which the newer exporter needs.
    torch.onnx.export(module.eval(), example, file, dynamo=False, opset_version=17, do_constant_folding=True, **named)
    return onnx.load_from_string(file.getvalue())
