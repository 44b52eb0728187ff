"""What this machine can do at most, as it was measured.

peak.py, peak_loops.py            the measured limits of this machine, and the loops that measure them
memory_rates.py, memory_loops.py  how fast its memory and caches are, and how much these hold; the loops
unit_rates.py, unit_loops.py      how fast its arithmetic units are, and which are offered; the loops
passing.py                        what passes through the caches between two executions of a kernel
measuring.py                      a process that measures, and the best of several windows
kept_measurements.py              measurements that are made once and kept
"""
