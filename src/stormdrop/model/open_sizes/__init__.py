"""Models that run at any size of a range: one program, whose kernels take their extents from their arguments.

| file | content |
|---|---|
| `probes.py` | what a number is at any size, found from what it is at a few |
| `generalised.py` | a function at any size, found from what it is at a few |
| `open_program.py` | its program and its kernels at any size, found from those that the sketches make at a few |
"""
