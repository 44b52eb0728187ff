from __future__ import annotations

import pytest

from stormdrop.report.layer_label import label_of, labels_of, layer_label, with_layers

BLOCK = ("layer2.1.conv1", "layer2.1.bn1", "layer2.1.relu")


@pytest.mark.parametrize(
    ("layers", "width", "label"),
    [
        ((), None, ""),
        ((), 10, ""),
        (("conv",), None, "conv"),
        (BLOCK, None, "layer2.1: conv1, bn1, relu"),
        (BLOCK, 26, "layer2.1: conv1, bn1, relu"),
        (BLOCK, 25, "layer2.1: conv1, bn1 (+1)"),
        (BLOCK, 24, "layer2.1.conv1 (+2)"),
        (BLOCK, 12, "…conv1 (+2)"),
        ((*BLOCK, "layer2.2.conv1"), 30, "layer2.1: conv1, bn1 (+2)"),
        ((*BLOCK, "layer2.2.conv1", "layer2.2.bn1"), None, "layer2.1: conv1, bn1, relu (+2)"),
        (("a", "b"), None, "a, b"),
        (("features.3", "features.3.relu"), None, "features: 3, 3.relu"),
    ],
)
def test_what_names_have_in_common_stands_once(layers: tuple[str, ...], width: int | None, label: str) -> None:
    assert layer_label(layers, width) == label


@pytest.mark.parametrize("width", range(1, 60))
def test_no_label_is_wider_than_its_column(width: int) -> None:
    label = layer_label(tuple(f"encoder.layer.{n}.attention.self.query" for n in range(12)), width)
    assert 0 < len(label) <= width


def test_a_kernel_without_layers_has_its_name() -> None:
    assert with_layers("fused_conv2d", BLOCK, 24) == "fused_conv2d (layer2.1.conv1 (+2))"
    assert with_layers("fused_conv2d", ()) == "fused_conv2d"
    assert label_of({"name": "fused_conv2d", "layers": BLOCK}) == "layer2.1: conv1, bn1, relu"
    assert label_of({"name": "fused_conv2d", "layers": []}) == label_of({"task": "fused_conv2d"}) == "fused_conv2d"
    layers = [{"name": name, "kernels": ["conv", "other"] if "conv" in name else ["other"]} for name in BLOCK]
    assert labels_of(["other", "conv", "sort"], layers) == ["layer2.1: conv1, bn1, relu", "layer2.1.conv1", "sort"]
