"""Code generation: a scheduled function becomes a callable, or source text that is checked."""
