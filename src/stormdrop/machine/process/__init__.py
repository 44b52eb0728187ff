"""What a process needs to know of its bounds and its children.

memory.py, cgroups.py             how much memory it may use, and the control groups that bound it
child_process.py, last_output.py  a child process that serves its parent, and the end of what it writes
fork_server.py, fork_loop.py      a process that has loaded TVM and forks it
fresh_process.py                  a program of its own in place of a fork
child_side.py                     what it does before it serves
forks.py                          whether it was forked after TVM had started its threads
no_torch.py                       why it does without torch
scratch.py                        temporary folders that are removed even if their process is killed
"""
