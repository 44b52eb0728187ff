"""Tunes a Python function when it is first called.

autotune.py              the decorator that users call
configuration_check.py   do the configurations of a function compute what they should?
arrays.py                what arrays of NumPy, CuPy and torch have in common
"""
