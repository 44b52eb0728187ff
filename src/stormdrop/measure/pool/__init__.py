"""Worker processes, seen from the process that has jobs for them.

pool.py             the worker processes: started, paused, replaced and ended
dispatch.py         gets jobs done by them, and enforces the time limit of a job
job_clock.py        which seconds count as time of a job
job_events.py       tells which worker does which job, to whoever listens
jobs.py             the messages between a measurer and its workers
worker_messages.py  reads a message from a worker, which may be damaged
"""
