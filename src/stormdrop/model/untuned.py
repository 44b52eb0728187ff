"""`compile_model`: a model with the schedules that are known without measuring: import, compile, verify, save.

model -> graph of tasks -> the recorded or the default schedule of each -> verified, saved
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..codegen.cuda import check_nvcc
from ..machine.contract import Machine
from ..machine.cpu import Cpu, keeping_denormals
from ..machine.gpu import for_architectures
from ..records import Store, buffered, open_store
from ..tuning.options import FLOAT32, TuneOptions
from ..tuning.result import Progress
from .artifact.artifact import CompiledModel
from .artifact.artifact_files import check_writable
from .building.builder import ModelBuilder, provenance_of, source_of
from .building.kernel_library import KernelLibrary
from .building.repair import verified_or_repaired
from .building.saving import Verifier, check_native
from .importer.any_model import Model
from .inputs.combinations import GivenShapes
from .inputs.given import Data
from .inputs.inputs import Values
from .inputs.open_range import check_range, has_range
from .open_sizes.open_graph import import_for_sizes
from .passes.attention import with_attention
from .precision.choice import in_precision
from .precision.decoded_weights import with_decoded_weights
from .states.declared import Declared, with_states
from .tuning.result import CompileResult
from .tuning.scheduler import recorded_tasks
from .tuning.sized_result import size_results
from .tuning.tuning_run import TuningRun
from .verification.references import with_references


def compile_model(
    model: Model,
    *,
    example_inputs: Any = None,
    target: Machine | None = None,
    seed: int = 0,
    store: Store | None = None,
    fresh: bool = False,
    shapes: GivenShapes | None = None,
    values: Values | None = None,
    state: Declared | None = None,
    samples: Data | None = None,
    out: str | Path | None = None,
    native: bool = False,
    max_error: float | None = None,
    precision: str = FLOAT32,
    keep_denormals: bool = False,
    architectures: str | Sequence[str] = (),
) -> CompiledModel:
    """Compiles a model in seconds: nothing is measured.

    A kernel that was tuned on this machine before has the schedule that its tuning found, whichever model it was tuned
    for. On an NVIDIA GPU, what a tuning on another one has found is next, that of the most similar GPU first. All
    others have their default schedules. The model is verified as `tune_model` verifies it.

    Args:
        model: As in `tune_model`: an ONNX file or model, a module or an exported program of torch, or a Relax module.
        example_inputs: As in `tune_model`: the inputs of a torch module.
        target: The machine to compile for; this machine's CPU by default, or a GPU (`stormdrop.parse_machine`), which
            need not be here: the kernels are then verified by what stands in for it.
        seed: Seeds the inputs that the model is verified on.
        store: Where the records are; the user's own database by default.
        fresh: Take no schedule from the records: every kernel has its default schedule.
        shapes: The sizes of inputs that the model leaves open, by the input's name. In the place of a size there may be
            several, as in `{"x": ((1, 4, 8), 3, 224, 224)}` or with `range(32, 385, 32)`: the model then runs at each.
        values: As in `tune_model`: the values of inputs that are fixed, which the model no longer takes.
        state: As in `tune_model`: which outputs of a decoder are inputs of its next step.
        samples: As in `tune_model`: inputs that have a meaning for the model, on which it is verified.
        out: The folder to save the model to.
        native: Save machine code in place of LLVM bitcode; see `CompiledModel.save`.
        max_error: As in `tune_model`.
        precision: As in `tune_model`.
        keep_denormals: As in `tune_model`.
        architectures: As in `tune_model`.

    Raises:
        ModelError: The model cannot be imported or verified, or its compiled form is wrong with exact schedules, too.
        ArtifactError: Nothing can be saved at `out`.
        InputError: The samples are none of the model's inputs.
        TargetError: The target is an NVIDIA GPU, and no `nvcc` here compiles for it, or it has no such architectures.

    Example:
        ```python
        model = sd.compile_model("resnet50.onnx")
        outputs = model(images)
        ```
    """
    options = TuneOptions(seed=seed, fresh=fresh, max_error=max_error, precision=precision)
    machine = keeping_denormals(target) if keep_denormals else target
    machine = for_architectures(machine, architectures) if architectures else machine
    return compile_model_with(
        model,
        machine,
        options,
        example_inputs=example_inputs,
        store=store,
        shapes=shapes,
        values=values,
        state=state,
        samples=samples,
        out=out,
        native=native,
    ).model


def compile_model_with(
    model: Model,
    target: Machine | None,
    options: TuneOptions,
    *,
    example_inputs: Any = None,
    store: Store | None = None,
    shapes: GivenShapes | None = None,
    values: Values | None = None,
    state: Declared | None = None,
    samples: Data | None = None,
    out: str | Path | None = None,
    native: bool = False,
    library: KernelLibrary | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> CompileResult:
    """`compile_model` with its options as one value, and how it went.

    A `library` for this very target keeps the kernels for the models that are compiled with it after this one.
    `on_progress` is told what is done.
    """
    run = TuningRun(clock.perf_counter(), None, on_progress)
    machine = target or Cpu.detect()
    if out is not None:
        check_writable(Path(out))
    if native:
        check_native(machine)
    check_nvcc(machine)
    check_range(shapes, machine, native)
    ranges = shapes if has_range(shapes) else None
    with run.phase("import"):
        run.say("importing", checking=True)
        source = source_of(model)
        graph = with_states(import_for_sizes(model, shapes, example_inputs, values), state)
        graph = with_decoded_weights(graph, machine, options)
        graph = with_attention(graph, machine, options, alike=has_range(shapes))
    with run.phase("verify"):
        run.say(f"verifying the import of {len(graph.tasks)} kernels", checking=True)
        graph, references = with_references(graph, options.seed, samples)
        chosen_precision = in_precision(graph, references, options, machine)
        graph, references = chosen_precision.graph, chosen_precision.references
        of_kernels = chosen_precision.of_kernels()
    with run.phase("schedule"):
        if options.fresh:
            tuned = recorded_tasks(graph, machine, of_kernels, None)
        else:
            with open_store(None) if store is None else nullcontext(store) as opened, buffered(opened) as records:
                tuned = recorded_tasks(graph, machine, of_kernels, records)
    with run.phase("compile"):
        run.say(f"compiling {len(graph.tasks)} kernels")
        provenance = {
            **provenance_of(source, shapes, options, tuned, values, state),
            **chosen_precision.provenance,
            "search": None,
        }
        builder = ModelBuilder(graph, tuned.tasks, machine, of_kernels, provenance, library=library, ranges=ranges)
        built = builder.build(builder.winners)
    with run.phase("verify"):
        run.say("verifying")
        right = Verifier(builder, references, out, native, options.seed, ranges is not None)
        verified = verified_or_repaired(graph, builder, built, builder.winners, right, run.say)
        report = chosen_precision.report(builder.executable(verified.model, verified.combination))
    return CompileResult(
        model=verified.model,
        name=graph.name,
        target=machine,
        seconds=clock.perf_counter() - run.begin,
        phases=run.phases,
        artifact=right.artifact,
        digest=None if right.artifact is None else verified.model.digest,
        verified=right.last,
        tasks=tuned.tasks,
        replaced=verified.replaced,
        sizes=size_results(graph, tuned.tasks, [each.max_error for each in right.by_size]),
        precision=report,
    )
