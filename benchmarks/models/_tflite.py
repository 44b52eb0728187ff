"""LiteRT beside TVM: an environment for its converter, models that ship as .tflite files, and small networks.

litert-torch cannot be an extra of this package: of its dependencies xdsl excludes the versions of typing-extensions
that apache-tvm-ffi needs, and works with them.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import onnx
from _graphs import onnx_of
from numpy.typing import NDArray

from stormdrop.model.random_weights import seed_weights

Array = NDArray[Any]

_CONVERTER = "litert-torch==0.10.0"


def litert_packages(environment: Path) -> Path:
    """The folder of LiteRT's packages, which an environment of their own holds; what this one has is not in it."""
    site, done = Path(sysconfig.get_path("purelib", vars={"base": str(environment)})), environment / "complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, _CONVERTER], check=True)
        subprocess.run([*pip, "typing-extensions>=4.13"], check=True)
        done.touch()
    return site


class TfliteModel:
    """A model that ships as a .tflite file, with one input. LiteRT's kernels for CPUs are those of XNNPACK."""

    def __init__(self, file: str, inputs: Mapping[str, Array], threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(file, num_threads=threads)
        (place,) = self._interpreter.get_input_details()
        (value,) = inputs.values()
        if tuple(place["shape"]) != value.shape:
            self._interpreter.resize_tensor_input(place["index"], value.shape)
        self._interpreter.allocate_tensors()
        self._interpreter.set_tensor(place["index"], value)
        self._places = [each["index"] for each in self._interpreter.get_output_details()]
        self.versions = {"ai-edge-litert": packages.version("ai-edge-litert")}
        self.settings: Mapping[str, Any] = {"threads": threads}

    def run(self) -> object:
        return self._interpreter.invoke()

    def outputs(self) -> list[Array]:
        self.run()
        return [self._interpreter.get_tensor(place) for place in self._places]


def small_network(name: str) -> onnx.ModelProto:
    """One of `SMALL` as ONNX, its weights drawn from seed 0."""
    return seed_weights(onnx_of(*SMALL[name]()), seed=0)


def _lenet() -> tuple[Any, tuple[Any, ...]]:
    """LeNet-5 with rectifiers, as it is taught today (LeCun et al. 1998)."""
    import torch
    from torch import nn

    convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, *dense), (torch.zeros(1, 1, 28, 28),)


def _anomaly() -> tuple[Any, tuple[Any, ...]]:
    """The autoencoder of MLPerf Tiny: ten dense layers. Batch norms are folded."""
    import torch
    from torch import nn

    widths = [640, *[128] * 4, 8, *[128] * 4]
    layers: list[Any] = []
    for wide, next_wide in itertools.pairwise(widths):
        layers += [nn.Linear(wide, next_wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 640)), (torch.zeros(1, 640),)


def _keywords() -> tuple[Any, tuple[Any, ...]]:
    """The DS-CNN of MLPerf Tiny: a convolution and four separable ones. Batch norms are folded."""
    import torch
    from torch import nn

    layers: list[Any] = [nn.Conv2d(1, 64, (10, 4), 2, (5, 1)), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12), nn.Softmax(-1)]
    return nn.Sequential(*layers), (torch.zeros(1, 1, 49, 10),)


SMALL: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "lenet": _lenet,
    "anomaly": _anomaly,
    "keywords": _keywords,
}
"""Networks with seeded weights, by name."""
