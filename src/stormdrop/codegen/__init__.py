"""Code generation: a scheduled function becomes a callable, or source text that is checked.

compile.py                    to a callable in this process
lowering.py                   the passes for a CPU: TVM's and ours
bfloat16.py                   bfloat16 becomes its bits
dot_products.py               dot products of integers and bfloat16 become the machine's instructions
needed_features.py            kernels that need a missing arithmetic unit are refused
denormals.py                  whether a kernel flushes denormals
gpu_lowering.py               the passes for a GPU: one function for the host, one for each kernel
cuda.py                       CUDA source, its launch and its resources
device_code.py                the code of a model's kernels for a GPU
opencl.py, opencl_runtime.py  OpenCL source; its kernels on a device
gpu_check.py                  whether a GPU's schedules are right, found out without one
thread_bounds.py              whether their threads stay within the buffers
serial_loops.py               a GPU's kernel as loops for the CPU
"""
