"""The version, alone in its file so that building, importing and recording it needs nothing else."""

__version__ = "0.3.0"
