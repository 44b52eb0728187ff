"""Draws docs/explanation/images/models.png from the figures in docs/explanation/models.json.

    picture.py

The figures are those of the table in docs/explanation/models.md. Nothing is measured here. After a new run of run.py,
bring the page and the JSON file up to date, and draw again.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from stormdrop.report.plots.style import COLOURS, panels, save

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


def main() -> None:
    document = json.loads((DOCS / "models.json").read_text())
    models = sorted(document["models"], key=lambda model: model["ratio"])
    ratios = [model["ratio"] for model in models]
    mean = statistics.geometric_mean(ratios)
    figure, (axis,) = panels([f"Speed over the fastest other runtime: {mean:.2f} times (geometric mean)"], height=3.9)
    rows = range(len(models))
    colours = {"onnxruntime": COLOURS[4], "openvino": COLOURS[0]}
    for peer, colour in colours.items():
        bars = [row for row in rows if models[row]["peer"] == peer]
        axis.barh(bars, [ratios[row] for row in bars], color=colour, label=f"fastest other runtime: {peer}")
    low = [model["ratio"] - model["interval"][0] for model in models]
    high = [model["interval"][1] - model["ratio"] for model in models]
    axis.errorbar(ratios, list(rows), xerr=[low, high], fmt="none", ecolor="#333333", elinewidth=0.9, capsize=2)
    axis.axvline(1.0, color="#333333", linewidth=1.0)
    for row, model in enumerate(models):
        axis.text(0.03, row, f"{model['milliseconds']:.1f} ms", va="center", fontsize=7, color="white")
    axis.set_yticks(list(rows), [NAMES[model["model"]] for model in models])
    axis.set_xlim(0.0, 3.0)
    axis.set_xlabel(
        f"its time over ours, with 95% intervals; inside the bars: our time; {document['machine']},\n"
        f"float32, batch 1, 150 s of tuning per model; {document['measured']}",
        fontsize=8,
    )
    axis.grid(axis="y", visible=False)
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    save(figure, DOCS / "images" / "models.png")


if __name__ == "__main__":
    main()
