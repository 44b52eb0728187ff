"""Products with weights that are codes of 4 or 8 bits, for few rows of data.

sketch.py      the sketch: what it computes, and its knobs
product.py     which functions it takes
loops.py       its loops in one configuration
cost_model.py  what to expect of it before anything is measured
"""
