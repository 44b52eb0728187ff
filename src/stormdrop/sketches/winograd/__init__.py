"""What Winograd convolutions have in common on all machines.

convolution.py  which functions they take
tiles.py        where tiles are, and what they write
transforms.py   the matrices of their transforms
"""
