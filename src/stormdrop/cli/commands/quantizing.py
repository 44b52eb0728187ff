"""`stormdrop quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError
from .. import arrays, options, output
from ..options import JsonOption
from ..status_line import telling

if TYPE_CHECKING:
    from ...model.quantize import QuantizedModel


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to quantise.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            "--samples",
            metavar="DATA.npz",
            help="Samples of each input by name, one after the other on the first axis.",
        ),
    ] = None,
    weights_only: Annotated[
        int | None,
        typer.Option(
            "--weights-only", metavar="4|8", help="Quantise the weights of matrix products alone, to so many bits."
        ),
    ] = None,
    group: Annotated[
        int | None, typer.Option("--group", metavar="N", help="Weights that share a scale, with --weights-only (32).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="OUT.onnx", help="The file to write; by default MODEL.int8.onnx, or MODEL.int4.onnx, here."
        ),
    ] = None,
    per_channel: Annotated[
        bool, typer.Option("--per-channel", help="A scale for each output channel of the weights: more exact.")
    ] = False,
    activations: Annotated[
        str, typer.Option("--activations", metavar="uint8|int8", help="The type of the data between layers.")
    ] = "uint8",
    as_json: JsonOption = False,
) -> None:
    """Quantise an ONNX model with onnxruntime's quantisers: to bytes, or its weights alone (--weights-only)."""
    options.onnx_file(model)
    if (data is None) == (weights_only is None):
        raise InputError("quantize needs either --data DATA.npz, or --weights-only 4|8")
    if weights_only is not None and (per_channel or activations != "uint8"):
        raise InputError("--per-channel and --activations are for --data: with --weights-only the data stay floats")
    if weights_only is None and group is not None:
        raise InputError("--group is for --weights-only")
    if weights_only not in (None, 4, 8):
        raise InputError(f"--weights-only {weights_only}: must be 4 or 8")
    bits = 8 if weights_only is None else weights_only
    written = options.writable_file(out or Path(f"{model.stem}.int{bits}.onnx"), "--out")
    if written.exists() and written.samefile(model):
        raise InputError(f"--out {written}: is the model itself")
    samples = None if data is None else arrays.read(data)
    with output.stdout_for_json(as_json), telling(f"quantising {model}"):
        from ...model.quantize import quantize_model, quantize_weights

        if samples is not None:
            result = quantize_model(model, samples, written, per_channel=per_channel, activations=activations)
        else:
            result = quantize_weights(model, written, bits=bits, group=32 if group is None else group)
    if as_json:
        output.emit(result.to_json())
    else:
        layers = f"{result.quantized} of {result.layers} layers"
        if samples is not None:
            output.line(f"{layers} read bytes; ranges of {result.samples} samples")
            output.line(_accuracy(result))
        else:
            output.line(f"{layers} have weights of {bits} bits")
        output.line(f"saved: {result.model}")


def _accuracy(result: QuantizedModel) -> str:
    """What quantising costs, on samples of the calibration."""
    if result.error is None:
        return "not compared with float32: onnxruntime does not run one of the models"
    agreement = "" if result.agreement is None else f"; the largest output is the same in {100 * result.agreement:.1f}%"
    return f"on these samples: error {result.error:.1e} against float32{agreement}"
