"""A model as calls to a few distinct kernels, the tasks, and what it was imported from.

graph.py        the graph
tasks.py        its distinct kernels
layers.py       which layers of the model each call of a kernel computes
flow.py         how layers are followed through a rewrite of a graph
constants.py    its constants
place.py        where a kernel writes a part of a tensor
expressions.py  what is asked of the expressions of its Relax code
open_blocks.py  what an exception leaves of a function that is being built
renaming.py     functions are renamed, and modules joined
origin.py       another way to compute the same model
onnx_origin.py  an ONNX model as such
"""
