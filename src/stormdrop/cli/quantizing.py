"""`stormdrop quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError, ModelError
from . import arrays, options, output
from .options import JsonOption


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to quantise.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="DATA.npz", help="Samples of each input by name, one after the other on the first axis."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="OUT.onnx", help="The file to write; by default MODEL.int8.onnx in this folder."),
    ] = None,
    per_channel: Annotated[
        bool, typer.Option("--per-channel", help="A scale for each output channel of the weights: more exact.")
    ] = False,
    activations: Annotated[
        str, typer.Option("--activations", metavar="uint8|int8", help="The type of the data between layers.")
    ] = "uint8",
    as_json: JsonOption = False,
) -> None:
    """Quantise an ONNX model to bytes with onnxruntime's quantiser, in the QDQ form, which `tune` takes."""
    if not model.is_file():
        raise ModelError(f"{model}: no such file")
    written = options.writable_file(out or Path(f"{model.stem}.int8.onnx"), "--out")
    if written.exists() and written.samefile(model):
        raise InputError(f"--out {written}: is the model itself")
    samples = arrays.read(data)
    with output.stdout_for_json(as_json):
        from ..model.quantize import quantize_model

        result = quantize_model(model, samples, written, per_channel=per_channel, activations=activations)
    if as_json:
        output.emit(result.to_json())
    else:
        print(f"{result.quantized} of {result.layers} layers read bytes; ranges of {result.samples} samples")
        print(f"saved: {result.model}")
