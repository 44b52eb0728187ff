"""Rules for a CPU.

rules.py                   all of them, in the order in which they are tried on each block
tiling.py                  tiles of contractions, with what consumes them
rfactor.py                 partial results of a reduction
location.py                where a block is computed
packing.py                 the layout of an operand
parallel.py, vectorise.py  annotations of loops
"""
