"""This machine, which others use at the same time.

lock.py, lock_holder.py  the machine-wide lock, and who holds it
core_shares.py           how calls of models share the cores
foreign_load.py          whether something else used the machine while a kernel ran
"""
