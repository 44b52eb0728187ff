"""What a kernel computes: functions as stages of expressions, workloads, contractions, the NumPy reference.

workload.py                what is tuned: a function in normal form, with constant inputs
stages.py, expressions.py  a function as stages, and their expressions: read and rewritten
inlining.py                elementwise stages that are worth computing again where they are read
contractions/              the contraction of a function, and what its axes are for
strides.py                 how accesses step over a buffer in memory
kept.py                    what is found out about a workload once, and kept with it
segments.py                values that depend on the position on an axis
elementary.py              exp, sigmoid, tanh and erf as arithmetic that runs in vectors
reference.py, grid.py      what a function should compute, by NumPy
error_bounds.py            how far rounding may take its outputs
relative_error.py          how far an output is from the reference
dtypes.py                  element types by their names
mixed_precision.py         a function whose parameters are stored in bfloat16, or which multiplies TF32
attributes.py              what a sketch or a model asks of code generation
"""
