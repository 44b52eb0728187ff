"""A model in bfloat16.

choice.py     which of its layers are in bfloat16
mixed.py      which of its values are
reference.py  what it should compute, and how far it is from float32
"""
