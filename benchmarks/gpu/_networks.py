"""Seven networks of the papers and of their kind, small enough to be executed where no GPU is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
import wild
from _graphs import onnx_of
from _torch_modules import made, torchvision_models
from papers import exported

from stormdrop.model.random_weights import seed_weights


def _of_papers(name: str) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        exported(name, path)
        return onnx.load(path)


def _inception_v3() -> onnx.ModelProto:
    import torch

    module = torchvision_models().inception_v3(weights=None, init_weights=False, aux_logits=False)
    return seed_weights(onnx_of(module, (torch.zeros(1, 3, 75, 75),)), seed=0)


def _of_transformers(name: str) -> onnx.ModelProto:
    import torch

    module, _, named = made(name)

    class FirstOutput(torch.nn.Module):
        """The exporter hands all arguments over by position, which the newest of these modules refuse."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.module(**dict(zip(named, tensors, strict=True)))[0]
            return output

    return onnx_of(FirstOutput(), tuple(named.values()))


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "squeezenet": lambda: _of_papers("squeezenet"),
    "resnet18": lambda: _of_papers("resnet18"),
    "mobilenet_v2": lambda: _of_papers("mobilenet_v2"),
    "inception_v3": _inception_v3,
    "bert": lambda: _of_transformers("bert"),
    "vit": lambda: _of_transformers("vit"),
    "yolov8n": lambda: onnx.load(wild.fetch(wild.MODELS["nudenet"])),
}
"""Inception-v3 on 75 x 75 pixels, BERT and ViT with two layers, a YOLOv8n that was trained."""

SHAPES = {"yolov8n": wild.MODELS["nudenet"].shapes}
"""The shapes of the inputs that a network leaves open."""
