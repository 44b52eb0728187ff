"""The contraction of a function: sums of products, and what each axis is for.

contraction.py  the contraction, and the roles of its axes
split_axes.py   axes that are split for it
made_data.py    the same of data that a stage makes first
factors.py      its factors: loads, perhaps widened, less a zero point
tables.py       functions of one byte as tables of 256 values
"""
