"""How a compiled model is verified: its inputs, another runtime's outputs, and what NumPy computes in float64.

expected.py    what its tensors should be, and how far off they may be
rounding.py    how far off because of rounding
tensors.py     which of its tensors are compared, and what they are called
samples.py     the inputs that it is verified on
ranges.py      what a model says of the values of its inputs
given.py       the samples that the user gives
origins.py     an ONNX model as something to compare with
peer.py        what another runtime computes of it
arrays.py      how far one array is from another, and what it holds
exact.py       what NumPy computes of the import, in float64
references.py  these, at all sizes of a model
kernels.py     what each kernel of a compiled model reads and writes, and how exact it is
lowered.py     what a model in bfloat16 should compute, and how far it is from float32
parts.py       models of which onnxruntime runs a part
rows.py        whether the rows of a batch are independent
"""
