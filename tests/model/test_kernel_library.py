"""Kernels are compiled in several modules, and once for all builds of a model."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper
from tiny_models import make_model
from tvm import te
from tvm.s_tir import Schedule

from stormdrop.machine.cpu import Cpu
from stormdrop.model.artifact.artifact import CompiledModel
from stormdrop.model.building.compile import build
from stormdrop.model.building.kernel_library import KernelLibrary
from stormdrop.model.graph.graph import Graph
from stormdrop.model.importer.import_onnx import load_graph
from stormdrop.model.native.link import c_compiler
from stormdrop.model.random_weights import seed_weights
from stormdrop.sketches.contract import Variant


def added(extent: int, number: float) -> Any:
    """y[i] = x[i] + number."""
    x = te.placeholder((extent,), name="x")
    return te.create_prim_func([x, te.compute((extent,), lambda i: x[i] + number)])


def test_a_symbol_stands_for_one_function(target: Cpu) -> None:
    library = KernelLibrary(target)
    assert library.symbol(added(4, 1.0), "add") == "add"
    assert library.symbol(added(4, 2.0), "add") == "add_1"
    assert library.symbol(added(4, 3.0), "add") == "add_2"
    assert library.symbol(added(4, 2.0).with_attr("global_symbol", "other"), "add") == "add_1"
    assert library.symbol(added(4, 1.0), "sum") == "sum"


def chain(kernels: int) -> Graph:
    """A model of matrix products of different sizes."""
    nodes, weights = [], {}
    for index in range(kernels):
        weights[f"w{index}"] = (8 + index, 9 + index)
        nodes.append(helper.make_node("MatMul", [f"v{index}" if index else "x", f"w{index}"], [f"v{index + 1}"]))
    nodes[-1].output[0] = "y"
    return load_graph(seed_weights(make_model(nodes, weights, {"x": (2, 8)}, {"y": (2, 8 + kernels)})))


def unrolled(function: Any) -> Any:
    schedule = Schedule(tvm.IRModule({"main": function}))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.unroll(schedule.get_loops(block)[0])
    return schedule.mod["main"]


@pytest.mark.compiles
def test_only_what_is_new_is_compiled(target: Cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graph, library = chain(10), KernelLibrary(target)
    compiled: list[Sequence[str]] = []
    real = KernelLibrary._compiled

    def noting(self: KernelLibrary, functions: dict[str, Any]) -> Any:
        compiled.append(sorted(functions))
        return real(self, functions)

    monkeypatch.setattr(KernelLibrary, "_compiled", noting)
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    first = build(graph, {}, target, library=library)
    assert len(compiled) > 1, "several modules"
    assert sorted(symbol for part in compiled for symbol in part) == sorted(first.symbols)
    compiled.clear()
    again = build(graph, {}, target, library=library)
    assert not compiled and again.symbols == first.symbols
    other = build(graph, {3: Variant(unrolled(graph.tasks[3].function))}, target, library=library)
    assert [len(part) for part in compiled] == [1]
    wanted = first(x)
    for model in (again, other, CompiledModel.load(other.save(tmp_path / "other.sd"))):
        np.testing.assert_allclose(model(x), wanted, rtol=1e-4)
    assert sorted(set(other.symbols) - set(first.symbols)) == compiled[0]


@pytest.mark.compiles
def test_another_model_finds_the_kernels_that_it_has_in_common(target: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    library, x = KernelLibrary(target), np.ones((2, 8), np.float32)
    build(chain(6), {}, target, library=library)
    compiled: list[str] = []
    real = KernelLibrary._compiled

    def noting(self: KernelLibrary, functions: dict[str, Any]) -> Any:
        compiled.extend(functions)
        return real(self, functions)

    monkeypatch.setattr(KernelLibrary, "_compiled", noting)
    longer = build(chain(7), {}, target, library=library)
    assert len(compiled) == 1 and len(longer.symbols) == 7
    np.testing.assert_allclose(longer(x), build(chain(7), {}, target)(x), rtol=1e-5)


@pytest.mark.compiles
def test_kernels_that_are_apart_bring_no_others_along(target: Cpu, tmp_path: Path) -> None:
    def saved(name: str, library: KernelLibrary) -> list[int]:
        """The bytes of the kernels of a short model that is built after a longer one."""
        build(chain(12), {}, target, library=library)
        model = build(chain(3), {}, target, library=library)
        np.testing.assert_allclose(model(x), build(chain(3), {}, target)(x), rtol=1e-5)
        return [file.stat().st_size for file in model.save(tmp_path / name).glob("kernels*.bc")]

    x = np.ones((2, 8), np.float32)
    apart = saved("apart.sd", KernelLibrary(target, apart=True))
    assert len(apart) == 3 and sum(apart) < sum(saved("together.sd", KernelLibrary(target)))


@pytest.mark.compiles
def test_several_modules_are_saved(target: Cpu, tmp_path: Path) -> None:
    model = build(chain(10), {}, target)
    x = np.ones((2, 8), np.float32)
    names = {file.name for file in model.save(tmp_path / "m.sd").iterdir()}
    assert {"kernels.bc", "kernels-1.bc"} <= names
    loaded = CompiledModel.load(tmp_path / "m.sd")
    assert np.array_equal(loaded(x), model(x))
    assert {file.name for file in loaded.save(tmp_path / "copy.sd").iterdir()} == names
    (tmp_path / "m.sd" / "kernels-1.bc").write_bytes(b"")
    with pytest.raises(Exception, match=r"kernels-1.bc is damaged"):
        CompiledModel.load(tmp_path / "m.sd")
    c_compiler()
    native = CompiledModel.load(model.save(tmp_path / "native.sd", native=True))
    assert np.array_equal(native(x), model(x))


def test_ctrl_c_does_not_wait_for_llvm(target: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled when it comes is there for the next build, and the rest is compiled then."""
    library = KernelLibrary(dataclasses.replace(target, cores=1))
    functions = {library.symbol(added(4, number), "add"): added(4, number) for number in range(8)}
    goes_on, begun = threading.Event(), list[Sequence[str]]()
    main, interrupts = threading.get_ident(), list[int]()

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        if len(interrupts) == 1:
            raise KeyboardInterrupt

    def compiled(_: KernelLibrary, named: dict[str, Any]) -> str:
        begun.append(list(named))
        number = len(begun)
        if number == 1:
            while len(library._modules) < len(functions):  # until all is under way
                time.sleep(0.001)
            while not interrupts:  # a signal that comes just before a thread begins to wait does not wake it
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.01)
            goes_on.wait(60)
        return f"module {number}"

    monkeypatch.setattr(KernelLibrary, "_compiled", compiled)
    usual = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            library.modules(functions)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert len(begun) == 1
    goes_on.set()
    assert library.modules(functions) == ["module 1", "module 2"]
    assert sorted(name for part in begun for name in part) == sorted(functions)
