"""Tables, plots and pages: pure functions of the documents that commands print as JSON; logs and traces.

documents.py    the documents as types, and a check of documents from files
pages/          their HTML pages
plots/          their plots
summary.py      the document of a comparison of searches: the summary of the runs of each search
differences.py  whether searches differ, with intervals and corrected p-values
kernels.py      what a page shows of each kernel of a model; the roofline
headline.py     what a tuning has brought, in a sentence
diagnosis.py    why a kernel is not faster, in sentences
layer_label.py  the layers that a kernel computes, in few words
search_end.py   why a search ended, in words
code.py         programs with their syntax highlighted
formatting.py   numbers, times and configurations as people read them
notebook.py     results as small HTML for Jupyter
traces/         logs and traces
dashboard/      the records in a browser, live
"""
