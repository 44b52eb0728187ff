"""The commands, one file for each or for a few that belong together.

tuning.py      tune-op, tune
compiling.py   compile
quantizing.py  quantize
running.py     run
benching.py    bench
doctor.py      doctor
cache.py       cache
comparing.py   compare, landscape
reporting.py   report, and the pages that other commands write
dashboard.py   dashboard
fleet.py       fleet, and `--fleet`
database.py    db
listing.py     operators
"""
