"""Runs ONNX's own node tests: which operators are right, natively or with onnxruntime's help.

    node_tests.py [--only PATTERN] [--fresh | --failed] [--show] [--table] [--open]

The cases are those of `onnx.backend.test`, without the training domain and without the `_expanded` forms. Each is
imported, compiled with default schedules, run, and compared with the outputs that the case expects, with the case's
tolerances. It counts if onnxruntime's CPU provider passes it. Verdicts:

    ok         the outputs are right
    refused    one line says why the model is not taken
    wrong      an output is not what the case expects
    traceback  something else than an error of stormdrop's own was raised
    crash      the process ended
    hang       it took more than a minute

stormdrop compiles for fixed shapes. A case that gives a shape, an axis or a size as an input is run with the value of
that input fixed, as by `--value`. The record of the case names these inputs. With `--open` they are inputs, and each of
these cases has to be right or to be refused in one line.

Records are appended to benchmarks/out/node_tests.jsonl as they are made (with `--open` node_tests_open.jsonl); a second
run goes on where the first ended.
`--table` writes docs/reference/onnx-operators.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import OUT, Campaign, campaign_parser

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "onnx-operators.md"
SECONDS = 60.0
PER_PROCESS = 100
VERDICTS = ("ok", "refused", "wrong", "traceback", "crash", "hang")
_LINE = 300

# Inputs that are fixed besides those that decide a shape: they say which axis, place or size is wanted.
_ALSO_FIXED: Mapping[str, tuple[int, ...]] = {
    "CumProd": (1,),
    "CumSum": (1,),
    "Dropout": (1, 2),
    "Loop": (0, 1),
    "LpNormalization": (1,),
    "NonMaxSuppression": (2, 3, 4),
    "Resize": (1,),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Trilu": (1,),
}


def main() -> None:
    given = _options()
    campaign = Campaign(OUT / ("node_tests_open.jsonl" if given.open else "node_tests.jsonl"), options=given)
    if not given.show and not given.table:
        run(campaign, given)
    records = _by_case(campaign.entries)
    if given.table:
        TABLE.write_text(page(records))
        print(TABLE)
    else:
        show(records)


# Running


def run(campaign: Campaign, given: argparse.Namespace) -> None:
    """Runs all cases, or those whose name matches, that have no record yet; with `--failed` also those that failed."""
    if given.fresh and given.only is None:
        campaign.forget()
    known = _by_case(campaign.usable())
    if given.failed:
        known = {name: record for name, record in known.items() if "ok" in (record["native"], _unhelpful(record))}
    cases = [case for case in _cases() if case.name not in known]
    cases = [case for case in cases if given.only is None or re.search(given.only, case.name)]
    for count, record in enumerate(_records(cases, fixed=not given.open), 1):
        campaign.keep(record)
        print(f"{count}/{len(cases)} {record['case']}: {record['native']} {record['detail']}", file=sys.stderr)


def _by_case(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The last record of each case."""
    return {record["case"]: record for record in records}


def _unhelpful(record: Mapping[str, Any]) -> str:
    """ "ok" if onnxruntime does not pass a case."""
    return "ok" if record["onnxruntime"] != "ok" else ""


def _cases() -> list[Any]:
    cases = [case for case in load_model_tests(kind="node") if "_expanded" not in case.name]
    training = "ai.onnx.preview.training"
    return [case for case in cases if all(node.domain != training for node in case.model.graph.node)]


def _records(cases: Sequence[Any], fixed: bool) -> Iterator[dict[str, Any]]:
    """A record per case. Processes are forked from this one, which has loaded the cases but not TVM."""
    context = multiprocessing.get_context("fork")
    waiting = list(cases)
    while waiting:
        batch, waiting = waiting[:PER_PROCESS], waiting[PER_PROCESS:]
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, batch, fixed), daemon=True)
        process.start()
        there.close()
        for index, case in enumerate(batch):
            record = {"case": case.name, "operator": _operator(case.model), "onnxruntime": "crash"}
            record |= {"native": "crash", "helped": "crash", "detail": "", "foreign": [], "constants": []}
            start = time.perf_counter()
            if not _received(here, record):
                yield record
                process.kill()
                waiting = batch[index + 1 :] + waiting
                break
            yield record | {"seconds": round(time.perf_counter() - start, 2)}
        process.join()


def _received(connection: Connection, record: dict[str, Any]) -> bool:
    """Fills in what a child says about a case, part by part; whether it said everything."""
    for stages in (("onnxruntime",), ("native", "helped")):
        try:
            if not connection.poll(SECONDS):
                record |= dict.fromkeys(stages, "hang")
                return False
            record |= connection.recv()
        except (EOFError, ConnectionResetError):
            return False
    return True


def _serve(connection: Connection, cases: Sequence[Any], fixed: bool) -> None:
    """Runs cases in a child process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for case in cases:
        connection.send({"onnxruntime": _peer(case)})
        model, feeds, values = _with_shapes(case, fixed)
        connection.send(_verdicts(case, model, feeds, values) | {"constants": list(values)})
    os._exit(0)


def _operator(model: onnx.ModelProto) -> str:
    """The operator that a case is about: cases of several nodes are about the one that is no Constant."""
    operators = [node.op_type for node in model.graph.node if node.op_type not in ("Constant", "SequenceConstruct")]
    return (operators or [model.graph.node[0].op_type])[0]


def _peer(case: Any) -> str:
    """Whether onnxruntime is right: "ok", or why not."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    try:
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), providers=providers)
        for inputs, expected in case.data_sets:
            names = [value.name for value in session.get_inputs()]
            feeds = {name: _value(value) for name, value in zip(names, inputs, strict=True)}
            _compare(case, session.run(None, feeds), expected)
    except Exception as error:  # noqa: BLE001  whatever it raises, it does not pass
        return _line(error)
    return "ok"


def _with_shapes(case: Any, fixed: bool) -> tuple[onnx.ModelProto, dict[str, Any], dict[str, np.ndarray]]:
    """The model with fixed shapes, the values of its inputs, and those that are fixed because they decide a shape."""
    from stormdrop.model.onnx.deciding import deciding_positions

    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    values = dict(zip([value.name for value in model.graph.input], case.data_sets[0][0], strict=True))
    made: list[str] = []
    for node in model.graph.node if fixed else ():
        also = _ALSO_FIXED.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
        positions = {*deciding_positions(node), *also}
        for position, name in enumerate(node.input):
            if name in values and name not in made and position in positions:
                made.append(name)
    for value in model.graph.input:
        if value.type.HasField("tensor_type") and isinstance(_value(values[value.name]), np.ndarray):
            shape = _value(values[value.name]).shape
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape))
    return model, values, {name: _value(values.pop(name)) for name in made}


def _verdicts(
    case: Any, model: onnx.ModelProto, feeds: Mapping[str, Any], values: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """How a case goes with onnxruntime's help and natively, one line about it, and the operators that it helps with.

    A model with a part that onnxruntime runs is refused natively.
    """
    from stormdrop.errors import StormdropError

    helped, detail, foreign = "ok", "", []
    try:
        graph, compiled = _compiled(model, values)
        foreign = [part.reason for part in graph.foreign.reports]
        outputs = compiled.run({info.name: _value(feeds[info.name]) for info in compiled.inputs})
    except StormdropError as error:
        helped, detail = "refused", str(error)[:_LINE]
    except Exception as error:  # noqa: BLE001  this is what the verdict is about
        frames = traceback.extract_tb(error.__traceback__)
        helped, detail = "traceback", f"{_line(error)} [{Path(frames[-1].filename).name}:{frames[-1].lineno}]"
    else:
        try:
            _compare(case, [outputs[value.name] for value in case.model.graph.output], case.data_sets[0][1])
        except Exception as error:  # noqa: BLE001  also shapes and types that cannot be compared
            helped, detail = "wrong", _line(error)
    native = "refused" if foreign else helped
    return {"native": native, "helped": helped, "detail": " | ".join([*foreign, detail])[:_LINE], "foreign": foreign}


def _compiled(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
    """The graph of a model, and the model with default schedules."""
    from stormdrop.machine import threads

    threads.configure()
    from stormdrop.machine.cpu import Cpu
    from stormdrop.model.building.builder import ModelBuilder
    from stormdrop.model.importer.import_onnx import load_graph
    from stormdrop.model.tuning.scheduler import recorded_tasks
    from stormdrop.tuning.options import TuneOptions

    target, options = Cpu.detect(), TuneOptions(fresh=True)
    graph = load_graph(model, values=values)
    builder = ModelBuilder(graph, recorded_tasks(graph, target, options, None).tasks, target, options, {})
    return graph, builder.build(builder.defaults)


def _compare(case: Any, outputs: Sequence[Any], expected: Sequence[Any]) -> None:
    values = [_value(value) for value in expected]
    Runner.assert_similar_outputs(values, list(outputs), rtol=case.rtol, atol=case.atol)


def _value(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)}"[:_LINE]


# Showing


def show(records: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints how many cases have each verdict, and the reasons for what is not native."""
    counted = [record for record in records.values() if record["onnxruntime"] == "ok"]
    for kind in ("native", "helped"):
        counts = Counter(record[kind] for record in counted)
        print(f"{kind}: " + ", ".join(f"{name} {counts[name]}" for name in VERDICTS), f"of {len(counted)}")
    failed: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in counted:
        if record["native"] != "ok":
            failed[record["operator"]].append(record)
    for operator, group in sorted(failed.items(), key=lambda item: -len(item[1])):
        print(f"\n{operator} {len(group)}")
        for record in group:
            print(f"    {record['native']} {record['case']}: {record['detail'][:160]}")


def page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The table by operator."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records.values():
        groups[record["operator"]].append(record)
    counted = [record for record in records.values() if record["onnxruntime"] == "ok"]
    native, helped = (sum(record[kind] == "ok" for record in counted) for kind in ("native", "helped"))
    rows = ["| operator | native | with onnxruntime | not taken | not run by onnxruntime |", "|---|---|---|---|---|"]
    for operator, group in sorted(groups.items()):
        peers = [record for record in group if record["onnxruntime"] == "ok"]
        alone = sum(record["native"] == "ok" for record in peers)
        together = sum(record["helped"] == "ok" for record in peers)
        rest = len(peers) - together
        cells = [alone, together - alone, rest, len(group) - len(peers)]
        rows.append(f"| {operator} | " + " | ".join(str(cell or "") for cell in cells) + " |")
    versions = f"onnx {onnx.__version__}, onnxruntime {metadata.version('onnxruntime')}"
    return _PAGE.format(
        count=len(counted),
        native=native,
        native_share=native / len(counted),
        helped=helped,
        helped_share=helped / len(counted),
        wrong=sum(record["helped"] in ("wrong", "traceback", "crash", "hang") for record in counted),
        versions=versions,
        rows="\n".join(rows),
    )


_PAGE = """# ONNX operators

Which operators of ONNX a model may have. The table counts the cases of ONNX's own node tests (`onnx.backend.test`,
without the training domain and without the `_expanded` forms) by operator:

- *native*: stormdrop's own kernels are right.
- *with onnxruntime*: right, and onnxruntime runs a part of the model (`pip install 'stormdrop[onnxruntime]'`).
- *not taken*: refused with one line that says why, or not right.
- *not run by onnxruntime*: its CPU provider does not pass the case either. These cases do not count below.

Of the {count} cases that onnxruntime passes, {native} ({native_share:.1%}) are right natively and {helped}
({helped_share:.1%}) with onnxruntime's help. Wrong answers, tracebacks, crashes and hangs: {wrong}.
Shapes are fixed: an input that gives a shape, an axis or a size is a constant. Measured with {versions}.

NaN passes through maxima and minima wherever it stands (ReLU, clip, poolings, reductions, the place of a maximum), as
in NumPy and torch. The verification takes NaN for right at the places where the exact result has it.

Operators of onnxruntime's own have [a page of their own](onnxruntime-operators.md).

`python benchmarks/models/node_tests.py` runs the cases, and with `--table` it writes this page.

{rows}
"""


def _options() -> argparse.Namespace:
    parser = campaign_parser(__doc__)
    parser.add_argument("--only", help="a regular expression: run the cases whose name matches")
    parser.add_argument("--failed", action="store_true", help="run cases that are not right natively again")
    parser.add_argument("--table", action="store_true", help="write the table of the documentation, and run nothing")
    parser.add_argument("--open", action="store_true", help="leave inputs that decide a shape as they are")
    return parser.parse_args()


if __name__ == "__main__":
    main()
