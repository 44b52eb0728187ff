"""The inputs of a model.

inputs.py        their sizes, and those whose values are fixed
combinations.py  the sizes that a user asks for
size_range.py    all sizes from one to another, in the place of a size
open_range.py    what is asked of shapes that have such a range
casting.py       samples and fixed values in the types of inputs
ranges.py        which values they can take
torch_places.py  those of a torch program that say where it writes
samples.py       those that a model is verified on
given.py         the samples that the user gives
"""
