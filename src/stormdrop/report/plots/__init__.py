"""Plots, as files and inside pages.

curves.py       how good the best candidate is against evaluations and against seconds
costs.py        where wall time goes and how many evaluations fail
landscape.py    all times over two knobs, with the path of a search
ranks.py        the critical-difference diagram of a comparison
model_plots.py  the plots of a tuned model
svg.py          plots as SVG inside a page
style.py        colours, panels and files, for all plots
"""
