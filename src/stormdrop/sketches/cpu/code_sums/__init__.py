"""Products with weights that are codes of 4 or 8 bits.

sketch.py      the sketch that converts codes to floats, for few rows of data: what it computes, and its knobs
dots.py        the sketch that multiplies codes by digits of the data, in instructions for bytes
product.py     which functions they take
loops.py       what their loops have in common, and how codes are laid out
sum_loops.py   the loops of the first one in one configuration
dot_loops.py   those of the second one
cost_model.py  what to expect of them before anything is measured
"""
