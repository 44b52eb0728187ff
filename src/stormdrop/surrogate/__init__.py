"""What a search believes about points that it has not measured."""

from .features import Features, knob_encodings

__all__ = ["Features", "knob_encodings"]
