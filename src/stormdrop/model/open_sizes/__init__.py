"""The program of a model, and its kernels, at any size of a range.

open_program.py  the program, and which kernel is for which sizes
generalised.py   a function at any size, found from what it is at a few
probes.py        a number at any size, found from what it is at a few
checked.py       whether a kernel computes what its function says
"""
