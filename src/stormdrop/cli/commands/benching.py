"""`stormdrop bench`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import InputError, OperatorError
from ...measure.timing import MOST_ROUNDS
from ...report.formatting import plain_ratio
from ...tuning.options import FLOAT32, whole_number
from .. import completion, options, output
from ..options import DatabaseOption, JsonOption, PrecisionOption, SeedOption, ShapeOption, TargetOption
from ..services import CallsOption, ForOption, load_of, print_services, say_how_long
from ..status_line import telling
from .reporting import PageOption, check_page, command_line, write_page


def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ARTIFACT|MODEL|OPERATOR",
            help="What to time: a tuned model, an ONNX model or an operator.",
            autocompletion=completion.operators_and_files,
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", help="The operator's arguments.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="NAME,...",
            help="Peers, such as onnxruntime, openvino, torch and tensorflow; all by default. Beside a model by OpenCL "
            "they run on the CPU, and there are none by default.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="The number of interleaved rounds.")
    ] = MOST_ROUNDS,
    duration: ForOption = None,
    calls: CallsOption = None,
    target: TargetOption = None,
    db: DatabaseOption = None,
    seed: SeedOption = 0,
    shape: ShapeOption = None,
    precision: PrecisionOption = FLOAT32,
    report: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time an operator or a model beside its peers; tune it first if it has not been tuned."""
    values, shapes = options.arguments(arguments or ()), options.one_size(shape or ())
    options.not_empty(target, "--target", "cpu")
    whole_number("seed", seed, 0)
    check_page(report, "--report")
    load = load_of(duration, calls)
    names = None if against is None else [name.strip() for name in against.split(",") if name.strip()]
    opening = " ".join(("timing", what, *(arguments or ())))
    with output.stdout_for_json(as_json), telling(opening, "loading TVM") as tell:
        from ... import operators
        from ...bench.bench import bench as time_beside_peers
        from ...machine.cpu import parse_machine

        path = Path(what)
        is_file = path.exists() or path.suffix in (".onnx", ".sd") or len(path.parts) > 1
        if is_file and values:
            raise OperatorError(f"{what} is a model and takes no arguments such as {(arguments or [''])[0]}")
        if load is not None and not is_file:
            raise InputError("--for and --calls are for models: an operator serves no calls")
        if is_file and not path.is_dir():
            options.onnx_file(path)
        subject = path if is_file else operators.create(what, values)
        machine = None if target is None else parse_machine(target)
        if load is not None:
            say_how_long(load, "each contender, in turns,", " for each, and for each way in which it serves several")
        with options.tuning_records(db) as store:
            result = time_beside_peers(
                subject,
                names,
                rounds=rounds,
                load=load,
                seed=seed,
                shapes=shapes,
                precision=precision,
                target=machine,
                store=store,
                on_progress=tell.tuning,
                on_phase=tell,
            )
        document = result.to_json()
        if report is not None:
            from ...report.documents import Bench, checked
            from ...report.pages.bench_page import bench_page

            chosen = {"against": against, "rounds": rounds, "target": target, "seed": seed, "shape": shape}
            chosen |= {"for": duration, "calls": calls}
            if precision != FLOAT32:
                chosen["precision"] = precision
            repeat = command_line("bench", what, *(arguments or ()), **chosen)
            write_page(bench_page(checked(document, Bench, what), repeat), report)
    if as_json:
        output.emit(document)
    else:
        _print_bench(document)
        if report is not None:
            print(f"saved: {report}")


def _print_bench(document: Mapping[str, Any]) -> None:
    """Prints the document of a bench as a table."""
    contenders = document["contenders"]
    calls = [contender["call"] for contender in contenders]
    rows = [
        [
            contender["name"],
            output.seconds(contender["seconds"]),
            output.interval(contender["interval"]),
            *([output.seconds(call["seconds"]) if call else "-"] if any(calls) else []),
            plain_ratio(contender["ratio"]),
            output.interval(contender["ratio_interval"], "ratio"),
            f"{contender['gflops']:.0f}" if contender.get("gflops") else "-",
            f"{contender['max_error']:.0e}" if math.isfinite(contender["max_error"]) else "different",
        ]
        for contender, call in zip(contenders, calls, strict=True)
    ]
    title = f"{document['what']}: {document['runs']} interleaved rounds"
    copies = ["with copies"] if any(calls) else []
    headings = ["", "median", "95% interval", *copies, "over ours", "95% interval", "GFLOP/s", "error"]
    output.table(headings, rows, title, spare=("GFLOP/s", "error"))
    if any(calls):
        for contender in contenders:
            if contender["device"] == "cpu":
                output.line(f"{contender['name']}: runs on the CPU")
    for name, reason in document["skipped"].items():
        output.line(f"{name}: skipped: {reason}")
    if document["disturbed"]:
        output.line(
            f"something else used the machine in {document['disturbed']} of the rounds: do not trust the figures"
        )
    for contender in document["contenders"]:
        if not contender["agrees"]:
            print(f"{contender['name']}: its output differs from the reference")
    if (load := document["load"]) is not None:
        print()
        print_services(
            [(each["name"], service) for each in document["contenders"] for service in each["services"]],
            load["disturbed"],
        )
        for name, reason in load["unserved"].items():
            print(f"{name}: {reason}")
