"""The program of a model, and its kernels, at any size of a range.

open_graph.py    before anything is tuned: whether the model is the same at each size
rows.py          makes one axis of neighbouring ones that kernels treat alike
open_program.py  the program of each part of a range
alike.py         the sizes that have the same kernels, and the parts of a range
kernels.py       the kernels of a function for all sizes
constants.py     a constant at any size
trials.py        a process that executes them before they are taken
checked.py       whether a kernel computes what its function says
generalised.py   a function at any size, found from what it is at a few
probes.py        a number at any size, found from what it is at a few
parameters.py    the extents of inputs that differ between sizes
boxes.py         all values of a few variables between two corners
"""
