"""A graph with a schedule for each task: compiled, verified, saved.

builder.py         builds a model with a chosen schedule for each task
compile.py         puts schedules into a graph and compiles it
kernel_library.py  the machine code of its kernels, kept from one build to the next
fallback.py        a plain schedule for what no sketch takes
gpu_fallback.py    such a schedule for GPUs
gpu_forms.py       sorts and cumulative sums as parallel loops, for GPUs
stand_in.py        executes a model for a GPU that is not here
tuned_task.py      the tasks after their tuning
concatenation.py   inputs of a concatenation are written to their final place
derive.py          the program of a model, derived from its Relax code
repair.py          exact schedules for kernels that make it wrong
saving.py          saving what was verified
linked_main.py     a program as a function that is linked to its kernels, for boards
board.py           a model on the machine behind a runner
"""
