"""Sketches for CPUs.

contractions/               the register-blocked contraction
tiles/                      contractions by the tile registers of AMX
winograd/                   convolutions of stride 1 with fewer multiplications
code_sums/                  products with weights that are codes
attention/                  two contractions with a softmax between them
streaming.py                everything else: its knobs
nests.py, groups.py         its loop nests, and which of them share a loop
nest_rewrites.py, loops.py  rewrites that make a nest fast, and its loops
cheapest_origin.py          the origin of a space that follows from what to expect of its points
non_temporal.py             stores past the caches, a knob of several sketches
prefetch.py                 constants that are fetched ahead, another one
"""
