"""What a compiled model is: a program, a plain list of calls of kernels on planned memory (`runtime.program`).

check.py         whether a program reads only what was written
compiled.py      a program with the machine code of its kernels, and its constants
document.py      a program as JSON, and back
memory.py        memory that is aligned, or mapped from a file
weights_file.py  the file of its constants
executor.py      executes it in this process
run_steps.py     the function that calls kernels one after the other
"""
