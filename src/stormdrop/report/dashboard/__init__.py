"""`stormdrop dashboard`: pages that show the records while they grow. They read, and never write.

app.py         the application: its routes
shared.py      what all requests share: the records, the templates
guard.py       who may ask: hosts, origins, methods, the token; the headers of every answer
pages.py       the pages
tuned.py       models and operators as their rows
downloads.py   sessions and trials as CSV and JSON
changes.py     tells a browser that there is something new
open_spans.py  what a tuning is doing now, from its log
plot.py        the best so far over time, as lines of an SVG
serve.py       binds a socket, and serves the application there

The package needs the extra `stormdrop[dashboard]`.
"""
