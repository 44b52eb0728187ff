"""Rewrites from ONNX to ONNX.

rewriting.py          what those share that put other nodes in the place of some
simplify.py           constants are folded, what is not needed goes
functions.py          operators by the bodies of the standard
loops.py              loops are unrolled
optimize.py           onnxscript's optimizer
halves.py             models of float16 and bfloat16 become float32
sparse.py, narrow.py  constants that are stored in another way than kernels read them
qdq.py                layers of the QDQ form become layers of bytes
grouped_heads.py      products with keys and values that several heads share
code_layers.py        layers whose weights are codes of 4 or 8 bits
"""
