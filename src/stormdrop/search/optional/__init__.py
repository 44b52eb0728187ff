"""Searches of other packages. Each works only where its package is installed.

optuna_samplers.py  Optuna's samplers as searches
"""
