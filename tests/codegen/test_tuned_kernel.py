"""Kernels that users call: what they accept, and when they lay out constants again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import te

from stormdrop import operators
from stormdrop.codegen.compile import TunedKernel, check_arguments
from stormdrop.ir.workload import Workload
from stormdrop.machine.cpu import Cpu
from stormdrop.sketches.registry import sketches_for

TARGET = Cpu.detect()
DENSE = operators.dense(4, 32, 8)


def default_kernel(workload: Workload) -> TunedKernel:
    (sketch, space), *_ = sketches_for(workload, TARGET)
    return TunedKernel(workload, TARGET, sketch.apply(workload, TARGET, space.config(space.origin)))


def test_the_result_is_an_array() -> None:
    inputs = DENSE.random_inputs(0)
    result = default_kernel(DENSE)(*inputs)
    assert isinstance(result, np.ndarray) and result.shape == (4, 32)
    np.testing.assert_allclose(result, inputs[0] @ inputs[1].T, rtol=1e-5)


def test_its_text_is_one_line() -> None:
    assert repr(default_kernel(DENSE)) == "TunedKernel of dense m=4 n=32 k=8: x0 float32[4, 8], x1 float32[32, 8]"


def test_several_outputs_are_a_list() -> None:
    x = te.placeholder((3, 8))
    y = te.compute((3, 8), lambda i, j: x[i, j] + 1.0)
    z = te.compute((3, 8), lambda i, j: y[i, j] * 2.0)
    ones = np.ones((3, 8), "float32")
    more, double = default_kernel(Workload.create("both", te.create_prim_func([x, y, z])))(ones)
    np.testing.assert_array_equal(more, 2 * ones)
    np.testing.assert_array_equal(double, 4 * ones)


def test_inputs_may_be_strided_views() -> None:
    data, weight = DENSE.random_inputs(0)
    np.testing.assert_array_equal(
        default_kernel(DENSE)(np.asfortranarray(data), weight), default_kernel(DENSE)(data, weight)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w: (x,), r"takes 2 inputs, not 1"),
        (lambda x, w: (x, w, w), r"takes 2 inputs, not 3"),
        (lambda x, w: (x.T, w), r"input x0 must be float32\(4, 8\), not float32\(8, 4\)"),
        (lambda x, w: (x, w.astype("float64")), r"input x1 must be float32\(32, 8\), not float64\(32, 8\)"),
    ],
)
def test_other_inputs_are_refused(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        default_kernel(DENSE)(*change(*DENSE.random_inputs(0)))


def test_constants_are_laid_out_when_another_array_comes() -> None:
    kernel, (data, weight) = default_kernel(DENSE), DENSE.random_inputs(0)
    assert set(DENSE.constants) == set(kernel.variant.transforms) == {1}
    first = kernel(data, weight)
    weight *= 2  # which the documentation forbids: the same array is not read again
    np.testing.assert_array_equal(kernel(data, weight), first)
    np.testing.assert_array_equal(kernel(data, weight.copy()), 2 * first)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([((4, 8), "float32")], r"the function has 3 parameters, not 1"),
        ([((4, 8), "float32"), ((8, 4), "float32"), ((4, 32), "float32")], r"parameter 1 is float32\(32, 8\), not"),
        ([((4, 8), "float32"), ((32, 8), "float32"), ((4, 32), "float16")], r"parameter 2 is float32\(4, 32\), not"),
    ],
)
def test_arguments_are_checked_by_number_shape_and_type(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_arguments(DENSE.function, arguments)


def test_arguments_that_fit() -> None:
    check_arguments(DENSE.function, [((4, 8), "float32"), ((32, 8), "float32"), ((4, 32), "float32")])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_call_after_a_fork_is_an_error() -> None:
    program = """
import os, signal
from test_tuned_kernel import DENSE, default_kernel
from stormdrop.errors import ArtifactError
kernel, inputs = default_kernel(DENSE), DENSE.random_inputs(0)
kernel(*inputs)
if os.fork() == 0:
    signal.alarm(20)  # the former code could hang here
    try:
        kernel(*inputs)
    except ArtifactError as error:
        print(error, flush=True)
    os._exit(0)
print(os.wait()[1])
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment)
    reason, code = done.stdout.splitlines()
    assert "before this process was forked" in reason and "'spawn'" in reason
    assert code == "0", done.stderr
