"""Tables, plots and pages: pure functions of the documents that commands print as JSON; logs and traces.

summary.py        the document of a comparison of searches: the summary of the runs of each search
differences.py    whether searches differ, with intervals and corrected p-values
curves.py         plots of how good the best candidate is against evaluations and against seconds
costs.py          plots of where wall time goes and of how many evaluations fail
landscape.py      the plot of all times over two knobs, with the path of a search
style.py          colours, panels and files, for all plots

Pages are HTML files that load nothing. A new page is X_page.py, templates/X.html, a type in documents.py, and a call in
the command that has the document: cli/reporting.py, cli/comparing.py or cli/running.py.

documents.py        the documents that pages are made of, as types, and a check of documents from files
page.py             renders the templates of templates/
svg.py              plots as SVG inside a page
code.py             programs with their syntax highlighted
formatting.py       numbers, times and configurations as people read them
kernels.py          what a page shows of each kernel of a model; the roofline
diagnosis.py        why a kernel is not faster, in sentences
model_page.py       the page of a tuned model
model_plots.py      its plots
session_page.py     the page of a session
records_page.py     the page of all records
bench_page.py       the page of a bench
comparison_page.py  the page of a comparison of searches
ranks.py            its critical-difference diagram
landscape_page.py   the page of a landscape
notebook.py         results as small HTML for Jupyter

Logs and traces are written while something is tuned or runs:

lines_file.py       a file that is written while something more important goes on
event_log.py        what happens during a tuning, as JSON lines
event_trace.py      the same as a trace
profile_trace.py    the calls of a model's executions as a trace
trace_file.py       the format of traces

dashboard/          the records in a browser, live
"""
