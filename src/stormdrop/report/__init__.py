"""Tables and plots: pure functions of the documents that commands print as JSON.

summary.py      the document of a comparison of searches: the summary of the runs of each search
differences.py  whether searches differ, with intervals and corrected p-values
curves.py       plots of how good the best candidate is against evaluations and against seconds
costs.py        plots of where wall time goes and of how many evaluations fail
landscape.py    the plot of all times over two knobs, with the path of a search
style.py        colours, panels and files, for all plots
"""
