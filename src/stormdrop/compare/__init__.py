"""Searches side by side: on recordings, on landscapes, on this machine.

comparison.py           several searches from several seeds on several grounds
landscape.py            one search on a plane of two knobs
search_spec.py          searches with their options, as people write them
search_run.py           one run of a search
grounds.py              what searches run on: a recording, or an operator on this machine
recordings.py           recordings by name
kernel_tuner.py         recordings from the cache files of Kernel Tuner
t4.py                   recordings from files in the format T4
kernel_tuner_writer.py  recordings written as files of these two formats
tvm_logs.py             recordings from the logs of TVM's tuners
"""
