"""Ansor's features of the statements of many schedules at once, none of which is made.

indices.py   indices as TVM's simplifier gives them
nests.py     loops, and what the statements in them access
features.py  the 164 features of each statement
"""
