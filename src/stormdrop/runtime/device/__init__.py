"""Runs models on GPUs: by CUDA with NVIDIA's `cuda-bindings`, by OpenCL with `pyopencl`. Neither needs TVM.

contract.py      what a device does: allocate, upload, launch, wait, time, capture
code.py          the kernels of a model for a device, and how they are launched
cuda.py          the device that CUDA drives
cuda_context.py  the context of an NVIDIA GPU, and what its driver's errors mean
opencl.py        the device that OpenCL drives
opening.py       opens one of them
execution.py     executes a program on a device
blocks.py        the memory for that
parts.py         the parts of it that onnxruntime runs
calls.py         calls of a model
device_array.py  arrays in the memory of a device, as other libraries exchange them
"""
