"""States of decoders that are written in place, so that no step copies the cache.

declared.py      which outputs become inputs: declared, or by name
in_place.py      the program of each size with such states
written_rows.py  the kernel of a concatenation that writes the new rows only
"""
