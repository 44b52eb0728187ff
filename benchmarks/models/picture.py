"""Draws docs/explanation/images/models.png from the figures in docs/explanation/models.json.

    picture.py

The figures are those of the tables in docs/explanation/models.md, a panel for each machine. Nothing is measured here.
After a new run of run.py, bring the page and the JSON file up to date, and draw again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from stormdrop.report.plots.style import COLOURS, legend, panels, save

DOCS = Path(__file__).parents[2] / "docs" / "explanation"
NAMES = {
    "alexnet": "AlexNet",
    "densenet121": "DenseNet-121",
    "inception_v1": "Inception-v1",
    "inception_v2": "Inception-v2",
    "resnet50": "ResNet-50",
    "shufflenet": "ShuffleNet",
    "squeezenet": "SqueezeNet",
    "vgg19": "VGG-19",
    "zfnet512": "ZFNet-512",
    "resnet18": "ResNet-18",
    "mobilenet_v2": "MobileNetV2",
    "inception_v3": "Inception-v3",
    "bert_base": "BERT-base",
    "vit_small": "ViT-small",
}


COLOURS_OF = {"onnxruntime": COLOURS[4], "openvino": COLOURS[0], "litert": COLOURS[2]}


def main() -> None:
    machines = json.loads((DOCS / "models.json").read_text())["machines"]
    order = sorted((model["model"] for model in machines[0]["models"]), key=lambda name: _mean(machines, name))
    titles = [
        f"{machine['cpu']}: {statistics.geometric_mean(model['ratio'] for model in machine['models']):.2f} times"
        for machine in machines
    ]
    figure, axes = panels(titles, height=3.9)
    for axis, machine in zip(axes, machines, strict=True):
        draw(axis, machine, order)
    for axis in axes[1:]:
        axis.tick_params(labelleft=False)
    for peer, colour in COLOURS_OF.items():  # in the first panel, whose legend stands for all of them
        axes[0].barh([0], [0], color=colour, label=f"fastest other runtime: {peer}")
    legend(figure, axes[0])
    save(figure, DOCS / "images" / "models.png")


def draw(axis: Axes, machine: Mapping[str, Any], order: Sequence[str]) -> None:
    """Draws one machine's models in a panel: how much longer the best peer takes, and our time inside the bars."""
    by_name = {model["model"]: model for model in machine["models"]}
    models = [by_name[name] for name in order]
    ratios = [model["ratio"] for model in models]
    rows = list(range(len(models)))
    axis.barh(rows, ratios, color=[COLOURS_OF[model["peer"]] for model in models])
    low = [model["ratio"] - model["interval"][0] for model in models]
    high = [model["interval"][1] - model["ratio"] for model in models]
    axis.errorbar(ratios, rows, xerr=[low, high], fmt="none", ecolor="#333333", elinewidth=0.9, capsize=2)
    axis.axvline(1.0, color="#333333", linewidth=1.0)
    for row, model in enumerate(models):
        axis.text(0.05, row, f"{model['milliseconds']:.1f} ms", va="center", fontsize=7, color="white")
    axis.set_yticks(rows, [NAMES[name] for name in order])
    axis.set_xlim(0.0, 3.0)
    axis.set_xlabel(f"its time over ours, 95% intervals;\nmeasured {machine['measured']}", fontsize=8)
    axis.grid(axis="y", visible=False)


def _mean(machines: Sequence[Mapping[str, Any]], name: str) -> float:
    ratios = (model["ratio"] for machine in machines for model in machine["models"] if model["model"] == name)
    return statistics.geometric_mean(ratios)


if __name__ == "__main__":
    main()
