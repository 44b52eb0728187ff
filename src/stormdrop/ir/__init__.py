"""What a kernel computes: functions as stages of expressions, workloads, the roles of axes, the NumPy reference.

workload.py                what is tuned: a function in normal form, with constant inputs
stages.py, expressions.py  a function as stages, and their expressions: read and rewritten
roles.py, split_axes.py    the contraction of a function, and what its axes are for; axes that are split for it
factors.py                 the factors of a contraction: loads, perhaps widened, less a zero point
segments.py                values that depend on the position on an axis
tables.py                  functions of one byte as tables of 256 values
elementary.py              exp, sigmoid, tanh and erf as arithmetic that runs in vectors
reference.py, grid.py      what a function should compute, by NumPy
rounding.py                how far rounding may take its outputs
relative_error.py          how far an output is from the reference
dtypes.py                  element types by their names
lowered.py                 a function whose parameters are stored in bfloat16
attributes.py              what a sketch or a model asks of code generation
"""
