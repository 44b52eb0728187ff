"""Rules for a GPU.

rules.py         all of them, in the order in which they are tried on each block
gpu_tiling.py    tiles of contractions, with what consumes them
cross_thread.py  threads that share a reduction
bind.py          loops bound to blocks and threads
"""
