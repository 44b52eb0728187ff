"""A scheduled function becomes a callable."""
