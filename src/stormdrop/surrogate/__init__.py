"""What a search predicts about points that it has not measured: surrogate models and their features.

features.py             what a surrogate sees of a candidate
gaussian.py, levels.py  a Gaussian process, and how it sees points
boosted.py              boosted trees
transferred_trees.py    boosted trees that correct what other kernels have taught
neighbours.py           the nearest neighbours
"""

from .features import Features, knob_encodings

__all__ = ["Features", "knob_encodings"]
