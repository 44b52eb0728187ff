"""Tunes one kernel or one callable.

tune.py, minimize.py     the functions that users call
functions/               a Python function that is tuned when it is first called
options.py, duration.py  what users set
kernel.py                a kernel as something to tune
request.py               everything that a session needs
reuse.py                 how the records are used for a request
transfer.py              where a search begins, as records of elsewhere say
session.py               the one tuning loop
trace.py                 what a search has measured
race.py                  the last decision: is it faster than the default?
result.py                progress and results
recorded_kernel.py       a kernel of the records, made again for its report
"""
