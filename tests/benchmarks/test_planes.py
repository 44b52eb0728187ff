"""The planes of Figure 10 of the Droplet Search paper: the loops, and that what is measured is not measured again."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule

import stormdrop as sd
from stormdrop.bench.peers.ours import OperatorOnDevice
from stormdrop.codegen.cuda import launches
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.ir.workload import Workload
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.contract import Variant
from stormdrop.testing.sketches import check_sketch

FOLDER = Path(__file__).parents[2] / "benchmarks"
PRODUCT = sd.operators.matmul(20, 24, 18)
A100 = GPUS["a100"]
IMAGE = sd.operators.conv2d(1, 12, 14, 1, 1, 3, 3)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    for folder in (FOLDER / "searches", FOLDER, FOLDER / "kernels"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER / "kernels"))  # for the workers
    return {name: importlib.import_module(name) for name in ("_plain_loops", "planes", "record_space")}


@pytest.fixture(scope="session")
def target() -> sd.Cpu:
    return sd.Cpu.detect()


@pytest.mark.compiles
@pytest.mark.parametrize(("loops", "workload"), [("ijk", PRODUCT), ("ikj", PRODUCT), ("ij", IMAGE)])
def test_every_tile_computes_the_kernel(
    scripts: dict[str, ModuleType], loops: str, workload: Workload, target: sd.Cpu
) -> None:
    check_sketch(getattr(scripts["_plain_loops"], loops), workload, target, samples=4)


@pytest.mark.parametrize(
    ("loops", "config", "nest"),
    [
        ("ijk", {"tile_j": 0, "tile_k": 0}, [20, 24, 18]),
        ("ijk", {"tile_j": 0, "tile_k": 8}, [20, 3, 24, 8]),
        ("ijk", {"tile_j": 16, "tile_k": 8}, [20, 2, 3, 16, 8]),
        ("ikj", {"tile_k": 8, "tile_j": 16}, [20, 3, 2, 8, 16]),
        ("ij", {"tile_i": 8, "tile_j": 0}, [2, 8, 12, 3, 3]),
    ],
)
def test_loops_over_tiles_are_outside_of_both_loops(
    scripts: dict[str, ModuleType], loops: str, config: dict[str, int], nest: list[int], target: sd.Cpu
) -> None:
    workload = IMAGE if loops == "ij" else PRODUCT
    variant = getattr(scripts["_plain_loops"], loops).apply(workload, target, config)
    schedule = Schedule(tvm.IRModule({"main": variant.main}))
    around = [int(schedule.get(loop).extent) for loop in schedule.get_loops(schedule.get_sblock("s0_update"))]
    assert [extent for extent in around if extent > 1] == nest


@pytest.mark.compiles
@pytest.mark.parametrize("workload", [PRODUCT, IMAGE])
def test_tiles_of_a_gpu_are_thread_blocks(scripts: dict[str, ModuleType], workload: Workload) -> None:
    blocks = scripts["_plain_loops"].blocks
    rows, columns = (10, 12) if workload is IMAGE else (20, 24)
    for config, threads in (({"tile_i": 0, "tile_j": 0}, (1, 1)), ({"tile_i": 8, "tile_j": 16}, (16, 8))):
        (launch,) = launches(blocks.apply(workload, A100, config).main, A100)
        across, down = threads
        assert launch.threads == across * down
        assert launch.blocks == -(-rows // down) * -(-columns // across)
    tiled = with_serial_loops(blocks.apply(workload, A100, {"tile_i": 8, "tile_j": 16}).main)
    inputs = workload.random_inputs(0)
    (output,) = OperatorOnDevice(workload, sd.Cpu.detect(), Variant(tiled), inputs, threads=1).outputs()
    (right,) = workload.reference(inputs)
    np.testing.assert_allclose(output, right, rtol=1e-5)
    with pytest.raises(ValueError, match="128 x 16 threads: a block has 1024 at most"):
        blocks.apply(workload, A100, {"tile_i": 128, "tile_j": 16})


def test_the_planes_have_the_paper_s_17_values_each(scripts: dict[str, ModuleType], target: sd.Cpu) -> None:
    for kernel, loops in scripts["planes"].PLANES.values():
        space = loops.space(kernel(), A100 if loops.name == "blocks" else target)
        knobs = space.knobs
        assert [[knob.value(coords) for coords in knob] for knob in knobs] == [list(range(0, 129, 8))] * 2


def test_a_plane_is_measured_twice_and_then_only_described(
    scripts: dict[str, ModuleType], target: sd.Cpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts["_plain_loops"], "SIZES", [0, 8, 16])
    workload = sd.operators.matmul(20, 24, 16)  # no other test has made its space, which is kept, with all sizes
    first = scripts["planes"].measured("small", workload, scripts["_plain_loops"].ikj, target, tmp_path)
    assert first["points"] == 9 and not first["failed"]
    assert first["plane"]["knobs"] == ["tile_k", "tile_j"]
    assert first["plane"]["values"] == [[0, 8, 16]] * 2
    assert len(list(tmp_path.glob("plane_small_[12].ledger.jsonl"))) == 2
    monkeypatch.setattr(scripts["record_space"], "site_of", None)  # nothing is left to measure
    assert scripts["planes"].measured("small", workload, scripts["_plain_loops"].ikj, target, tmp_path) == first
