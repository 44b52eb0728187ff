"""Runs native models with NumPy alone, and models on GPUs with NVIDIA's or OpenCL's package: no TVM, no compiler.

model.py         a loaded model: NumPy arrays in, NumPy arrays out
calling.py       models that are called with arrays, in order or by name
calls.py         what each way to call them offers
inputs.py        the inputs of a call: checked, and given a size
sizes.py         inputs and outputs at each size, and how messages say them
program.py       a model as a program: steps on planned memory
open_size.py     a program at any size of a range
folder.py        the files of a saved model, checked before anything of them runs
metadata.py      what a model says about itself
library.py       the C interface of model.so
native_calls.py  its calls
device/          models on GPUs
decoding/        language models with a cache
parts.py         the parts of a model that onnxruntime runs

Nothing here imports anything of stormdrop but its errors.
"""

from .decoding import Decoder, Sampling
from .model import CompiledModel, load

__all__ = ["CompiledModel", "Decoder", "Sampling", "load"]
