"""Contractions by the tile registers of AMX.

sketch.py        which functions they take, and the knobs
rows.py          how tiles walk through the rows
groups.py        how many steps wait for each other
columns.py       the words of the column operand, and who packs them
data.py          what tiles load the data from
parts.py         numbers of float32 as sums of two of bfloat16
reductions.py    loops over products of tiles, and blocks of them
whole_groups.py  data whose words do not divide the reduction
loops.py         the loops of one configuration
instructions.py  the instructions and the configuration of tiles
cost_model.py    what to expect before anything is measured
"""
