"""Products of bytes four at a time (`dp4a`) on a GPU's lanes, which every GPU since sm_61 can.

sketch.py   the sketch, in the tiles of `gpu_contraction`
words.py    a contraction of bytes as one of words, and what multiplies two words
"""
