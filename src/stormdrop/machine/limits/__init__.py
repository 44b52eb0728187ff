"""What this machine can do at most, as it was measured.

peak.py               the measured limits of this machine
memory_rates.py       how fast its memory and caches are, and how much these hold
passing.py            what passes through them between two executions of a kernel
unit_rates.py         how fast its arithmetic units are, and which are offered
unit_loops.py         the loops that measure these units
kept_measurements.py  the files that keep such measurements
"""
