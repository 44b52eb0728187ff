"""Kernels for GPUs as functions for the CPU."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi

from stormdrop import operators
from stormdrop.codegen.compile import compile_kernel
from stormdrop.codegen.serial_loops import with_serial_loops
from stormdrop.machine.cpu import Cpu
from stormdrop.machine.gpu import GPUS
from stormdrop.sketches.registry import sketches_for


def test_blocks_and_threads_become_serial_loops() -> None:
    workload, gpu = operators.softmax(16, 40), GPUS["a100"]
    (sketch, space), *_ = sketches_for(workload, gpu)
    function = sketch.apply(workload, gpu, space.config(space.origin)).main
    assert "thread_binding" in str(function.script())
    serial = with_serial_loops(function)
    assert "thread_binding" not in str(serial.script())
    assert "thread_binding" in str(function.script())  # the function itself stays
    inputs = workload.random_inputs(0)
    (expected,) = workload.reference(inputs)
    output = tvm.runtime.empty(expected.shape, "float32")
    compile_kernel(serial, Cpu.detect().tvm()).call(*map(tvm.runtime.tensor, inputs), output)
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-5)


def test_a_function_without_threads_stays() -> None:
    function = operators.matmul(4, 4, 4).function
    assert tvm_ffi.structural_equal(with_serial_loops(function), function)
