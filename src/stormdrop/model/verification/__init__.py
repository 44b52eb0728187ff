"""How a compiled model is verified: is what it computes as right as its precision allows?

verify.py      the verification
references.py  what a model should compute, at all of its sizes
expected.py    what its tensors should be, and how far off they may be
rounding.py    how far off because of rounding
tensors.py     which of its tensors are compared, and what they are called
arrays.py      how far one array is from another, and what it holds
exact.py       what NumPy computes of the import, in float64
kernels.py     what each kernel of a compiled model reads and writes, and how exact it is
parts.py       models of which onnxruntime runs a part
rows.py        whether the rows of a batch are independent
row_flow.py    the part of it that the code proves
"""
