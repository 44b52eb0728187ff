"""Read-only questions of people about all records.

reader.py            the questions
session_lines.py     lists of sessions: filters, orders, what is shown of each
trial_search.py      a search through all trials, a bounded number of rows at a time
session_sums.py      sessions that are shown together, in sums
session_document.py  a session with its trials as one JSON document
session_progress.py  the best so far of a session over time, and how its trials ended
"""
