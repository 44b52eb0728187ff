"""`stormdrop compile`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...machine.process.child_process import prepare
from ...report.layer_label import label_of
from ...tuning.options import TuneOptions
from .. import options, output
from ..flags import ModelFlags, spread
from ..options import DatabaseOption, DenormalsOption, JsonOption, MaxErrorOption, SeedOption, TargetOption
from ..progress import Reporter
from ..status_line import loading


@spread
def compile_(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to compile.")],
    flags: ModelFlags,
    target: TargetOption = None,
    db: DatabaseOption = None,
    seed: SeedOption = 0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Take no schedule from earlier tunings: default schedules only.")
    ] = False,
    max_error: MaxErrorOption = None,
    keep_denormals: DenormalsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compile an ONNX model in seconds, without measuring anything.

    A kernel that was tuned before gets the schedule that its tuning found. On an NVIDIA GPU, what a tuning on another
    one has found is next. All others get their default schedules.
    """
    compile_options = TuneOptions(seed=seed, fresh=fresh, precision=flags.precision, max_error=max_error)
    options.check_target(target, flags.arch)
    given = flags.of_model(model)
    opening = f"compiling {model}"
    with output.stdout_for_json(as_json):
        with loading(opening):
            prepare("stormdrop.model.importer.isolated", here=True)
            from ...model.untuned import compile_model_with

            machine = options.model_machine(target, keep_denormals, flags.arch)
        with Reporter(None, opening, context.obj, lines=False) as report, options.tuning_records(db) as store:
            result = compile_model_with(model, machine, compile_options, store=store, on_progress=report, **given)
        document = result.to_json()
    if as_json:
        output.emit(document)
    else:
        _print(document)
    return 0


def _print(document: Mapping[str, Any]) -> None:
    recorded, borrowed, kernels = len(document["recorded"]), document["borrowed"], document["kernels"]
    counts = [f"{recorded} with schedules of earlier tunings"]
    counts += [f"{count} with those of {gpu}" for gpu, count in Counter(borrowed.values()).items()]
    plain = len(set(document["fallbacks"]) - set(document["recorded"]) - borrowed.keys())
    counts.append(f"{kernels - recorded - len(borrowed) - plain} with default schedules")
    counts += [f"{plain} with plain ones"] if plain else []
    output.line(f"{kernels} kernels: {', '.join(counts)}")
    if len(document["sizes"]) > 1:
        output.line(f"sizes: {'; '.join(output.shapes(size['shapes']) for size in document['sizes'])}")
    verified = document["verified"]
    output.line(f"verified: error {verified['max_error']:.1e} against {verified['against']}")
    output.precision(document["precision"])
    for entry in document["replaced"]:
        kernel = label_of(entry, output.LABEL)
        output.line(f"replaced, because the model was wrong with it: {entry['before']} of {kernel}")
    output.fallbacks(document)
    output.foreign_parts(document["foreign"])
    output.line(f"{document['seconds']:.1f} s: {output.phases(document['phases'])}")
    output.line(f"saved: {document['artifact']}\ndigest: {document['digest']}")
