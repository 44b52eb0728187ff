"""Logs and traces, which are written while something is tuned or runs, and what runs say of themselves.

announcement.py   runs that are at work, each with what it does now
event_log.py      what happens during a tuning, as JSON lines
event_trace.py    the same as a trace
profile_trace.py  the calls of a model's executions as a trace
lines_file.py     a file that is written while something more important goes on
trace_file.py     the format of traces
"""
