"""HTML files that load nothing.

page.py             renders the templates of templates/
model_page.py       the page of a tuned model
session_page.py     the page of a session
records_page.py     the page of all records
bench_page.py       the page of a bench
comparison_page.py  the page of a comparison of searches
landscape_page.py   the page of a landscape

A new page is X_page.py, templates/X.html, a type in `report/documents.py`, and a call in the command that has the
document: cli/commands/reporting.py, cli/commands/comparing.py or cli/commands/benching.py.
"""
