"""Every peer computes the operator, or says why it cannot take part."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from stormdrop import operators
from stormdrop.bench.contender import Contender, TimedByDevice, Unavailable
from stormdrop.bench.peers import OPERATOR_PEERS
from stormdrop.bench.peers.ours import OperatorOnDevice
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.contract import Variant

ACTIVATIONS = ("relu6", "silu", "gelu", "hardswish", "sigmoid", "tanh")
DENSE = {"m": "8", "n": "48", "k": "32", "bias": "1"}
CONV = dict(n="1", h="9", w="11", ci="16", co="32", kh="3", kw="3", pad="1", bias="1")
OPERATORS: list[tuple[str, dict[str, str]]] = [
    ("matmul", {"m": "24", "n": "40", "k": "33"}),
    ("dense", {"m": "8", "n": "48", "k": "32", "bias": "1", "act": "relu"}),
    ("dense", {"m": "8", "n": "48", "k": "32"}),
    ("batch_matmul", {"b": "3", "m": "8", "n": "40", "k": "32"}),
    ("batch_matmul", {"b": "3", "m": "8", "n": "40", "k": "32", "transpose_b": "1"}),
    ("conv2d", dict(n="1", h="9", w="11", ci="16", co="32", kh="3", kw="3", pad="1", bias="1", act="relu")),
    ("conv2d", dict(n="2", h="9", w="11", ci="16", co="32", kh="3", kw="3", stride="2", dilation="2", groups="2")),
    ("conv2d", dict(n="2", h="9", w="11", ci="16", co="32", kh="3", kw="3", pad="1", layout="NCHW", act="relu")),
    ("depthwise_conv2d", dict(n="1", h="9", w="11", ci="16", kh="3", kw="3", pad="1", bias="1", act="relu")),
    ("depthwise_conv2d", dict(n="1", h="9", w="11", ci="16", kh="3", kw="3", stride="2", layout="NCHW")),
    ("pool2d", dict(n="1", h="9", w="11", c="16", kh="3", kw="3", stride="2", pad="1")),
    ("pool2d", dict(n="1", h="9", w="11", c="16", kh="3", kw="3", stride="2", pad="1", kind="avg", layout="NCHW")),
    ("reduce", {"shape": "6x7x5", "axis": "1", "kind": "max"}),
    ("reduce", {"shape": "6x7x5", "axis": "2"}),
    ("softmax", {"m": "12", "n": "33"}),
    ("elementwise", {"shape": "12x33"}),
    ("elementwise", {"shape": "12x33", "kind": "sigmoid"}),
    ("elementwise", {"shape": "12x33", "kind": "mul"}),
    ("elementwise", {"shape": "12x33", "kind": "div"}),
    ("elementwise", {"shape": "2x12x33", "kind": "bias_add"}),
    *(("elementwise", {"shape": "12x33", "kind": kind}) for kind in ("exp", "erf", "sqrt", "tanh")),
    *(("elementwise", {"shape": "12x33", "kind": kind}) for kind in ("relu6", "silu", "gelu", "hardswish")),
    *(("dense", {**DENSE, "act": act}) for act in ACTIVATIONS),
    *(("conv2d", {**CONV, "act": act}) for act in ACTIVATIONS),
    ("dense", {**DENSE, "act": "relu", "residual": "1"}),
    ("dense", {**DENSE, "bias": "0", "residual": "1"}),
    ("conv2d", {**CONV, "act": "relu", "residual": "1"}),
    ("conv2d", {**CONV, "act": "silu", "residual": "1"}),
    ("conv2d", {**CONV, "bias": "0", "residual": "1", "layout": "NCHW"}),
    ("depthwise_conv2d", dict(n="1", h="9", w="11", ci="16", kh="3", kw="3", dilation="2", act="relu6")),
    ("conv1d", dict(n="2", l="19", ci="16", co="32", k="3", pad="1", bias="1", act="relu")),
    ("conv1d", dict(n="1", l="19", ci="16", co="32", k="5", stride="2", dilation="2", groups="2")),
    ("conv1d", dict(n="2", l="19", ci="16", co="32", k="3", pad="1", layout="NCL", bias="1")),
    ("global_pool2d", dict(n="2", h="7", w="5", c="16")),
    ("global_pool2d", dict(n="2", h="7", w="5", c="16", kind="max", layout="NCHW")),
    ("reduce", {"shape": "6x7x5", "axis": "0x2", "kind": "mean"}),
    ("reduce", {"shape": "6x7", "axis": "0x1"}),
    ("layer_norm", {"m": "12", "n": "33", "eps": "1e-3"}),
    ("rms_norm", {"m": "12", "n": "33"}),
    ("attention_scores", {"b": "3", "m": "8", "n": "40", "k": "32"}),
    ("attention_scores", {"b": "3", "m": "8", "n": "40", "k": "32", "mask": "1"}),
    ("attention", {"b": "3", "m": "8", "n": "40", "k": "32", "v": "16"}),
    ("attention", {"b": "3", "m": "8", "n": "40", "k": "32", "v": "16", "mask": "1"}),
    ("transpose", {"shape": "6x7x5", "perm": "2x0x1"}),
    ("concatenate", {"shape": "6x7x5", "shape2": "6x3x5", "axis": "1"}),
]
PACKED = {"conv1d", "conv2d", "depthwise_conv2d", "dense"}


def make(peer: str, operator: str, arguments: dict[str, str]) -> tuple[Contender, Workload]:
    """The contender and its workload. The test is skipped if the peer's library is not installed."""
    pytest.importorskip(peer.partition("-")[0])
    module, _, name = OPERATOR_PEERS[peer].partition(":")
    workload = operators.create(operator, arguments)
    kind = getattr(importlib.import_module(module), name)
    return kind(operator, workload.arguments, workload.random_inputs(3), threads=1), workload


@pytest.mark.parametrize("peer", OPERATOR_PEERS)
@pytest.mark.parametrize(("operator", "arguments"), OPERATORS)
def test_a_peer_computes_the_same_operator(peer: str, operator: str, arguments: dict[str, str]) -> None:
    if peer == "torch-packed" and operator not in PACKED:
        with pytest.raises(Unavailable, match="no constant weights"):
            make(peer, operator, arguments)
        return
    contender, workload = make(peer, operator, arguments)
    (expected,) = workload.reference(workload.random_inputs(3))
    for _ in range(2):  # an operation in place must not start from the last result
        (output,) = contender.outputs()
        assert output.shape == expected.shape
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
    assert contender.settings["threads"] == 1


@pytest.mark.parametrize("peer", OPERATOR_PEERS)
def test_an_unsupported_operator_is_named(peer: str) -> None:
    pytest.importorskip(peer.partition("-")[0])
    module, _, name = OPERATOR_PEERS[peer].partition(":")
    with pytest.raises(Unavailable, match="unheard_of"):
        getattr(importlib.import_module(module), name)("unheard_of", {}, [np.ones(3, "float32")], threads=1)


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_bound_output_is_in_the_layout_of_the_workload(peer: str, layout: str) -> None:
    arguments = dict(n="1", h="5", w="7", ci="3", co="2", kh="1", kw="1", layout=layout)
    contender, _ = make(peer, "conv2d", arguments)
    (output,) = contender.outputs()
    assert output.shape == ((1, 5, 7, 2) if layout == "NHWC" else (1, 2, 5, 7))
    assert output.flags.c_contiguous
    assert "layout" in contender.settings


@pytest.mark.compiles
def test_a_schedule_is_timed_by_the_clock_of_its_device() -> None:
    workload = operators.matmul(4, 8, 16)
    inputs = workload.random_inputs(0)
    contender = OperatorOnDevice(workload, Cpu.detect(), Variant(workload.function), inputs, threads=1)
    (output,), (right,) = contender.outputs(), workload.reference(inputs)
    np.testing.assert_allclose(output, right, rtol=1e-5)
    assert isinstance(contender, TimedByDevice) and contender.seconds(10) > 0
