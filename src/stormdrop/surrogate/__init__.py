"""What a search predicts about points that it has not measured: surrogate models and their features."""

from .features import Features, knob_encodings

__all__ = ["Features", "knob_encodings"]
