"""Quantises a float32 model by onnxruntime's quantisers: to bytes, on samples of its inputs, or its weights alone."""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, version_converter

from ..errors import InputError, ModelError, one_line, shown
from ..ir.relative_error import relative_error
from ..optional_packages import load, refusal
from .graph.onnx_origin import OnnxOrigin
from .inputs.given import listed, split
from .inputs.samples import Feeds
from .onnx.contributed import MATMUL_N_BITS, is_contributed
from .onnx.source import read_model
from .onnx.standard import opset_of
from .onnx.weights import moved_in
from .verification.arrays import same_top

ACTIVATIONS = ("uint8", "int8")
"""The types of the data between layers."""

WEIGHT_BITS = (4, 8)
"""How many bits a weight may have if the weights alone are quantised."""

WEIGHT_GROUPS = (16, 32, 64, 128, 256)
"""How many weights may share a scale then."""

_LAYERS = ("Conv", "Gemm", "MatMul")
_WARNINGS, _ERRORS = 2, 3  # severities of onnxruntime; the first is its default
_COMPARED = 32  # samples that are compared with float32, at most
_OPSET = 13  # the first one in which weights have a scale for each channel


@dataclass(frozen=True)
class QuantizedModel:
    """What a quantisation did.

    Attributes:
        model: The file of the quantised model.
        samples: How many samples the ranges of its tensors come from; 0 if the weights alone were quantised.
        layers: Its convolutions and products of matrices.
        quantized: How many of them read bytes, or weights of fewer bits.
        error: The median over the first 32 samples of max|quantised - float32| / max|float32|, for the worst output.
            None without samples, or if onnxruntime does not run one of the models.
        agreement: The share of the rows of their outputs whose largest element is at the same place as in float32
            ("top-1 agreement"); None without samples, or if the outputs have no rows of several numbers.
    """

    model: str
    samples: int
    layers: int
    quantized: int
    error: float | None = None
    agreement: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def quantize_model(
    model: Path,
    data: Mapping[str, NDArray[Any]],
    out: Path,
    *,
    per_channel: bool = False,
    activations: str = "uint8",
) -> QuantizedModel:
    """Quantises a model: weights become int8, and the data between layers bytes, by onnxruntime's `quantize_static`.

    Args:
        model: An ONNX file.
        data: The samples of each input by name, one after the other along the first axis. A sample has as many rows as
            the model's input; one if that is open.
        out: The file to write.
        per_channel: Whether weights have a scale for each output channel, which is more exact.
        activations: One of `ACTIVATIONS`; int8 is symmetric around 0.

    Raises:
        ModelError: onnxruntime is not installed, the model cannot be read or quantised.
        InputError: The data are not those of the model's inputs, or an argument is wrong.

    Example:
        ```python
        from pathlib import Path
        from stormdrop.model.quantize import quantize_model

        quantize_model(Path("resnet50.onnx"), {"data": images}, Path("resnet50.int8.onnx"), per_channel=True)
        ```
    """
    if activations not in ACTIVATIONS:
        raise InputError(f"activations {activations!r}: must be {' or '.join(ACTIVATIONS)}")
    load("onnxruntime", "quantising a model", ModelError)
    read = moved_in(read_model(model))
    samples = _samples(read, data)
    try:
        quantized = _quantized(read, samples, out.absolute().parent, per_channel, activations)
        onnx.save(quantized, str(out))
    except Exception as error:
        # The quantiser, onnx and onnxruntime raise many types for a model that they do not take.
        raise ModelError(f"{model}: cannot be quantised: {one_line(error)}") from error
    nodes = [node for node in quantized.graph.node if node.op_type in _LAYERS]
    made = {name for node in quantized.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    count = sum(made.issuperset(node.input[:2]) for node in nodes)
    return QuantizedModel(str(out), len(samples), len(nodes), count, *_accuracy(read, quantized, samples))


def quantize_weights(model: Path, out: Path, *, bits: int = 4, group: int = 32) -> QuantizedModel:
    """Quantises the weights of a model's products of matrices, and nothing else, by onnxruntime's quantiser.

    Each of these products becomes a `MatMulNBits`. With few rows of data, as when a language model writes a word at a
    time, such a model is as fast as its weights can be read. It needs no data for calibration.

    Args:
        model: An ONNX file.
        out: The file to write.
        bits: The bits of a weight, one of `WEIGHT_BITS`. Codes of 4 bits have zero points, those of 8 bits the middle.
        group: How many weights of a column share a scale, one of `WEIGHT_GROUPS`.

    Raises:
        ModelError: onnxruntime is not installed, the model cannot be read, or it has no product with constant weights.
        InputError: An argument is wrong.

    Example:
        ```python
        from pathlib import Path
        from stormdrop.model.quantize import quantize_weights

        quantize_weights(Path("bert.onnx"), Path("bert.int4.onnx"), bits=4, group=32)
        ```
    """
    for name, value, known in (("bits", bits, WEIGHT_BITS), ("group", group, WEIGHT_GROUPS)):
        if value not in known:
            raise InputError(f"{name} {value}: must be one of {', '.join(map(str, known))}")
    load("onnxruntime", "quantising a model", ModelError)
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    except ImportError as error:
        raise refusal("onnxruntime.quantization", "quantising weights", error, ModelError) from error
    read = moved_in(read_model(model))
    before = _coded(read)
    try:
        quantizer = MatMulNBitsQuantizer(read, bits=bits, block_size=group, is_symmetric=bits == 8)
        with _quiet():
            quantizer.process()
        quantized: onnx.ModelProto = quantizer.model.model
    except Exception as error:
        # The quantiser and onnx raise many types for a model that they do not take.
        raise ModelError(f"{model}: cannot be quantised: {one_line(error)}") from error
    coded = _coded(quantized)
    if coded == before:
        raise ModelError(f"{model}: has no MatMul with constant weights in floats, which could be quantised")
    onnx.save(quantized, str(out))
    others = sum(node.op_type in _LAYERS for node in quantized.graph.node)
    return QuantizedModel(str(out), 0, coded + others, coded)


def _coded(model: onnx.ModelProto) -> int:
    """How many products have codes for weights."""
    return sum(is_contributed(node, MATMUL_N_BITS) for node in model.graph.node)


def _accuracy(
    model: onnx.ModelProto, quantized: onnx.ModelProto, samples: Sequence[Feeds]
) -> tuple[float | None, float | None]:
    """The error and the agreement of a quantised model on samples; see `QuantizedModel`."""
    compared = samples[:_COMPARED]
    names = [value.name for value in model.graph.output]
    both = [OnnxOrigin(each).outputs(compared, names)[0] for each in (model, quantized) if compared]
    exact, coarse = both or ((), ())
    if not exact or len(exact) != len(coarse):  # onnxruntime does not run one of them
        return None, None
    errors, same = [], list[bool]()
    for name in names:
        pairs = [(ours[name], theirs[name]) for ours, theirs in zip(coarse, exact, strict=True)]
        errors.append(statistics.median(relative_error(ours, theirs) for ours, theirs in pairs))
        for ours, theirs in pairs:
            same += same_top(ours, theirs)
    return max(errors, default=None), statistics.mean(same) if same else None


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings are logged: the quantisers recommend what is done here, and onnxruntime lists every unused constant.

    onnxruntime has no way to ask for its severity, so it has its default afterwards.
    """
    import onnxruntime

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(_ERRORS)
    try:
        yield
    finally:
        logging.disable(before)
        onnxruntime.set_default_logger_severity(_WARNINGS)


def _samples(model: onnx.ModelProto, data: Mapping[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """The inputs of each sample. Raises `InputError` unless the data are those of the model's inputs."""
    constants = {tensor.name for tensor in model.graph.initializer}
    kinds = {value.name: value.type.tensor_type for value in model.graph.input if value.name not in constants}
    for name, kind in kinds.items():
        if kind.elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
            raise InputError(f"input {shown(name)!r} is no tensor of numbers: such a model is not quantised on samples")
    inputs = {
        name: ([size.dim_value for size in kind.shape.dim], helper.tensor_dtype_to_np_dtype(kind.elem_type).name)
        for name, kind in kinds.items()
    }
    if data.keys() != inputs.keys():
        raise InputError(f"the samples have {listed(data)}; the model's inputs are {listed(inputs)}")
    return split(inputs, data)


def _quantized(
    model: onnx.ModelProto, samples: list[dict[str, NDArray[Any]]], beside: Path, per_channel: bool, activations: str
) -> onnx.ModelProto:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    left = iter(samples)

    class Samples(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(left, None)

    own = onnx.ModelProto()
    own.CopyFrom(model)  # the quantiser moves the weights of what it gets to files
    if opset_of(own) < _OPSET:
        own = version_converter.convert_version(own, _OPSET)
    kinds = {"uint8": quantization.QuantType.QUInt8, "int8": quantization.QuantType.QInt8}
    with _quiet(), tempfile.TemporaryDirectory(prefix=".quantize-", dir=beside) as folder:
        before, ready, written = (Path(folder) / f"{name}.onnx" for name in ("before", "ready", "quantized"))
        # In a file, because onnxruntime does not see small constants (the size of a Reshape) of a model in memory.
        onnx.save(own, str(before))
        quant_pre_process(str(before), str(ready), skip_symbolic_shape=True)  # folds batch norms, above all
        quantization.quantize_static(
            str(ready),
            str(written),
            Samples(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=kinds[activations],
            weight_type=quantization.QuantType.QInt8,
            extra_options={"ActivationSymmetric": activations == "int8"},
        )
        return onnx.load(str(written))
